import pytest

from trainmem.allocator import (
    AllocatorOutOfMemoryError,
    AllocatorSettings,
    CachingAllocator,
    check_capacity,
    replay,
)
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


def test_streams_do_not_share_blocks():
    alone = replay([4 * MIB, ~0, 4 * MIB])
    apart = replay([4 * MIB, ~0, 4 * MIB], streams=[0, 1])
    assert (alone.reserved[-1], apart.reserved[-1]) == (20 * MIB, 40 * MIB)


def test_a_block_that_another_stream_uses_stays_closed():
    allocator = CachingAllocator()
    first = allocator.malloc(16 * MIB)
    allocator.request_free(first)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 16 * MIB)
    second = allocator.malloc(16 * MIB)
    assert allocator.reserved_bytes == 32 * MIB
    place = allocator.address(first)
    allocator.finish_free(first)
    assert allocator.address(allocator.malloc(16 * MIB)) == place
    allocator.free(second)
    with pytest.raises(ValueError, match="is not live"):
        allocator.request_free(second)


def test_running_short_waits_for_the_other_stream():
    allocator = CachingAllocator(capacity_bytes=64 * MIB)
    first = allocator.malloc(40 * MIB)
    allocator.request_free(first)
    allocator.malloc(60 * MIB)
    assert allocator.reserved_bytes == 60 * MIB
    allocator.finish_free(first)
    assert allocator.reserved_bytes == 60 * MIB


def test_a_private_pool_keeps_its_segments_until_its_graph_is_gone():
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(16 * MIB, pool=1))
    allocator.empty_cache()
    assert allocator.reserved_bytes == 16 * MIB
    allocator.malloc(16 * MIB)
    assert allocator.reserved_bytes == 32 * MIB
    allocator.release_pool(1)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 16 * MIB


def test_the_message_counts_idle_private_memory_as_allocated():
    events = [16 * MIB, ~0, 64 * MIB]
    result = replay(events, pools=[1, 0], capacity_bytes=64 * MIB)
    assert result.oom is not None
    assert (
        "Of the allocated memory 16.00 MiB is allocated by PyTorch, with 16.00 MiB allocated in private "
        "pools (e.g., CUDA Graphs), and 0 bytes is reserved" in result.oom.line
    )


def test_a_capture_may_not_give_memory_back():
    events = [40 * MIB, ~0, 40 * MIB]
    assert replay(events, capacity_bytes=64 * MIB).oom is None
    assert replay(events, pools=[0, 1], capacity_bytes=64 * MIB).oom is not None


def test_empty_cache_between_events():
    result = replay([16 * MIB, ~0, 32 * MIB], empty_cache_before=[2])
    assert result.reserved == [16 * MIB, 16 * MIB, 32 * MIB]


def test_the_peak_of_requests_is_before_rounding():
    assert replay([100, 1000, ~0, 2 * MIB + 1]).peak_requested_bytes == 2 * MIB + 1001


def test_fragmentation_is_told_from_too_little_memory():
    # A small block in a large segment keeps it from being given back, and the next request is just too large.
    events = [100 * MIB, ~0, 10 * MIB, 95 * MIB]
    verdict = check_capacity(events, capacity_bytes=180 * MIB)
    assert (verdict.answer, verdict.spare_bytes) == ("fits_with_expandable_segments", 60 * MIB)
    assert verdict.oom is not None
    assert verdict.oom.mechanism.endswith("fragmentation")

    verdict = check_capacity(events, capacity_bytes=200 * MIB)
    assert (verdict.answer, verdict.spare_bytes, verdict.expandable) == ("fits", 4 * MIB, None)

    verdict = check_capacity([300 * MIB], capacity_bytes=220 * MIB)
    assert (verdict.answer, verdict.spare_bytes) == ("out_of_memory", None)
    assert verdict.oom is not None
    assert verdict.oom.mechanism.startswith("the device leaves 220.00 MiB")


def test_the_cap_is_named_when_it_is_what_limits():
    settings = AllocatorSettings(per_process_memory_fraction=0.5)
    result = replay([100 * MIB, 100 * MIB], settings=settings, capacity_bytes=300 * MIB)
    assert result.oom is not None
    assert "150.00 MiB allowed; " in result.oom.line
    assert result.oom.mechanism.startswith("the per-process cap leaves 50.00 MiB")


def test_a_cap_needs_a_capacity():
    with pytest.raises(ValueError, match=r"per_process_memory_fraction: 0\.5"):
        replay([1], settings=AllocatorSettings(per_process_memory_fraction=0.5))
