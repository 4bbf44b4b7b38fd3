"""The compiled allocator against the Python one, event by event; and what happens where it cannot be had."""

import random
from array import array
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_allocator_rules import random_size

from trainmem.allocator import (
    AllocatorSettings,
    CachingAllocator,
    DeviceAddresses,
    RisingAddresses,
    compiled,
    replay,
    stream_allocator,
)
from trainmem.allocator.compiled import build, compiled_allocator, event_of, first_freed, library
from trainmem.units import MIB

needs_compiler = pytest.mark.skipif(not compiled.is_compiled(), reason="there is no C compiler")

PLACEMENTS = {
    "device": lambda: None,
    "late hole": lambda: DeviceAddresses(segments_before_kernels=3),
    "rising": RisingAddresses,
}


def random_events(chance, count):
    """A stream of events, and the streams of allocations that are not on the default one."""
    events, live, streams, number = [], [], {}, 0
    while len(events) < count:
        if live and chance.random() < 0.48:
            events.append(~live.pop(chance.randrange(len(live))))
            continue
        events.append(random_size(chance))
        if chance.random() < 0.1:
            streams[number] = chance.choice([1, 2, 7])
        live.append(number)
        number += 1
    return events, streams


def free_blocks(allocator):
    """Positions and sizes, by heap, as `CompiledAllocator.blocks` writes them, from the Python allocator."""
    out = []
    for heap in allocator._memory.heaps.values():
        for keys in (heap.small, heap.large):
            out.append(len(keys))
            for key in keys:
                position = key & ((1 << 52) - 1)
                out += [allocator._memory.address(position), key >> 52]
    return out


@needs_compiler
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
@settings(max_examples=60, deadline=None)
@given(
    chance=st.integers(0, 2**32).map(random.Random),
    count=st.integers(1, 600),
    capacity=st.sampled_from([None, 128 * MIB, 512 * MIB, 2048 * MIB]),
    option=st.sampled_from(["", "large_segment_size_mb:32", "per_process_memory_fraction:0.6"]),
)
def test_the_compiled_allocator_does_what_the_python_does(placement, chance, count, capacity, option):
    if capacity is None and "fraction" in option:
        capacity = 1024 * MIB
    events, streams = random_events(chance, count)
    streams = chance.choice([None, streams])
    limits = {"capacity_bytes": capacity, "outside_bytes": 0 if capacity is None else 10 * MIB}
    chosen = AllocatorSettings.parse(option)
    slow = CachingAllocator(chosen, **limits, placement=placement())
    fast = compiled_allocator(chosen, **limits, placement=placement())
    slow_counts, fast_counts = ([], []), ([], [])
    by_number = None if streams is None else defaultdict(int, streams)
    done = 0
    while done < count and slow.oom is None:
        until = min(count, done + chance.randint(1, count))
        slow.feed(events[done:until], *slow_counts, streams=by_number)
        fast.feed(events[done:until], *fast_counts, streams=by_number)
        done = until
        if chance.random() < 0.3:
            slow.empty_cache()
            fast.empty_cache()
        if chance.random() < 0.3:
            slow.load_kernels(18 * MIB)
            fast.load_kernels(18 * MIB)
    assert fast_counts == slow_counts
    assert fast.block_bytes == slow.block_bytes
    assert fast.allocations == slow.allocations
    assert (fast.allocated_bytes, fast.reserved_bytes, fast.retries) == (
        slow.allocated_bytes,
        slow.reserved_bytes,
        slow.retries,
    )
    assert fast.oom == slow.oom
    layout = memoryview(fast.blocks(fast.allocations)).cast("q").tolist()
    used = [block for block in layout if block]
    assert sorted(used) == sorted(block for block in free_blocks(slow) if block)


@needs_compiler
@settings(max_examples=20, deadline=None)
@given(chance=st.integers(0, 2**32).map(random.Random), size=st.sampled_from([512, 3 * MIB, 33 * MIB]))
def test_of_many_free_blocks_of_about_one_size_both_take_the_same(chance, size):
    sizes = [size, size, size, size + 512, size + 1024]
    events = [chance.choice(sizes) for _ in range(300)]
    events += [~number for number in chance.sample(range(300), 200)]
    events += [chance.choice(sizes) for _ in range(100)]
    slow, fast = CachingAllocator(), compiled_allocator()
    assert fast.highest(events) == slow.highest(events)
    layout = memoryview(fast.blocks(fast.allocations)).cast("q").tolist()
    assert layout == free_blocks(slow)


@needs_compiler
@given(chance=st.integers(0, 2**32).map(random.Random), count=st.integers(1, 300))
def test_the_highest_is_what_the_counters_say(chance, count):
    events, _ = random_events(chance, count)
    seen = replay(events).allocated
    for make in (CachingAllocator, compiled_allocator):
        allocator = make()
        half = count // 2
        assert allocator.highest(events[:half]) == max(seen[:half], default=0)
        assert allocator.highest(events[half:]) == max(seen[half:])
        assert make(capacity_bytes=2 * MIB).highest([512, 3 * MIB]) is None


@pytest.fixture(params=[pytest.param("compiled", marks=needs_compiler), "python"])
def either(request, monkeypatch):
    """The machine code, and the Python that stands in for it."""
    if request.param == "python":
        monkeypatch.setattr("trainmem.allocator.compiled.events.library", lambda: None)
    return request.param


def test_an_event_is_found_by_its_allocation(either):
    events = array("q", [512, ~0, 1024, ~1, 2048])
    assert [event_of(events, number) for number in range(3)] == [0, 2, 4]
    with pytest.raises(IndexError):
        event_of(events, 3)


def test_the_first_allocation_that_is_freed(either):
    assert first_freed(array("q", [512, 512, ~7, ~3, 512, ~4])) == 3
    assert first_freed(array("q", [512, ~0])) == 0
    assert first_freed(array("q", [512])) is None
    assert first_freed(array("q")) is None


@pytest.mark.parametrize("make", [CachingAllocator, pytest.param(compiled_allocator, marks=needs_compiler)])
def test_a_step_is_played_again_with_later_numbers(make):
    once, again = make(), make()
    step = [5 * MIB, 3 * MIB, ~1, 2 * MIB, ~0, ~2]
    assert once.highest([*step, *(event if event > 0 else event - 3 for event in step)]) == 8 * MIB
    assert again.highest(step) == 8 * MIB
    assert again.highest(step, later=3) == 8 * MIB
    assert again.block_bytes == once.block_bytes


@needs_compiler
def test_blocks_are_equal_only_where_the_layout_is():
    one, other = compiled_allocator(), compiled_allocator()
    one.highest([MIB, 5 * MIB, ~0])
    other.highest([MIB, 5 * MIB])
    assert one.blocks(0) != other.blocks(0)
    other.highest([~0])
    assert one.blocks(0) == other.blocks(0)
    assert one.blocks(1) != one.blocks(0)


@pytest.mark.parametrize("make", [CachingAllocator, pytest.param(compiled_allocator, marks=needs_compiler)])
@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([512, 0], "events: 0 is neither"),
        ([512, ~0, ~0], "events: allocation 0 is freed"),
        ([512, ~1], "events: allocation 1 is freed"),
        ([1 << 47], "do not fit into a process's address space"),
        ([1 << 80], "do not fit into a process's address space"),
    ],
)
def test_events_that_cannot_be_are_refused(make, events, words):
    with pytest.raises(ValueError, match=words):
        make().feed(events, [], [])


@needs_compiler
@pytest.mark.parametrize(
    ("option", "limits"),
    [
        ("large_segment_size_mb:8796093022208", {}),
        ("", {"capacity_bytes": 1 << 64}),
        ("", {"capacity_bytes": 80 << 30, "outside_bytes": 1 << 63}),
        ("per_process_memory_fraction:0.5", {"capacity_bytes": 1 << 63}),
    ],
)
def test_figures_beyond_64_bits_are_left_to_the_python(option, limits):
    assert compiled_allocator(AllocatorSettings.parse(option), **limits) is None


@needs_compiler
def test_an_allocator_that_made_nothing_has_no_blocks():
    assert compiled_allocator().block_bytes == []
    with pytest.raises(ValueError, match="allocation -2 is freed"):
        compiled_allocator().highest([512, ~0], later=-2)


@needs_compiler
def test_a_request_beyond_any_device_runs_out_of_memory():
    slow, fast = (make(capacity_bytes=MIB * MIB) for make in (CachingAllocator, compiled_allocator))
    for allocator in (slow, fast):
        allocator.feed([512, (1 << 63) - 1], [], [])
    assert fast.oom == slow.oom
    assert fast.oom.tried_bytes == 1 << 63


@needs_compiler
@pytest.mark.parametrize(
    "option", ["expandable_segments:True", "max_split_size_mb:25", "roundup_power2_divisions:4"]
)
def test_other_rules_are_left_to_the_python(option):
    assert compiled_allocator(AllocatorSettings.parse(option)) is None
    assert type(stream_allocator(AllocatorSettings.parse(option))) is CachingAllocator
    assert type(stream_allocator()) is compiled.CompiledAllocator


@needs_compiler
def test_addresses_in_use_are_left_to_the_python():
    for placement in (DeviceAddresses(), RisingAddresses()):
        assert compiled_allocator(placement=placement) is not None
        placement.place(2 * MIB)
        assert compiled_allocator(placement=placement) is None


@needs_compiler
def test_a_library_of_other_sources_is_not_used(monkeypatch):
    monkeypatch.setattr(library, "fingerprint", lambda: 7)
    library.library.cache_clear()
    try:
        assert not compiled.is_compiled()
        assert type(stream_allocator()) is CachingAllocator
    finally:
        monkeypatch.undo()
        library.library.cache_clear()


@needs_compiler
def test_it_is_built_from_its_sources(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "library.so")
    assert build.build() is None
    assert (tmp_path / "library.so").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["library.so"]


@pytest.mark.parametrize(
    ("compiler", "words"),
    [("no-such-compiler", "no-such-compiler: No such file"), ("false", "it failed without a word")],
)
def test_without_a_compiler_it_says_why(monkeypatch, tmp_path, compiler, words):
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "library.so")
    monkeypatch.setenv("CC", compiler)
    assert words in build.build()
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv("CC")
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    assert build.build() == "no C compiler among cc, gcc, clang"
