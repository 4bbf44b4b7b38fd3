"""Random streams of events through the fast allocator and through the plain reference, setting by setting."""

import random

import pytest
from allocator_reference import Reference
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem.allocator import AllocatorOutOfMemoryError, AllocatorSettings, CachingAllocator, replay
from trainmem.units import KIB, MIB

OPTIONS = {
    "defaults": "",
    "expandable": "expandable_segments:True",
    "max_split": "max_split_size_mb:25",
    "max_split and rounding": "max_split_size_mb:21,max_non_split_rounding_mb:30",
    "expandable and max_split": "expandable_segments:True,max_split_size_mb:32",
    "power2": "roundup_power2_divisions:4",
    "power2 by size": "roundup_power2_divisions:[1:8,16:2,>:1]",
    "garbage collection": "garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
    "cap": "per_process_memory_fraction:0.4",
    "large segments": "large_segment_size_mb:32",
    "expandable and large segments": "expandable_segments:True,large_segment_size_mb:30",
}


def random_size(chance):
    exact = [512, MIB, 2 * MIB, 10 * MIB, 19 * MIB, 20 * MIB, 21 * MIB, 40 * MIB]
    ranges = [(1, 4 * KIB), (4 * KIB, MIB + 1), (MIB, 12 * MIB), (12 * MIB, 90 * MIB)]
    return chance.choice([chance.choice(exact), *(chance.randint(*limits) for limits in ranges)])


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
@settings(max_examples=30, deadline=None)
@given(
    chance=st.integers(0, 2**32).map(random.Random),
    steps=st.integers(1, 150),
    capacity=st.sampled_from([128 * MIB, 256 * MIB, 512 * MIB, 2048 * MIB]),
)
def test_the_fast_allocator_follows_the_plain_rules(option, chance, steps, capacity):
    chosen = AllocatorSettings.parse(option)
    fast, plain = CachingAllocator(chosen, capacity_bytes=capacity), Reference(chosen, capacity)
    live = []
    for _ in range(steps):
        size = random_size(chance)
        # Two streams and, rarely, a private pool; most requests go to the default.
        stream, pool = chance.choice([(0, 0)] * 5 + [(1, 0), (2, 1)])
        number = len(fast.block_bytes)
        if plain.malloc(number, size, stream, pool):
            assert fast.malloc(size, stream=stream, pool=pool) == number
            assert fast.address(number) == plain.live[number].address
            assert fast.block_bytes[number] == plain.live[number].size
            live.append(number)
            frees = chance.choice([0, 1, 1, 2])
        else:
            with pytest.raises(AllocatorOutOfMemoryError):
                fast.malloc(size, stream=stream, pool=pool)
            frees = len(live) // 2
        for _ in range(min(frees, len(live))):
            freed = live.pop(chance.randrange(len(live)))
            plain.free(freed)
            fast.free(freed)
        if chance.random() < 0.02:
            plain.release_idle()
            fast.empty_cache()
        assert fast.allocated_bytes == plain.allocated
        assert fast.reserved_bytes == plain.reserved
    assert fast.retries == plain.retries


def test_more_segments_than_addresses_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit into a process's address space"):
        replay([1 << 47, ~0])
