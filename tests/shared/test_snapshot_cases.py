"""What users of other viewers ran into (issue trackers of PyTorch, torchtitan, NeMo and others), one test
each.
"""

from __future__ import annotations

import base64
import gzip
import json
import pickle
from typing import Any

import pytest
import snapshot_files as make
from snapshot_files import (
    BACKWARD,
    BASE,
    ENGINE,
    FORWARD,
    MIB,
    Tape,
    block,
    device,
    segment,
    snap,
    understood,
)

from trainmem.snapshot.document import document_of
from trainmem.snapshot.notes import notes_of
from trainmem.snapshot.page import render_page
from trainmem.snapshot.reader import SnapshotRejected, read_snapshot
from trainmem.snapshot.verdict import verdict_of


def words(content: Any) -> str:
    return " ".join(notes_of(understood(content)))


@pytest.mark.parametrize("protocol", range(6))
def test_every_pickle_protocol(protocol: int) -> None:
    """pytorch#183842, torchtitan#3375: Python 3.14 writes protocol 5, and the page stays blank."""
    content = pickle.loads(make.example_bytes("graph"))
    assert understood(content, protocol).devices[0].peak_allocated_bytes == 175_671_296


def test_every_wrapping(tmp_path: Any) -> None:
    """gzip, JSON (with an editor's UTF-8 mark ), PyTorch's own HTML page (padded with NULs), a list of segments."""
    data = make.example_bytes("graph")
    content = pickle.loads(data)
    padded = data + b"\0" * (3 - len(data) % 3)
    page = (
        "<!DOCTYPE html><html><script>const local_files = "
        + json.dumps([{"name": "snapshot.pickle", "base64": base64.b64encode(padded).decode()}])
        + "</script></html>"
    ).encode()
    plain = json.dumps(content).encode()
    marked = b"\xef\xbb\xbf" + plain
    for wrapped in (gzip.compress(data), plain, marked, page, gzip.compress(page), padded):
        assert understood(wrapped).devices[0].peak_allocated_bytes == 175_671_296
    assert understood(content["segments"]).devices[0].peak_allocated_bytes == 170_165_760


def test_addresses_beyond_8_signed_bytes() -> None:
    """pytorch#115234 (nine-byte integers) and #170645 (an XPU address near 2^64)."""
    for base in ((1 << 63) + 4096, 18446720620317114368):
        tape = Tape(base=base, segment=64 * MIB)
        tape.alloc(8 * MIB)
        end = segment(
            base, [block(8 * MIB, address=base), block(56 * MIB, "inactive", address=base + 8 * MIB)]
        )
        analysis = understood(snap(tape, segments=[end]))
        first = analysis.devices[0]
        make.check(first)
        assert (first.peak_allocated_bytes, first.peak_reserved_bytes) == (8 * MIB, 64 * MIB)
        held = document_of(analysis)["devices"][0]["fragmentation"]["held_segments"]
        assert held[0]["address"] == f"0x{base:x}"


def test_the_first_half_is_gone() -> None:
    """pytorch#155889, #129674: a ring buffer that overflowed; what is known is counted from the first event
    on.
    """
    tape = make.training(4)
    half = len(tape.events) // 2
    late = snap(tape.events[half:])
    whole = device(snap(tape))
    cut = device(late)
    assert cut.replay.unmatched_frees > 0
    assert "before the first event is not in the file" in words(late)
    assert cut.curves.allocated[-1] <= whole.curves.allocated[-1]


def test_overflow_and_a_late_start_are_told_apart() -> None:
    """pytorch#179276: flags where the file has them, a round length where it has not, and no claim otherwise."""
    tape = make.training(2)
    late = tape.events[40:]
    assert "the ring buffer overflowed and kept" in words(
        snap(late, allocator_settings={"trace_alloc_overflowed": True})
    )
    assert "recording began after" in words(snap(late, allocator_settings={"trace_alloc_overflowed": False}))
    assert "or its ring buffer overflowed" in words(snap(late))
    assert "very likely overflowed (max_entries=2000)" in words(make.example_bytes("ring"))
    late_flagged = snap(late, allocator_settings={"trace_alloc_max_entries": len(late)})
    assert "the ring buffer overflowed and kept" in words(late_flagged)


def test_a_free_without_its_allocation_is_not_an_allocation() -> None:
    """pytorch#179489."""
    tape = Tape(segment=0)
    tape.sizes[BASE] = 3 * MIB
    tape.free(BASE)
    found = device(snap(tape, segments=[]))
    assert list(found.curves.allocated) == [3 * MIB, 0, 0]
    assert found.peak_instant == 0
    only_completed = device(snap(tape.events[1:]))
    assert max(only_completed.curves.allocated) == 0


def test_blocks_older_than_the_recording_are_shown() -> None:
    """pytorch#179491, #97590: active at the end, and in no event."""
    tape = Tape(segment=0)
    addr = tape.base + 64 * MIB
    tape.sizes[addr] = MIB * 2
    tape.add("alloc", addr, 2 * MIB, FORWARD)
    ghost = segment(BASE, [block(64 * MIB, address=BASE), block(2 * MIB, address=addr)])
    found = device(snap(tape, segments=[ghost]))
    assert found.replay.unfreed_before == 1
    assert found.peak_allocated_bytes == 66 * MIB
    assert found.call_sites_at_peak[0].site == "allocated before the recording"


def test_missing_frames_are_explained() -> None:
    """pytorch#124784: frames empty, the key missing, or none in the file; the three causes are named."""
    bare = [{"action": "alloc", "addr": BASE, "size": 512, "stream": 0}]
    text = words(snap(bare, segments=[segment(BASE, [block(512, frames=[])])]))
    for cause in ("context=None", "older than the recording", "own threads"):
        assert cause in text


def test_a_dump_that_never_got_written() -> None:
    """pytorch#108208, torchtitan#2991: the unwinder fails and leaves a file of 0 bytes; or all frames are
    '??'.
    """
    with pytest.raises(SnapshotRejected, match="it is empty"):
        read_snapshot(b"")
    tape = Tape()
    tape.alloc(MIB, [make.frame("??", "??", 0)])
    assert "unwinder failed" in words(snap(tape))


def test_cpp_frames_are_folded() -> None:
    """torchtitan#3628: four frames of five are C++ when stacks='all'."""
    analysis = understood(make.example_bytes("allstacks"))
    document = document_of(analysis)["devices"][0]
    python_only = document_of(understood(make.example_bytes("amp")))["devices"][0]
    named = {site["site"] for site in document["call_sites_at_peak"]}
    assert {site["site"] for site in python_only["call_sites_at_peak"]} - named == {
        "autograd engine, no Python frames"
    }
    stack = document["call_sites_at_peak"][0]["stack"]
    assert any(line.startswith("(") and line.endswith("C++ frames)") for line in stack)
    assert not any("::" in line for line in stack)
    assert "C++ and are folded" in " ".join(notes_of(analysis))
    assert document["buckets_at_peak"] == python_only["buckets_at_peak"]


def test_recording_was_never_on() -> None:
    """NeMo Megatron-Bridge#3487: empty traces; the segments are still shown, and why there is no timeline."""
    there = segment(BASE, [block(5 * MIB, address=BASE), block(MIB, "inactive")])
    analysis = understood(snap([], segments=[there]))
    assert analysis.devices[0].peak_allocated_bytes == 5 * MIB
    assert "recording was not on" in " ".join(notes_of(analysis))
    assert "when the snapshot was taken" in " ".join(verdict_of(analysis))
    assert "recording was not on" in words(snap([]))
    assert "recording was not on" in words({"segments": [], "device_traces": []})
    assert verdict_of(understood(snap([]))) == ["Nothing was allocated."]


def test_private_pools_count() -> None:
    """pytorch#177289, #180515: blocks of a CUDA graph's pool are in the timeline, and reserved is an
    envelope.
    """
    found = device(make.example_bytes("graph"))
    assert found.peak_allocated_bytes == 175_671_296
    assert found.fragmentation.private_pool_bytes > 0
    assert all(r >= a for r, a in zip(found.curves.reserved, found.curves.allocated, strict=True))
    assert "private pools" in words(make.example_bytes("graph"))


def test_segments_that_do_not_hold_the_trace() -> None:
    content = pickle.loads(make.example_bytes("ring"))
    assert "do not hold its trace" not in words(content)
    del content["segments"][1::2]
    assert "843.52 MiB more are allocated than reserved" in words(content)


def test_unknown_keys_and_actions_at_every_level() -> None:
    """pytorch#177717, mosaic#15: a new key breaks strict parsers."""
    content = pickle.loads(make.example_bytes("graph"))
    content["new"] = {"anything": [1]}
    for trace in content["device_traces"]:
        for event in trace:
            event["novel"] = object.__name__
            for frame in event.get("frames", ()):
                frame["fx_node_op"] = "call_function"
        trace.insert(5, {"action": "teleport", "addr": 1, "size": 1 << 40, "stream": 0})
    for part in content["segments"]:
        part["novel"] = None
        for inner in part["blocks"]:
            inner["novel"] = (1, 2)
    analysis = understood(content)
    assert analysis.devices[0].peak_allocated_bytes == 175_671_296
    assert "1 events of unknown kinds were skipped: teleport" in " ".join(notes_of(analysis))


def test_expandable_segments_map_and_unmap() -> None:
    """The reserved curve follows segment_map and segment_unmap, in the middle of a segment too."""
    tape = Tape(segment=0)
    tape.add("segment_map", BASE, 20 * MIB)
    tape.add("segment_map", BASE + 20 * MIB, 20 * MIB)
    first = tape.alloc(30 * MIB)
    tape.free(first)
    tape.add("segment_unmap", BASE + 8 * MIB, 4 * MIB)
    tape.top = BASE
    tape.alloc(8 * MIB)
    end = [
        segment(BASE, [block(8 * MIB, address=BASE)], is_expandable=True),
        segment(BASE + 12 * MIB, [block(28 * MIB, "inactive", address=BASE + 12 * MIB)], is_expandable=True),
    ]
    found = device(snap(tape, segments=end, allocator_settings={"expandable_segments": True}))
    assert list(found.curves.reserved) == [0, *(size * MIB for size in (20, 40, 40, 40, 40, 36, 36))]
    assert found.replay.is_exact
    real = device(make.example_bytes("expandable"))
    assert real.peak_reserved_bytes == 3_359_637_504


def test_memory_of_a_graph_is_kept_apart_when_memory_ran_out() -> None:
    """pytorch#121932: free blocks of a graph's pool look as if they could have been used."""
    tape = Tape(segment=0)
    tape.add("segment_alloc", BASE, 40 * MIB)
    tape.add("segment_alloc", BASE + (1 << 30), 100 * MIB)
    tape.alloc(30 * MIB, FORWARD)
    tape.add("oom", 0, 50 * MIB, FORWARD, device_free=MIB)
    del tape.events[-1]["addr"]
    pool = segment(
        BASE + (1 << 30), [block(100 * MIB, "inactive", address=BASE + (1 << 30))], segment_pool_id=(0, 1)
    )
    rest = segment(
        BASE, [block(30 * MIB, address=BASE), block(10 * MIB, "inactive", address=BASE + 30 * MIB)]
    )
    found = device(snap(tape, segments=[rest, pool]))
    failure = found.failures[0]
    assert failure.largest_free_block_bytes == 10 * MIB
    assert failure.private_pool_free_bytes == 100 * MIB
    assert failure.would_have_fitted_bytes == 10 * MIB


def test_totals_at_every_instant() -> None:
    """pytorch#120339: the total is known after each allocation, and the page can show it at any of them."""
    tape = Tape()
    for size in (MIB, 2 * MIB, 3 * MIB):
        tape.alloc(size)
    assert list(device(snap(tape)).curves.allocated) == [0, 0, MIB, 3 * MIB, 6 * MIB]


def test_named_regions_that_do_not_match_up() -> None:
    """pytorch#123408: a START without END, an END without START, overlaps, 1,700 markers of the compiler."""
    tape = make.training(2)
    middle = tape.events[len(tape.events) // 2]["time_us"]
    marks = [
        {"stage": "END", "name": "backward", "device": 0, "time_us": 5},
        {"stage": "START", "name": "forward", "device": 0, "time_us": middle},
        {"stage": "START", "name": "optimizer", "device": 9, "time_us": 1},
        *(
            {"stage": stage, "name": "pad_mm_benchmark (dynamo_timed)", "device": 0, "time_us": middle + n}
            for n in range(850)
            for stage in ("START", "END")
        ),
    ]
    plain, marked = device(snap(tape)), device(snap(tape, external_annotations=marks))
    assert marked.timetable == plain.timetable


def test_annotate_events_change_no_total() -> None:
    """pytorch#190575: on a live and on a freed address."""
    tape = Tape()
    live = tape.alloc(MIB)
    gone = tape.alloc(2 * MIB)
    tape.free(gone)
    before = device(snap(tape))
    tape.add("annotate", live, 1 << 40, user_metadata="note")
    tape.add("annotate", gone, 1 << 40, user_metadata="note")
    after = device(snap(tape))
    assert after.peak_allocated_bytes == before.peak_allocated_bytes
    assert after.curves.allocated[-1] == MIB


def test_pinned_host_memory() -> None:
    """pytorch#182407: host_segments and host_traces."""
    host = Tape(segment=0)
    held = host.alloc(4 * MIB, [make.frame("pin", "data.py")])
    host.alloc(8 * MIB)
    host.free(held)
    gpu = Tape()
    gpu.alloc(MIB)
    content = snap(
        gpu, host_traces=[host.events], host_segments=[{"address": host.base, "size": 12 * MIB, "blocks": []}]
    )
    document = document_of(understood(content))
    assert [part["peak_allocated_bytes"] for part in document["devices"]] == [MIB]
    assert [part["peak_allocated_bytes"] for part in document["host"]] == [12 * MIB]


def test_the_table_sums_to_the_peak() -> None:
    """Megatron-Bridge#5150: 120 B at the peak, of which only 20 were in the table."""
    tape = Tape(segment=0)
    addr = BASE + 100 * MIB
    tape.sizes[addr] = 20 * MIB
    tape.add("alloc", addr, 20 * MIB, FORWARD)
    tape.free(addr, FORWARD)
    persistent = segment(BASE, [block(100 * MIB, address=BASE), block(20 * MIB, "inactive", address=addr)])
    found = device(snap(tape, segments=[persistent]))
    assert found.peak_allocated_bytes == 120 * MIB
    assert [site.bytes for site in found.call_sites_at_peak] == [100 * MIB, 20 * MIB]


def oom(free: int, *, size: int = 600 * MIB) -> dict[str, Any]:
    tape = make.training(1)
    tape.add("oom", 0, size, FORWARD, device_free=free)
    del tape.events[-1]["addr"]
    return snap(tape)


def test_memory_outside_pytorch_is_mentioned() -> None:
    """pytorch#150880, #37250: nvidia-smi shows more than the snapshot."""
    assert "nvidia-smi shows more" in words(oom(MIB))


def test_out_of_memory_events() -> None:
    """Lightning#16901, verl#7770, NeMo-RL#4227, lmms-engine#174: no addr, device_free, and no allocation
    follows.
    """
    found = device(oom(64 * MIB))
    failure = found.failures[0]
    assert (failure.requested_bytes, failure.device_free_bytes) == (600 * MIB, 64 * MIB)
    assert failure.allocated_bytes == found.curves.allocated[-1]
    text = " ".join(verdict_of(understood(oom(64 * MIB))))
    assert text.startswith("Memory ran out")
    assert "600.00 MiB were asked for" in text
    assert "64.00 MiB free on the device" in text
    assert "a limit of the process" in " ".join(verdict_of(understood(make.example_bytes("oom"))))


def test_fragmentation_is_measured() -> None:
    """pytorch#29554: a segment of 20 MiB that a kilobyte holds."""
    tape = Tape(segment=20 * MIB)
    tape.top = BASE + 10 * MIB
    tape.alloc(1024)
    blocks = [
        block(10 * MIB, "inactive", address=BASE),
        block(1024, address=BASE + 10 * MIB),
        block(10 * MIB - 1024, "inactive", address=BASE + 10 * MIB + 1024),
    ]
    found = device(snap(tape, segments=[segment(BASE, blocks)]))
    held = found.fragmentation.held[0]
    assert (held.size_bytes, held.used_bytes, held.largest_free_bytes) == (20 * MIB, 1024, 10 * MIB)
    assert found.fragmentation.at_end_bytes == 20 * MIB - 1024


def test_several_devices() -> None:
    """Empty traces first, a segment of a device that has no trace, and a profiler's CPU 'device' at the end."""
    tape = make.training(1)
    cpu = Tape(segment=0)
    cpu.alloc(MIB)
    for event in cpu.events:
        event["category"] = "unknown"
    elsewhere = segment(1 << 40, [block(3 * MIB, address=1 << 40)], device=7)
    analysis = understood(snap([], [], tape, cpu, segments=[elsewhere]))
    assert [found.device for found in analysis.devices] == [2, 3, 7]
    for found in analysis.devices:
        make.check(found)
    assert analysis.devices[2].peak_allocated_bytes == 3 * MIB
    assert "GPU 2: " in " ".join(verdict_of(analysis))


def test_events_that_contradict_each_other() -> None:
    """An allocation at a live address, a block freed twice, times that go backwards, no times at all."""
    tape = Tape()
    addr = tape.alloc(MIB)
    tape.add("alloc", addr, 2 * MIB)
    tape.sizes[addr] = 2 * MIB
    tape.free(addr)
    tape.free(addr)
    tape.events[3]["time_us"] = 1
    found = device(snap(tape))
    assert list(found.curves.allocated) == [0, 0, MIB, 2 * MIB, 0, 0, 0, 0]
    text = words(snap(tape))
    assert "contradict" in text
    assert "backwards" in text
    for event in tape.events:
        del event["time_us"]
    assert "carry no times" in words(snap(tape))


def test_a_snapshot_event_adds_nothing() -> None:
    """A file of torch 2.0 has one of 11.8 GB."""
    tape = Tape()
    tape.alloc(MIB)
    tape.add("snapshot", 0, 11_800_000_000)
    assert device(snap(tape)).peak_allocated_bytes == MIB


def test_the_block_history_of_torch_2_0() -> None:
    """No addresses, no frames but in a history, and no requested size."""
    blocks = [
        {
            "size": 2 * MIB,
            "state": "active_allocated",
            "history": [
                {"addr": BASE, "real_size": 2 * MIB - 100, "frames": [make.frame("build", "old.py", 9)]}
            ],
        },
        {"size": 2 * MIB, "state": "inactive"},
        {"size": MIB, "state": "active_awaiting_free", "history": []},
    ]
    old = {
        "segments": [
            {
                "device": 0,
                "address": BASE,
                "total_size": 5 * MIB,
                "stream": 0,
                "segment_type": "large",
                "blocks": blocks,
            }
        ],
        "device_traces": [[]],
    }
    found = device(old)
    assert found.peak_allocated_bytes == 2 * MIB
    assert found.call_sites_at_peak[0].site == "old.py:9 build"
    assert found.requested_at_peak_bytes == 2 * MIB - 100


def test_free_events_that_a_viewer_merged() -> None:
    tape = Tape()
    addr = tape.alloc(MIB)
    tape.add("free", addr, MIB)
    assert list(device(snap(tape)).curves.allocated) == [0, 0, MIB, 0]


def test_a_block_that_another_stream_still_holds() -> None:
    tape = Tape()
    addr = tape.alloc(MIB)
    tape.add("free_requested", addr, MIB)
    found = device(snap(tape))
    assert found.curves.allocated[-1] == 0
    assert found.replay.pending_at_end == 1


def test_the_forward_of_a_backward_allocation() -> None:
    """torch 2.11 can record which forward a backward allocation belongs to, as lines of text."""
    tape = Tape()
    tape.alloc(MIB, FORWARD)
    lines = [
        '  File "/home/alice/run/train.py", line 3, in <module>\n',
        '  File "/home/alice/run/model.py", line 41, in forward\n',
    ]
    tape.add("alloc", tape.top, MIB, ENGINE, forward_frames=lines)
    tape.add("free_requested", tape.top, MIB, BACKWARD)
    analysis = understood(snap(tape))
    sites = document_of(analysis)["devices"][0]["call_sites_at_peak"]
    assert [site["site"] for site in sites] == ["backward of model.py:41 forward", "model.py:40 forward"]
    assert sites[0]["stack"] == ["(backward of)", "model.py:41 forward", "train.py:3 <module>"]


def test_every_example_makes_a_page() -> None:
    for name in ("amp", "oom", "graph", "ring"):
        page = render_page(understood(make.example_bytes(name)))
        assert page.count("<script") == 2
        assert "http" not in page.replace("http-equiv", "")


def test_the_profilers_categories_are_taken() -> None:
    """Snapshots of ``torch.profiler`` say themselves what a block holds; "unknown" leaves it to us."""
    tape = Tape()
    for category in ("PARAMETER", "optimizer_state", "gradient", "activation", "temporary", "unknown"):
        tape.add("alloc", tape.top, 2 * MIB, category=category)
        tape.top += 2 * MIB
    tape.events[0]["category"] = ""
    found = device(snap(tape)).buckets_at_peak
    for bucket in ("optimizer_state", "gradients", "activations", "temporaries"):
        assert found[bucket] == 2 * MIB
    assert found["weights"] == 4 * MIB


def test_what_the_program_says_of_itself() -> None:
    """torch 2.10 lets a program tag its allocations."""
    tape = Tape()
    for _ in range(2):
        for name in ("forward", "backward", "optimizer"):
            tape.add("alloc", tape.top, MIB, user_metadata=name)
            tape.top += MIB
    tape.events[0]["user_metadata"] = ""
    found = device(snap(tape))
    assert [(span.phase, span.step) for span in found.timetable.spans[1:4]] == [
        ("forward", 1),
        ("backward", 1),
        ("optimizer", 1),
    ]
