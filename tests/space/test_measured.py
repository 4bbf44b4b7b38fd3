"""The Measured tab's HTML: the tables, what stands where nothing was run, and provenance."""

import re

from trainmem.results import predictions, published_rows
from trainmem.results.tables import machines_of, of_machine, of_suite, row_title
from trainmem_space.measured.curves import break_it, scaling
from trainmem_space.measured.errors import errors
from trainmem_space.measured.every import every_row
from trainmem_space.measured.lesson import lesson_table
from trainmem_space.measured.limits import limits
from trainmem_space.measured.parts import error_cell
from trainmem_space.measured.provenance import provenance

H200 = "NVIDIA H200"


def rows():
    return of_machine(published_rows(), H200)


def test_the_lesson_has_its_five_runs_with_every_rung_and_the_largest_batches():
    html = lesson_table(rows(), predictions(), H200)
    for label in (
        "baseline",
        "checkpointing",
        "AdamW8bit",
        "checkpointing + AdamW8bit",
        "accumulation 4 x 2",
    ):
        assert f"<span>{label}</span>" in html
    assert html.count("<details>") == 5
    assert html.count("the next one ran out of memory") == 4
    baseline = next(row for row in of_suite(rows(), "lesson", kind="step") if row.label == "baseline")
    assert f"{baseline.peak_allocated_bytes:,} bytes" in html


def test_a_machine_without_rows_says_the_command_that_fills_each_table():
    spark = "NVIDIA DGX Spark (GB10)"
    for suite, html in (
        ("lesson", lesson_table([], predictions(), spark)),
        ("scaling", scaling([], spark)),
        ("break-it", break_it([], spark)),
        ("limits", limits([], predictions(), spark)),
    ):
        assert f"Not run yet on {spark}" in html
        assert f"<code>trainmem measure --suite {suite}</code>" in html


def test_curves_say_their_numbers_to_those_who_do_not_see_them():
    grown, broken = scaling(rows(), H200), break_it(rows(), H200)
    assert "eager, peak: 512 23.0 GiB, 1,024 44.2 GiB, 2,048 112 GiB" in grown
    assert "Eager attention at 4,096 tokens" in broken
    assert "grows by 25,088 bytes" in broken
    assert broken.count("<figure") == 3
    assert "loss of an evaluation without no_grad (20 steps were run)</span>" in broken
    assert "loss, after backward</span>" in broken


def test_the_scatter_has_a_sentence_for_every_row_and_no_row_twice():
    html = errors(rows(), predictions())
    sentences = re.findall(r"<li>(.*?)</li>", html)
    known = predictions()
    steps = [row for row in rows() if row.id in known.of_row]
    assert len(sentences) == len(steps)
    assert all("measured" in sentence for sentence in sentences)
    assert max(int(number) for number in re.findall(r'data-row="(\d+)"', html)) < len(sentences)


def test_errors_without_predictions_are_an_empty_state():
    assert "No row of this machine" in errors([], predictions())


def test_refused_and_fitting_models_are_in_the_limits():
    html = limits(published_rows(), predictions(), None)
    assert '<span data-head="outcome">refused</span>' in html
    assert '<span data-head="outcome">fits</span>' in html
    assert "70B, QLoRA" in html


def test_provenance_names_versions_command_commit_and_date():
    row = next(row for row in of_suite(rows(), "lesson", kind="step"))
    html = provenance(row)
    for text in ("trainmem measure --suite lesson", "torch 2.11.0", "2026-11-", "580.", "cudnn 36 times"):
        assert text in html


def test_every_published_row_can_be_shown():
    for row in published_rows():
        assert row.id in provenance(row)
        assert row_title(row)


def test_what_a_row_says_is_escaped():
    row = published_rows()[0]
    environment = dict(row.environment) | {"command": "<script>alert(1)</script>", "gpu": "<b>GPU</b>"}
    from trainmem.results import read_row

    html = provenance(read_row(dict(row.data) | {"environment": environment}))
    assert "<script>" not in html
    assert "<b>GPU" not in html


def test_an_error_is_told_with_its_sign_and_a_missing_answer_is_a_dash():
    assert "+2.00%" in error_cell(102, 0.02)
    assert "tm-far" in error_cell(50, -0.5)
    assert "no answer" in error_cell(None, None)


def test_machines_are_listed_once_and_stand_ins_apart():
    found = machines_of(published_rows())
    assert H200 in found
    assert len(found) == len(set(found))
    assert any("held to" in name for name in found)


def test_every_row_of_a_suite_opens():
    html = every_row(rows(), predictions(), "levers")
    assert html.count("<details>") == len(of_suite(rows(), "levers"))
    assert "No rows" in every_row([], predictions(), "levers")
