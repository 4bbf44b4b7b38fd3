import io
import pickle
import pickletools

import pytest
from allocator_recordings import RecordedAddresses, load_recording

from trainmem.allocator import AllocatorSettings, Frame, Region, replay, write_snapshot
from trainmem.snapshot.analysis import analyse
from trainmem.snapshot.reader import read_snapshot
from trainmem.units import GIB, MIB

NAMES = ("amp", "annot", "expandable", "graph")


class Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise AssertionError(f"the file names {module}.{name}")


def load(data):
    return Plain(io.BytesIO(data)).load()


def export(name, **options):
    recording = load_recording(name)
    data = write_snapshot(
        recording["events"],
        settings=AllocatorSettings(expandable_segments=recording["expandable_segments"]),
        streams=recording["streams"],
        pools=recording["pools"],
        empty_cache_before=recording["empty_cache_before"],
        placement=RecordedAddresses(recording),
        **options,
    )
    return recording, data


@pytest.mark.parametrize("name", NAMES)
def test_the_file_says_what_the_recorded_one_says(name):
    recording, data = export(name)
    snapshot = load(data)
    (trace,) = snapshot["device_traces"]
    allocations = [entry["addr"] for entry in trace if entry["action"] == "alloc"]
    assert allocations == recording["addresses"]
    segments = [
        [entry["action"], entry["addr"], entry["size"], entry["stream"]]
        for entry in trace
        if entry["action"].startswith("segment")
    ]
    assert segments == recording["segments"]
    blocks = [
        [block["address"], block["size"], block["requested_size"]]
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    assert sorted(blocks) == recording["blocks_at_end"]
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == recording["reserved_at_end"]


@pytest.mark.parametrize("name", NAMES)
def test_blocks_fill_their_segments_in_order(name):
    _, data = export(name)
    for segment in load(data)["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]


def test_the_pickle_is_protocol_4_and_names_no_class():
    _, data = export("graph")
    opcodes = {opcode.name: argument for opcode, argument, _ in pickletools.genops(data)}
    assert opcodes["PROTO"] == 4
    assert not opcodes.keys() & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "INST", "OBJ"}


def test_stacks_regions_and_time_are_kept():
    stack = (Frame("linear", "model.py", 7), Frame("forward"))
    data = write_snapshot(
        [512, 3 * MIB, ~0],
        stacks=[stack, stack],
        regions=[Region("forward", 0, 2), Region("backward", 2, 3)],
    )
    snapshot = load(data)
    trace = snapshot["device_traces"][0]
    allocation = next(entry for entry in trace if entry["action"] == "alloc")
    assert allocation["frames"] == [
        {"name": "linear", "filename": "model.py", "line": 7},
        {"name": "forward", "filename": "trainmem", "line": 0},
    ]
    stamps = [(stamp["stage"], stamp["name"]) for stamp in snapshot["external_annotations"]]
    assert stamps == [("START", "forward"), ("END", "forward"), ("START", "backward"), ("END", "backward")]
    ends_forward = snapshot["external_annotations"][1]["time_us"]
    in_forward = [entry["action"] for entry in trace if entry["time_us"] < ends_forward]
    assert in_forward == ["segment_alloc", "alloc", "segment_alloc", "alloc"]


def test_running_out_of_memory_ends_the_trace():
    events = [600 * MIB, 700 * MIB, ~0]
    snapshot = load(write_snapshot(events, capacity_bytes=1 * GIB))
    last = snapshot["device_traces"][0][-1]
    assert (last["action"], last["size"], last["device_free"]) == ("oom", 700 * MIB, 424 * MIB)
    assert "addr" not in last


@pytest.mark.torch
@pytest.mark.parametrize("name", NAMES)
def test_memory_viz_opens_the_file(name):
    memory_viz = pytest.importorskip("torch.cuda._memory_viz")
    recording, data = export(name)
    snapshot = pickle.loads(data)
    summary = memory_viz.segsum(snapshot)
    assert f"segments: {len(snapshot['segments'])}" in summary
    assert memory_viz.trace(snapshot).count(" = ") >= len(recording["addresses"])
    assert "snapshot.pickle" in memory_viz.trace_plot(snapshot)
    assert "snapshot.pickle" in memory_viz.segment_plot(snapshot)


@pytest.mark.parametrize("name", ["annot", "expandable"])
def test_our_viewer_reads_the_peaks_that_the_replay_predicts(name):
    recording, data = export(name)
    result = replay(
        recording["events"],
        settings=AllocatorSettings(expandable_segments=recording["expandable_segments"]),
        empty_cache_before=recording["empty_cache_before"],
        placement=RecordedAddresses(recording),
    )
    (device,) = analyse(read_snapshot(data)).devices
    assert device.peak_allocated_bytes == result.peak_allocated_bytes
    assert device.peak_reserved_bytes == result.peak_reserved_bytes


def test_the_file_holds_the_predicted_counters():
    events = load_recording("amp")["events"]
    result = replay(events)
    snapshot = load(write_snapshot(events))
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == result.reserved[-1]
    assert sum(segment["allocated_size"] for segment in snapshot["segments"]) == result.allocated[-1]
