"""Measured rows: reading, plausibility, the bundled rows and what they say about a job's likely error."""

import copy
import json
import re

import pytest

from trainmem.job import TrainingJob
from trainmem.results import (
    Prediction,
    RowError,
    accuracy,
    predictions,
    published_rows,
    read_row,
    read_rows,
    refusals,
    step_flops,
    support,
    throughput_doubt,
    typical_error,
)
from trainmem.results.published import predictions_for, read_predictions


@pytest.fixture
def row():
    """The lesson's baseline, as it was published first."""
    first = next(r for r in published_rows() if r.job and r.job.model == "gpt2-774m")
    return copy.deepcopy(dict(first.data))


def test_every_bundled_row_reads_and_is_plausible():
    rows = published_rows()
    assert len(rows) >= 106
    assert {r.id: refusals(r) for r in rows if refusals(r)} == {}


def test_ids_of_the_bundled_rows_are_distinct():
    rows = published_rows()
    assert len({r.id for r in rows}) == len(rows)


def test_a_row_without_the_later_fields_is_a_step_that_ended_well(row):
    assert "outcome" not in row
    read = read_row(row)
    assert (read.kind, read.outcome, read.suite) == ("step", "ok", None)
    assert read.step_seconds == row["measured"]["steady_step"]["seconds"]


def test_what_is_read_is_written_again_unchanged(row):
    row["later"] = {"kept": True}
    assert read_row(row).data == row


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema": "trainmem.measured/2"}, "schema"),
        ({"outcome": "fine"}, "outcome"),
        ({"kind": "walk"}, "kind"),
        ({"measured": []}, "measured"),
        ({"suite": 3}, "suite"),
        ({"job": None}, "job."),
    ],
)
def test_a_wrong_row_is_refused_by_name(row, change, named):
    with pytest.raises(RowError, match=f"^{named}"):
        read_row(row | change)


def test_a_wrong_line_is_named_by_its_number(row):
    text = json.dumps(row) + "\n\n" + "{not json"
    with pytest.raises(RowError, match=r"rows\.jsonl, line 3: not JSON"):
        read_rows(text, source="rows.jsonl")


def test_a_torn_unicode_or_deep_line_is_refused_not_raised():
    with pytest.raises(RowError):
        read_rows("[" * 50, source="x")


def _changed(row, **measured):
    row["measured"] |= measured
    return refusals(read_row(row))


def test_reserved_below_allocated_is_refused(row):
    (reason,) = _changed(row, peak_reserved_bytes=row["measured"]["peak_allocated_bytes"] - 1)
    assert reason.startswith("peak_reserved_bytes")
    assert "below" in reason


def test_more_memory_than_the_gpu_has_is_refused(row):
    assert any("above the GPU" in r for r in _changed(row, peak_reserved_bytes=1 << 40))


def test_arithmetic_above_the_gpus_peak_is_refused(row):
    row["measured"]["steady_step"]["seconds"] = 0.02
    (reason,) = refusals(read_row(row))
    assert "TFLOP/s" in reason
    assert "padding" in reason


def test_padding_counted_as_tokens_is_what_the_check_would_have_caught(row):
    # A published Spark table implied over 1.4 PFLOP/s because steps were multiplied by the maximum length.
    row["environment"]["gpu"] = "NVIDIA GB10"
    row["environment"]["gpu_memory_bytes"] = 128_501_256_192
    assert any("TFLOP/s" in r for r in refusals(read_row(row)))


def test_a_phase_above_the_peak_is_refused(row):
    row["measured"]["steady_step"]["peak_forward_bytes"] = row["measured"]["peak_allocated_bytes"] + 512
    assert any("steady_step.peak_forward_bytes" in r for r in refusals(read_row(row)))


def test_a_dry_run_is_refused(row):
    row["environment"]["gpu"] = None
    assert any("dry run" in r for r in refusals(read_row(row)))


def test_an_outcome_other_than_ok_needs_a_reason_but_no_figures(row):
    row |= {"outcome": "oom", "measured": None}
    assert [r.split(":")[0] for r in refusals(read_row(row))] == ["reason"]
    assert refusals(read_row(row | {"reason": "CUDA out of memory"})) == []


def test_times_of_a_stand_in_are_refused(row):
    row["environment"]["capacity_text"] = "118GiB"
    assert any(r.startswith("throughput") for r in refusals(read_row(row)))


def test_a_slow_canary_casts_doubt_on_times_and_not_on_memory(row):
    row["environment"] |= {"gpu": "NVIDIA GB10", "gpu_memory_bytes": 128_501_256_192}
    row["measured"]["throughput"] = {"step_seconds": 9.0, "canary_tflops": {"before": 91.0, "after": 36.5}}
    read = read_row(row)
    assert refusals(read) == []
    assert "36.5" in (throughput_doubt(read) or "")
    row["measured"]["throughput"]["canary_tflops"]["after"] = 90.2
    assert throughput_doubt(read_row(row)) is None


def test_step_flops_of_a_dense_model_are_six_a_parameter_and_token_and_the_scores():
    job = TrainingJob(model="gpt2-774m", micro_batch=8, sequence_length=1024)
    tokens = 8 * 1024
    matrices = 36 * 12 * 1280**2 + 50257 * 1280
    assert step_flops(job) == tokens * (6 * matrices + 3 * 2 * 1024 * 1280 * 36)


def test_frozen_weights_cost_two_thirds_and_sleeping_experts_nothing():
    full = TrainingJob(model="llama3.2-1b", sequence_length=128)
    adapted = TrainingJob.from_json({**full.to_json(), "lora": {"rank": 8}})
    assert 0.66 < step_flops(adapted) / step_flops(full) < 0.68
    mixture = TrainingJob(model="mixtral-8x7b", sequence_length=128)
    # 12.9e9 of 46.7e9 parameters are active for a token, embeddings' lookup aside.
    assert 12.5e9 < step_flops(mixture) / 128 / 6 < 13e9


def test_typical_error_comes_from_the_rows_that_share_most_traits():
    job = TrainingJob(model="gpt2-774m", micro_batch=3, sequence_length=640)
    found = support(job)
    assert 0 <= found.error == typical_error(job)
    if predictions().of_row:
        assert found.rows >= 3
        assert found.error < 0.5


def test_a_job_like_nothing_published_still_gets_an_answer():
    odd = TrainingJob.from_json({"config": {"model_type": "never-seen"}, "precision": "bf16_stochastic"})
    assert 0 <= typical_error(odd, "tape") <= 1


def test_predictions_survive_their_file(row):
    rows = [read_row(row)]
    answers = {
        rows[0].id: {"tape": Prediction(peak_allocated_bytes=7), "trace": Prediction(error="no torch")}
    }
    made = predictions_for(rows, answers, version="0")
    again = read_predictions(json.loads(json.dumps(made.to_json())))
    assert again.of_row == made.of_row
    assert again.traits_of_row == made.traits_of_row


def test_accuracy_counts_what_fell_short_and_what_had_no_answer(row):
    truth = row["measured"]["peak_allocated_bytes"]
    rows = [read_row(row | {"label": name}) for name in "abc"]
    shares = {"a": 1.02, "b": 0.99}
    answers = {
        r.id: {"tape": Prediction(peak_allocated_bytes=round(truth * shares[r.label]))}
        if r.label in shares
        else {"tape": Prediction(error="unknown family")}
        for r in rows
    }
    found = accuracy(rows, predictions_for(rows, answers, version="0"), "tape")
    assert found is not None
    assert (found.rows, found.unanswered, found.under) == (2, 1, 1)
    assert found.worst == pytest.approx(0.02, abs=1e-6)
    assert accuracy(rows, predictions_for(rows, answers, version="0"), "trace") is None


def test_a_line_nested_too_deeply_is_refused() -> None:
    with pytest.raises(RowError, match=r"^rows, line 1: nested too deeply$"):
        read_rows('{"job":' + "[" * 200_000 + "\n")


def test_no_published_command_names_a_place_of_a_machine():
    places = re.compile(r"/(tmp|home|root|Users)/")
    for row in published_rows():
        assert not places.search(str(row.environment.get("command", ""))), row.id
