"""The allocator against real ones: what recorded runs did, event for event, to the byte."""

import pytest
from allocator_recordings import DEVICE_BYTES, RecordedAddresses, load_recording

from trainmem.allocator import AllocatorSettings, CachingAllocator, DeviceAddresses, replay

NAMES = ("amp", "ckpt", "annot", "oom", "expandable", "graph")
COUNTERS = {
    "annot": (3_253_837_824, 3_445_620_736),
    "oom": (4_345_588_736, 4_418_699_264),
    "graph": (175_671_296, 207_618_048),
}
PEAK_RESERVED = {"amp": 3_487_563_776, "ckpt": 3_363_831_808, "expandable": 3_359_637_504}


def settings_of(recording):
    return AllocatorSettings(expandable_segments=recording["expandable_segments"])


def replay_recording(recording, **options):
    return replay(
        recording["events"],
        settings=settings_of(recording),
        streams=recording["streams"],
        pools=recording["pools"],
        empty_cache_before=recording["empty_cache_before"],
        **options,
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_block_lies_where_the_real_allocator_put_it(name):
    recording = load_recording(name)
    allocator = CachingAllocator(settings_of(recording), placement=RecordedAddresses(recording))
    journal = allocator.keep_journal()
    streams, pools = recording["streams"], recording["pools"]
    addresses, live = [], {}
    for index, event in enumerate(recording["events"]):
        if index in recording["empty_cache_before"]:
            allocator.empty_cache()
        if event > 0:
            number = len(addresses)
            allocator.malloc(
                event,
                stream=streams[number] if streams else 0,
                pool=pools[number] if pools else 0,
            )
            addresses.append(allocator.address(number))
            live[number] = event
        else:
            allocator.free(~event)
            del live[~event]
    assert addresses == recording["addresses"]
    assert [list(action[:4]) for action in journal] == recording["segments"]
    blocks = sorted(
        [allocator.address(number), allocator.block_bytes[number], requested]
        for number, requested in live.items()
    )
    assert blocks == recording["blocks_at_end"]
    assert allocator.reserved_bytes == recording["reserved_at_end"]
    assert allocator.allocated_bytes == sum(size for _, size, _ in blocks)


@pytest.mark.parametrize("name", NAMES)
def test_the_peaks_are_the_counters(name):
    recording = load_recording(name)
    result = replay_recording(recording, placement=RecordedAddresses(recording))
    assert result.peak_reserved_bytes == PEAK_RESERVED.get(name, COUNTERS.get(name, (0, 0))[1])
    if name in COUNTERS:
        assert result.peak_allocated_bytes == COUNTERS[name][0]


@pytest.mark.parametrize("name", NAMES)
def test_predicted_addresses_break_every_tie_as_the_device_did(name):
    recording = load_recording(name)
    real = replay_recording(recording, placement=RecordedAddresses(recording))
    # These scripts put three segments on the device before the first kernel runs there.
    predicted = replay_recording(recording, placement=DeviceAddresses(segments_before_kernels=3))
    assert predicted.allocated == real.allocated
    assert predicted.reserved == real.reserved


def test_the_allocation_that_fails_is_the_recorded_one():
    recording = load_recording("oom")
    failure = recording["out_of_memory"]
    events = [*recording["events"][: failure["event_index"]], failure["size"]]
    outside = DEVICE_BYTES - failure["free"] - recording["reserved_at_end"]
    result = replay(
        events,
        settings=AllocatorSettings.parse("per_process_memory_fraction:0.03"),
        capacity_bytes=DEVICE_BYTES,
        outside_bytes=outside,
        empty_cache_before=recording["empty_cache_before"],
    )
    assert result.oom is not None
    assert result.oom.event_index == failure["event_index"]
    assert result.oom.tried_bytes == failure["size"]
    assert result.oom.free_bytes == failure["free"]
    assert "Tried to allocate 192.00 MiB. GPU 0 has a total capacity of 139.80 GiB" in result.oom.line
    assert "4.19 GiB allowed; " in result.oom.line
