"""Replayed events against the CUDA counters that were read when the examples were recorded."""

from __future__ import annotations

import pickle

import pytest
import snapshot_files as make
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_files import MIB, Tape, block, device, segment, snap

from trainmem.allocator import CachingAllocator
from trainmem.allocator.export import write_snapshot
from trainmem.snapshot.extents import Extents
from trainmem.snapshot.reserved import reserved_at_start, segment_events

COUNTERS = {
    # name: (max_memory_allocated where the script did not reset it, max_memory_reserved, allocated at the dump)
    "amp": (None, 3_487_563_776, 68_157_952),
    "ckpt": (None, 3_363_831_808, 69_206_528),
    "expandable": (None, 3_359_637_504, 68_157_952),
    "ring": (None, 3_487_563_776, 68_157_952),
    "oom": (4_345_588_736, 4_418_699_264, 34_603_520),
    "annot": (3_253_837_824, 3_445_620_736, 1_572_481_024),
    "graph": (175_671_296, 207_618_048, 170_165_760),
    "allstacks": (None, 3_487_563_776, 68_157_952),
}


@pytest.mark.parametrize("name", COUNTERS)
def test_the_counters_to_the_byte(name: str) -> None:
    found = device(make.example_bytes(name))
    allocated, reserved, at_end = COUNTERS[name]
    if allocated is not None:
        assert found.peak_allocated_bytes == allocated
    assert found.peak_reserved_bytes == reserved
    assert found.curves.allocated[-1] == at_end
    assert found.replay.is_exact is (name != "ring")


def test_an_overflowed_recording_is_followed_to_the_byte() -> None:
    """The last 2,000 events of the same run: rests of blocks whose allocation is gone show in their surroundings."""
    whole, cut = device(make.example_bytes("amp")), device(make.example_bytes("ring"))
    count = len(cut.curves.allocated)
    assert list(cut.curves.allocated) == list(whole.curves.allocated[-count:])


@pytest.mark.parametrize("name", ["amp", "ckpt", "annot"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_recording_that_began_late(name: str, share: float) -> None:
    content = pickle.loads(make.example_bytes(name))
    whole = device(content)
    trace = content["device_traces"][0]
    first = int(len(trace) * share)
    content["device_traces"] = [trace[first:]]
    late = device(content)
    truth = whole.curves.allocated[first:]
    errors = [abs(a - b) for a, b in zip(late.curves.allocated, truth, strict=True)]
    assert max(errors) <= 0.01 * max(truth)
    assert list(late.curves.reserved) == list(whole.curves.reserved[first:])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.integers(1, 3 * MIB), st.integers(MIB, 40 * MIB), st.integers(-30, -1)),
        min_size=1,
        max_size=120,
    ),
    st.integers(0, 120),
)
def test_any_run_of_the_allocator(steps: list[int], cut: int) -> None:
    """What `trainmem.allocator` counts is what a snapshot of it replays to, whole or begun late."""
    events: list[int] = []
    live: list[int] = []
    number = 0
    for step in steps:
        if step > 0:
            events.append(step)
            live.append(number)
            number += 1
        elif live:
            events.append(~live.pop(step % len(live)))
    if not events:
        return
    allocator = CachingAllocator()
    allocated: list[int] = []
    allocator.feed(events, allocated, [])
    content = pickle.loads(write_snapshot(events))
    found = device(content)
    assert found.peak_allocated_bytes == max(allocated)
    assert found.curves.allocated[-1] == allocated[-1]
    assert found.replay.is_exact
    trace = content["device_traces"][0]
    content["device_traces"] = [trace[min(cut, len(trace)) :]]
    late = device(content)
    assert late.curves.allocated[-1] == allocated[-1]
    seeds = late.replay.unmatched_frees
    assert late.peak_allocated_bytes <= max(allocated)
    assert late.peak_allocated_bytes >= min(max(allocated), allocated[-1]) - seeds * MIB


def test_the_unsplit_rest_counts_with_its_block() -> None:
    tape = Tape(segment=0)
    tape.add("segment_alloc", make.BASE, 20 * MIB)
    tape.alloc(19 * MIB + 4096)
    found = device(snap(tape))
    assert found.peak_allocated_bytes == 20 * MIB
    assert found.requested_at_peak_bytes == 19 * MIB + 4096


def test_settings_change_what_is_split() -> None:
    tape = Tape(segment=0)
    tape.add("segment_alloc", make.BASE, 256 * MIB)
    tape.alloc(200 * MIB)
    plain = snap(tape, allocator_settings={"max_split_size": -1})
    unsplit = snap(tape, allocator_settings={"max_split_size": 128 * MIB})
    assert device(plain).peak_allocated_bytes == 200 * MIB
    assert device(unsplit).peak_allocated_bytes == 256 * MIB
    rounding = snap(tape, allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:2"})
    assert device(rounding).peak_allocated_bytes == 256 * MIB


def test_without_segments_sizes_are_rounded_requests_and_it_says_so() -> None:
    tape = Tape(segment=0)
    tape.alloc(1000)
    found = device(snap(tape))
    assert found.peak_allocated_bytes == 1024
    assert not found.replay.is_exact


@pytest.mark.parametrize("name", ["amp", "expandable", "graph"])
def test_events_backwards_still_add_up(name: str) -> None:
    content = pickle.loads(make.example_bytes(name))
    content["device_traces"][0].reverse()
    assert not device(content).replay.is_exact


def test_ranges_that_overlap_where_events_contradict_each_other() -> None:
    extents = Extents()
    extents.add_segment(0, 100)
    extents.add_segment(50, 50)
    extents.remove_segment(50, 50)
    extents.unmap(0, 100)
    assert extents.size_at == {}


def test_free_ranges_merge_within_their_segment_only() -> None:
    extents = Extents()
    extents.add_segment(0, 100)
    extents.add_segment(100, 50)
    extents.occupy([(10, 20), (60, 40)])
    assert extents.size_at == {0: 10, 30: 30, 100: 50}
    extents.free(60, 100)
    assert extents.size_at == {0: 10, 30: 70, 100: 50}
    extents.unmap(40, 20)
    assert extents.size_at == {0: 10, 30: 10, 60: 40, 100: 50}
    extents.remove_segment(100, 50)
    assert 100 not in extents.size_at


def test_segments_are_played_backwards() -> None:
    tape = Tape(segment=0)
    tape.add("segment_alloc", make.BASE + (1 << 30), 2 * MIB)
    tape.add("segment_free", make.BASE, 20 * MIB)
    end = segment(make.BASE + (1 << 30), [block(2 * MIB, "inactive")])
    other = segment(make.BASE + (1 << 31), [block(4 * MIB)])
    analysis = make.understood(snap(tape, segments=[end, other]))
    trace = analysis.snapshot.traces[0]
    before = reserved_at_start(trace, segment_events(trace), analysis.snapshot.segments, is_host=False)
    assert before.segments == [(make.BASE, 20 * MIB), (make.BASE + (1 << 31), 4 * MIB)]
    assert before.total_bytes == 24 * MIB
    assert list(analysis.devices[0].curves.reserved) == [24 * MIB, 26 * MIB, 6 * MIB]
