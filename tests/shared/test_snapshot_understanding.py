"""Phases, buckets, call sites, leaks, failures and comparisons, on real files and on small made ones."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import snapshot_files as make
from snapshot_files import BACKWARD, BUILD, ENGINE, FORWARD, LOSS, MIB, USER, Tape, device, snap, understood

from trainmem.buckets import BUCKETS
from trainmem.snapshot.analysis import DeviceAnalysis, buckets_of
from trainmem.snapshot.compare import compare
from trainmem.snapshot.document import document_of
from trainmem.snapshot.summary import Summary, summary_of, summary_of_estimate
from trainmem.snapshot.timeline import live_at
from trainmem.snapshot.truth import score
from trainmem.snapshot.verdict import verdict_of

PARAMETERS = 124_439_808
"""Of GPT-2 124M, its tied head once."""

LOGITS = 2 * 512 * 50257


def buckets_at(found: DeviceAnalysis, instant: int) -> dict[str, int]:
    numbers = live_at(found.replay, instant)
    return buckets_of(found.replay.blocks.size, found.attribution.bucket_of, numbers)


def phases(found: DeviceAnalysis) -> list[tuple[str, int]]:
    return [(span.phase, span.step) for span in found.timetable.spans]


STEP = ["forward", "backward", "optimizer", "zero_grad"]


@pytest.mark.parametrize(
    ("name", "steps"), [("amp", 3), ("ckpt", 3), ("expandable", 3), ("annot", 2), ("allstacks", 3)]
)
def test_phases_of_real_runs(name: str, steps: int) -> None:
    found = device(make.example_bytes(name))
    assert phases(found) == [("setup", 0), *((phase, n + 1) for n in range(steps) for phase in STEP)]
    assert found.timetable.steps == steps


def test_phases_from_stacks_are_those_of_the_named_regions() -> None:
    """`annot` names its forward, backward and optimizer; without the names, the stacks say the same."""
    content = pickle.loads(make.example_bytes("annot"))
    named = device(content)
    content["external_annotations"] = []
    unnamed = device(content)
    for one, other in zip(named.timetable.spans, unnamed.timetable.spans, strict=True):
        assert (one.phase, one.step) == (other.phase, other.step)
        assert abs(one.start - other.start) <= 2


def without_stacks(name: str, *, annotations: bool) -> dict[str, Any]:
    content = pickle.loads(make.example_bytes(name))
    for event in content["device_traces"][0]:
        event.pop("frames", None)
    for part in content["segments"]:
        part.pop("frames", None)
        for inner in part["blocks"]:
            inner.pop("frames", None)
    if not annotations:
        content["external_annotations"] = []
    return content


@pytest.mark.parametrize("annotations", [True, False])
def test_phases_without_stacks(annotations: bool) -> None:
    """From PyTorch's own named regions, or from the rhythm of the curve alone."""
    whole = device(make.example_bytes("amp"))
    bare = device(without_stacks("amp", annotations=annotations))
    assert bare.timetable.evidence == ("annotations" if annotations else "lifetimes")
    assert bare.timetable.steps == 3
    truth = {(span.phase, span.step): span.start for span in whole.timetable.spans}
    for span in bare.timetable.spans:
        if span.step > 1 and span.phase in ("forward", "backward"):
            assert abs(span.start - truth[span.phase, span.step]) < 60
    for bucket in ("weights", "optimizer_state"):
        assert bare.buckets_at_peak[bucket] == pytest.approx(whole.buckets_at_peak[bucket], rel=0.03)


def test_no_phases_are_claimed_where_nothing_tells() -> None:
    tape = Tape()
    blocks = [tape.alloc(MIB) for _ in range(30)]
    for addr in blocks[::3]:
        tape.free(addr)
    found = device(snap(tape))
    assert found.timetable.evidence == "none"
    assert "No training step was found" in " ".join(document_of(understood(snap(tape)))["notes"])


def test_buckets_of_gpt2_are_what_its_shape_says() -> None:
    """Expandable segments leave no rests, so the sums are exact: 4, 4, 8 bytes a parameter and the logits."""
    found = device(make.example_bytes("expandable"))
    at_peak = found.buckets_at_peak
    small = 148 * 512
    assert at_peak["weights"] == pytest.approx(4 * PARAMETERS, abs=small)
    assert at_peak["optimizer_state"] == pytest.approx(8 * PARAMETERS, abs=2 * small)
    assert at_peak["logits"] == pytest.approx(3 * 4 * LOGITS, abs=4096)
    assert at_peak["cast_cache"] == pytest.approx(2 * (PARAMETERS - 1024 * 768), rel=0.01)
    assert at_peak["workspace"] == 2 * (32 * MIB) + 1 * MIB
    optimizer = next(step for step in found.steps if step.step == 2)
    span = next(s for s in found.timetable.spans if s.phase == "optimizer" and s.step == optimizer.step)
    instant = max(range(span.start, span.end + 1), key=found.curves.allocated.__getitem__)
    in_step = buckets_at(found, instant)
    assert in_step["gradients"] == pytest.approx(4 * PARAMETERS, abs=small)
    assert in_step["temporaries"] == pytest.approx(4 * PARAMETERS, abs=small)


@pytest.mark.parametrize("name", ["amp", "ckpt", "allstacks", "annot"])
def test_nothing_lives_in_the_wrong_phase(name: str) -> None:
    found = device(make.example_bytes(name))
    for span in found.timetable.spans:
        if span.phase == "optimizer":
            at = buckets_at(found, span.end)
            assert at["activations"] + at["logits"] + at["cast_cache"] < 0.002 * sum(at.values())
        if span.phase == "forward" and span.step > 1:
            assert buckets_at(found, span.start)["gradients"] == 0


def test_an_overflowed_file_still_tells_state_from_weights() -> None:
    whole = device(make.example_bytes("amp"))
    cut = device(make.example_bytes("ring"))
    first = len(whole.curves.allocated) - len(cut.curves.allocated)
    truth = buckets_at(whole, first + cut.peak_instant)
    wrong = sum(abs(truth[bucket] - cut.buckets_at_peak[bucket]) for bucket in BUCKETS) / 2
    assert wrong < 0.03 * cut.peak_allocated_bytes


def test_a_made_training_run() -> None:
    found = device(snap(make.training(3)))
    assert found.timetable.steps == 3
    at_peak = found.buckets_at_peak
    assert at_peak["weights"] == 20 * MIB
    assert at_peak["optimizer_state"] == 40 * MIB
    assert at_peak["logits"] == 40 * MIB


def test_forward_and_backward_inside_a_closure_of_the_optimizer() -> None:
    """Lightning runs them there; the innermost frame that knows its phase decides."""
    closure = [make.frame("step", "/env/site-packages/torch/optim/adam.py", 220), make.MAIN]
    tape = Tape()
    weight = tape.alloc(8 * MIB, BUILD)
    for _ in range(3):
        saved = tape.alloc(4 * MIB, [*FORWARD[:2], *closure])
        gradient = tape.alloc(8 * MIB, ENGINE)
        tape.free(saved, ENGINE)
        root = tape.alloc(8 * MIB, make.STEP)
        tape.free(root, make.STEP)
        tape.free(gradient, make.ZERO_GRAD)
    assert weight
    assert phases(device(snap(tape)))[1:5] == [(phase, 1) for phase in STEP]


def test_accumulation_is_one_step_of_several_micro_batches() -> None:
    tape = Tape()
    tape.alloc(8 * MIB, BUILD)
    for _ in range(2):
        gradient = None
        for _ in range(3):
            saved = tape.alloc(4 * MIB, FORWARD)
            piece = tape.alloc(8 * MIB, ENGINE)
            tape.free(saved, ENGINE)
            if gradient is None:
                gradient = piece
            else:
                tape.free(piece, ENGINE)
        root = tape.alloc(8 * MIB, make.STEP)
        tape.free(root, make.STEP)
        tape.free(gradient, make.ZERO_GRAD)
    found = device(snap(tape))
    assert found.timetable.steps == 2
    assert [span.micro for span in found.timetable.spans if span.phase == "forward"] == [0, 1, 2] * 2
    assert found.buckets_at_peak["gradients"] == 8 * MIB


def leaking(steps: int = 6) -> Tape:
    tape = Tape()
    tape.alloc(8 * MIB, BUILD)
    keep = [make.frame("append", "/home/alice/run/metrics.py", 12), make.MAIN]
    for _ in range(steps):
        saved = tape.alloc(4 * MIB, FORWARD)
        tape.alloc(2 * MIB, keep)
        gradient = tape.alloc(8 * MIB, ENGINE)
        tape.free(saved, ENGINE)
        root = tape.alloc(8 * MIB, make.STEP)
        tape.free(root, make.STEP)
        tape.free(gradient, make.ZERO_GRAD)
    return tape


def test_what_grows_and_who_allocated_it() -> None:
    found = device(snap(leaking()))
    assert found.leak is not None
    assert found.leak.bytes_a_step == 2 * MIB
    assert [growth.site for growth in found.leak.sites] == ["metrics.py:12 append"]
    assert found.leak.sites[0].blocks_a_step == 1
    text = " ".join(verdict_of(understood(snap(leaking()))))
    assert "Memory grows by 2.00 MiB a step from step 2 to 6, allocated at metrics.py:12 append" in text


def test_growth_without_training_steps() -> None:
    """A server that keeps something of each request."""
    serve = [make.frame("answer", "/home/alice/run/serve.py", 40), make.MAIN]
    tape = Tape()
    tape.alloc(64 * MIB)
    for _ in range(100):
        scratch = tape.alloc(16 * MIB)
        tape.alloc(MIB, serve)
        tape.free(scratch)
    found = device(snap(tape))
    assert found.timetable.evidence == "none"
    assert found.leak is not None
    assert [growth.site for growth in found.leak.sites] == ["serve.py:40 answer"]
    assert 9 * MIB < found.leak.bytes_a_step < 11 * MIB
    assert "in each tenth of the recording" in " ".join(verdict_of(understood(snap(tape))))


def test_what_only_comes_and_goes_is_no_leak() -> None:
    for content in (snap(make.training(6)), make.example_bytes("amp")):
        assert device(content).leak is None


def test_an_out_of_memory_file() -> None:
    document = document_of(understood(make.example_bytes("oom")))["devices"][0]
    failure = document["oom"]
    assert failure["requested_bytes"] == 201_326_592
    assert failure["allocated_bytes"] == 4_345_588_736
    assert failure["reserved_bytes"] == 4_418_699_264
    assert failure["unused_bytes"] == 4_418_699_264 - 4_345_588_736
    assert failure["largest_free_block_bytes"] == 24 * MIB
    assert failure["refused_by_a_limit"] is True
    assert failure["site"].endswith("forward")
    assert document["buckets_at_peak"]["activations"] > 3_700_000_000
    assert document["buckets_at_peak"]["workspace"] == 34_603_008


def test_the_contract() -> None:
    document = document_of(understood(make.example_bytes("amp")))
    assert document["schema"] == "trainmem.snapshot/1"
    (first,) = document["devices"]
    needed = {
        "device",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "allocated_at_end_bytes",
        "steps",
        "phases",
        "buckets_at_peak",
        "call_sites_at_peak",
        "oom",
        "leak",
    }
    assert needed <= first.keys()
    assert list(first["buckets_at_peak"]) == list(BUCKETS)
    assert set(first["phases"][0]) == {"name", "step", "start_event", "end_event"}
    assert {"site", "bytes", "blocks"} <= first["call_sites_at_peak"][0].keys()
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_three_curves_over_time() -> None:
    found = device(make.example_bytes("amp"))
    timeline = document_of(understood(make.example_bytes("amp")))["devices"][0]["timeline"]
    assert len({len(values) for values in timeline.values()}) == 1
    assert max(timeline["allocated_bytes"]) == found.peak_allocated_bytes
    at = timeline["event"].index(found.peak_instant)
    assert timeline["requested_bytes"][at] == found.requested_at_peak_bytes
    for requested, allocated, reserved in zip(
        timeline["requested_bytes"], timeline["allocated_bytes"], timeline["reserved_bytes"], strict=True
    ):
        assert requested <= allocated <= reserved


def test_call_sites_beyond_the_most_are_one_line() -> None:
    tape = Tape()
    for number in range(500):
        tape.alloc(MIB, [make.frame("f", "/home/alice/run/model.py", number + 1), make.MAIN])
    document = document_of(understood(snap(tape)))["devices"][0]
    assert document["call_sites_at_peak"][-1]["site"] == "300 other call sites"
    assert sum(site["bytes"] for site in document["call_sites_at_peak"]) == document["peak_allocated_bytes"]


def test_two_runs_by_bucket_and_call_site() -> None:
    before, after = (summary_of(understood(make.example_bytes(name))) for name in ("amp", "ckpt"))
    found = compare(before, after)
    assert (found.before_profile.step, found.after_profile.step) == (3, 3)
    assert sum(row.before_bytes for row in found.buckets) == found.peak.before_bytes
    assert sum(row.after_bytes for row in found.buckets) == found.peak.after_bytes
    assert sum(row.before_bytes for row in found.sites) == found.peak.before_bytes
    assert sum(row.after_bytes for row in found.sites) == found.peak.after_bytes
    activations = next(row for row in found.buckets if row.name == "activations")
    assert activations.change_bytes < -700_000_000
    assert found.verdict.startswith("The peak of step 3 goes from 3.04 GiB (snapshot) to 2.40 GiB")
    assert [row.name for row in found.phases] == STEP


def test_a_run_compared_with_itself() -> None:
    summary = summary_of(understood(make.example_bytes("graph")))
    found = compare(summary, Summary.from_json(json.loads(json.dumps(summary.to_json()))))
    assert found.peak.change_bytes == 0
    assert all(row.change_bytes == 0 for row in (*found.buckets, *found.sites, *found.phases))


def test_lines_that_moved_are_matched_by_function() -> None:
    def run(line: int) -> Summary:
        tape = Tape()
        tape.alloc(MIB, [make.frame("forward", "/home/alice/run/model.py", line), make.MAIN])
        return summary_of(understood(snap(tape)))

    (row,) = compare(run(10), run(14)).sites
    assert (row.name, row.before_bytes, row.after_bytes) == ("model.py forward", MIB, MIB)


def test_a_prediction_and_a_run() -> None:
    estimate = {
        "schema": "trainmem.estimate/1",
        "peak_allocated_bytes": 3 << 30,
        "peak_phase": "backward",
        "buckets_at_peak": {"weights": 1 << 30, "activations": 2 << 30},
        "phases": {"peak_forward_bytes": 2 << 30, "peak_backward_bytes": 3 << 30},
    }
    found = compare(summary_of_estimate(estimate), summary_of(understood(make.example_bytes("amp"))))
    assert found.peak.before_bytes == 3 << 30
    assert found.sites == []
    assert [row.name for row in found.phases] == ["forward", "backward"]
    for wrong in ({}, {"schema": "trainmem.estimate/1"}, {**estimate, "schema": "other"}):
        with pytest.raises(ValueError, match=r"estimate|missing"):
            summary_of_estimate(wrong)


def test_labels_are_scored() -> None:
    """The recorder's marks find the blocks that were there, and what was told wrong is counted."""
    tape = Tape()
    weight = tape.alloc(8 * MIB, BUILD)
    mark = tape.alloc(777_001, USER)
    tape.free(mark)
    saved = tape.alloc(4 * MIB, FORWARD)
    loss = tape.alloc(2 * MIB, LOSS)
    second = tape.alloc(777_002, USER)
    tape.free(second)
    gradient = tape.alloc(8 * MIB, ENGINE)
    tape.free(saved, ENGINE)
    tape.free(loss, ENGINE)
    tape.add("free_requested", gradient, 8 * MIB, make.ZERO_GRAD)
    tape.add("alloc", tape.top, 4, BACKWARD)
    found = device(snap(tape))
    marks = [
        {"size": 777_001, "labels": {str(weight): "weight"}},
        {"size": 777_002, "labels": {str(weight): "weight", str(saved): "saved", str(loss): "state"}},
    ]
    result = score(found, marks, instant=found.peak_instant)
    assert result.peak_bytes == found.peak_allocated_bytes
    assert result.mistakes[("state", "logits")] == 2 * MIB
    assert result.right_bytes == result.peak_bytes - sum(result.mistakes.values())
    with pytest.raises(ValueError, match="1 of 1 are not"):
        score(found, [{"size": 5, "labels": {}}])


def test_masters_are_told_from_weights_and_inputs() -> None:
    tape = Tape()
    for size in (4, 6, 8):
        tape.alloc(size * MIB, BUILD)
    tape.alloc(3 * MIB, USER)
    for size in (8, 12, 16):
        tape.alloc(size * MIB, [make.frame("make_masters", "/home/alice/run/train.py", 30), make.MAIN])
    saved = tape.alloc(40 * MIB, FORWARD)
    gradients = [tape.alloc(size * MIB, ENGINE) for size in (4, 6)]
    tape.free(saved, ENGINE)
    root = tape.alloc(4 * MIB, make.STEP)
    tape.free(root, make.STEP)
    for gradient in gradients:
        tape.free(gradient, make.ZERO_GRAD)
    found = device(snap(tape))
    at_peak = found.buckets_at_peak
    assert at_peak["master_weights"] == (8 + 12 + 16) * MIB
    assert at_peak["weights"] == (4 + 6 + 8) * MIB
    assert at_peak["activations"] == (3 + 40) * MIB


def fsdp(name: str) -> list[dict[str, Any]]:
    folder = "/env/site-packages/torch/distributed/fsdp/_fully_shard"
    return [make.frame(name, f"{folder}/_fsdp_collectives.py", 50), *FORWARD]


def test_collectives() -> None:
    """FSDP2: gathered weights are communication, a rank's own share of weights and gradients is not."""
    shard = [
        make.frame(
            "_init_sharded_param", "/env/site-packages/torch/distributed/fsdp/_fully_shard/_fsdp_param.py", 9
        ),
        make.MAIN,
    ]
    tape = Tape()
    tape.alloc(8 * MIB, shard)
    for _ in range(2):
        gathered = tape.alloc(64 * MIB, fsdp("foreach_all_gather"))
        saved = tape.alloc(4 * MIB, FORWARD)
        tape.free(gathered, fsdp("reshard"))
        again = tape.alloc(64 * MIB, [*fsdp("foreach_all_gather")[:1], *BACKWARD])
        gradient = tape.alloc(8 * MIB, [*fsdp("foreach_reduce")[:1], *BACKWARD])
        tape.free(saved, ENGINE)
        tape.free(again, ENGINE)
        root = tape.alloc(8 * MIB, make.STEP)
        tape.free(root, make.STEP)
        tape.free(gradient, make.ZERO_GRAD)
    at_peak = device(snap(tape)).buckets_at_peak
    assert at_peak["communication"] == 64 * MIB
    assert at_peak["weights"] == 8 * MIB
    assert at_peak["gradients"] == 8 * MIB
