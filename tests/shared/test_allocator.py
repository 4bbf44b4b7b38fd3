import pytest

from trainmem.allocator import AllocatorOutOfMemoryError, AllocatorSettings, CachingAllocator, replay
from trainmem.units import GIB, KIB, MIB


def test_a_small_request_takes_512_bytes_of_a_2_mib_segment():
    result = replay([4, ~0])
    assert (result.allocated, result.reserved) == ([512, 0], [2 * MIB, 2 * MIB])


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (1 * MIB, 1 * MIB, 2 * MIB),
        (1 * MIB + 1, 1 * MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB - 512, 12 * MIB - 1 * MIB - 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
    ],
)
def test_segment_sizes_and_the_unsplit_rest(requested, block, segment):
    result = replay([requested])
    assert (result.block_bytes, result.reserved) == ([block], [segment])


def test_neighbours_merge_and_the_best_fit_is_taken():
    events = [4 * MIB, 4 * MIB, 4 * MIB, ~0, ~1, 8 * MIB]
    result = replay(events)
    assert result.reserved[-1] == 20 * MIB
    assert result.allocated[-1] == 12 * MIB


def test_idle_segments_are_given_back_before_memory_runs_out():
    result = replay([600 * MIB, ~0, 700 * MIB], capacity_bytes=1 * GIB)
    assert result.oom is None
    assert (result.retries, result.reserved[-1]) == (1, 700 * MIB)


def test_out_of_memory_stops_the_replay_and_speaks_as_pytorch_does():
    result = replay([600 * MIB, 700 * MIB], capacity_bytes=1 * GIB, outside_bytes=100 * MIB)
    assert result.oom is not None
    assert (result.oom.event_index, result.oom.free_bytes) == (1, 324 * MIB)
    assert len(result.allocated) == 1
    assert result.oom.line.startswith(
        "CUDA out of memory. Tried to allocate 700.00 MiB. GPU 0 has a total capacity of 1.00 GiB of which "
        "324.00 MiB is free. Including non-PyTorch memory, this process has 700.00 MiB memory in use. "
        "Of the allocated memory 600.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
        "unallocated."
    )


def test_step_by_step_use_is_the_same_allocator():
    allocator = CachingAllocator(capacity_bytes=64 * MIB)
    first = allocator.malloc(3 * MIB)
    second = allocator.malloc(3 * MIB)
    assert allocator.address(second) - allocator.address(first) == 3 * MIB
    allocator.free(first)
    assert allocator.allocated_bytes == 3 * MIB
    with pytest.raises(AllocatorOutOfMemoryError):
        allocator.malloc(60 * MIB)
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


@pytest.mark.parametrize("events", [[0], [512, ~0, ~0], [512, ~1]])
def test_impossible_events_are_refused(events):
    with pytest.raises(ValueError, match="events"):
        replay(events)


def test_expandable_segments_grow_by_pages():
    settings = AllocatorSettings.parse("expandable_segments:True")
    result = replay([11 * MIB, 11 * MIB, 100 * KIB], settings=settings)
    assert result.block_bytes == [11 * MIB, 11 * MIB, 100 * KIB]
    assert result.reserved == [20 * MIB, 40 * MIB, 42 * MIB]
