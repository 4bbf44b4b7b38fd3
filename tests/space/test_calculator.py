"""What the Calculator says of a job, as HTML: a table that closes, and a model that the tape does not know."""

import csv
import json
import re
from html import escape
from types import SimpleNamespace

import pytest
from starlette.datastructures import QueryParams

from trainmem.cli import main
from trainmem.job import TrainingJob
from trainmem.results import error_text
from trainmem_space import answers
from trainmem_space.address import job_of, link_to, tab_of
from trainmem_space.levers import FORM, form_from_job
from trainmem_space.session import Session
from trainmem_space.tabs.calculator import _moved, _named, _pasted, _pressed, _shown
from trainmem_space.views.breakdown import breakdown_csv, breakdown_view
from trainmem_space.views.comparison import capacity_lines, comparison_view
from trainmem_space.views.verdict import verdict_view

KNOWN = TrainingJob(model="gpt2-774m", micro_batch=8, device="h200")
UNKNOWN = TrainingJob(
    config={
        "model_type": "mystery",
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 32000,
    }
)


def table(job):
    return breakdown_view(answers.answer(job, "exact").to_json(), answers.board(job))


def test_each_bucket_ends_in_the_rest_that_closes_it():
    html = table(KNOWN)
    at_peak = answers.answer(KNOWN, "exact").buckets_at_peak
    rests = answers.board(KNOWN).rests(at_peak)
    row = html[html.index('data-key="weights"') : html.index('data-key="gradients"')]
    assert f'The rest</dt><dd>+<span class="tm-num" title="{rests["weights"]:,} bytes">' in row
    assert "the tape, which replays every allocation, finds" in html


def test_a_job_that_the_tape_does_not_know_has_one_bar_and_says_so():
    session = Session()
    session.show(UNKNOWN)
    bars = comparison_view(session, UNKNOWN, "exact")
    assert bars.count("<b>Whiteboard</b>") == 1
    assert "the tape does not know this job" in bars
    html = table(UNKNOWN)
    assert "The tape does not know this job, so no step was replayed" in html
    assert "replays every allocation" not in html
    assert "The rest" not in html
    assert "What real code adds" not in html
    assert re.search(r"<span>Tape</span><span>Whiteboard</span>", html)


def test_the_csv_of_such_a_job_leaves_the_tape_empty():
    lines = breakdown_csv(answers.answer(UNKNOWN, "exact").to_json(), answers.board(UNKNOWN)).splitlines()
    assert {row["tape_bytes"] for row in csv.DictReader(lines)} == {""}


def test_its_verdict_is_no_promise():
    verdict = answers.verdict_on(UNKNOWN, "exact")
    estimate = answers.answer(UNKNOWN, "exact").to_json()
    html = verdict_view(estimate, verdict, described="it", detail="exact")
    assert "Probably fits" in html
    assert "<code>trainmem trace --model config.json</code>" in html
    assert re.search(r"No step was replayed, so this allows for the worst .*: on \d+ measured steps", html)


@pytest.mark.parametrize("detail", ["fast", "exact"])
@pytest.mark.parametrize(("model", "is_short"), [("llama3.1-8b", True), ("gpt2-774m", False)])
def test_where_no_single_lever_helps_the_plan_is_one_click_away(model, is_short, detail):
    job = TrainingJob(model=model, micro_batch=1, sequence_length=2048, device="rtx-4090")
    job = job if is_short else job.with_(micro_batch=8, sequence_length=1024)
    verdict, session = answers.verdict_on(job, detail), Session()
    session.show(job)
    html = _shown(session, job, detail)[0]
    assert verdict.fits is False
    assert (verdict.cheapest_lever is None) == is_short
    link = f'href="{escape(link_to(job, "fit"))}"'
    assert (link in html) == is_short
    request = SimpleNamespace(query_params=QueryParams(link_to(job, "fit").removeprefix("?")))
    assert (job_of(request), tab_of(request)) == (job, "fit")


def test_the_lines_of_a_device_say_what_they_are():
    labels = [line.label for line in capacity_lines("spark")]
    assert labels[:2] == [
        "DGX Spark 128 GB, 120 GiB visible",
        "DGX Spark after the OS and the context, 109 GiB",
    ]


def test_a_config_too_large_for_a_link_is_answered_without_one():
    large = UNKNOWN.with_(config={**UNKNOWN.config, "note": "0" * 300_000})
    session = Session()
    session.show(large)
    *_, link = _shown(session, large, "fast")
    assert "at most 262,144 fit in a link" in link
    assert "href" not in link


def test_every_page_and_command_words_the_typical_error_alike(capsys):
    job = TrainingJob(model="gpt2-774m", device="h200")
    estimate = answers.answer(job, "exact").to_json()
    html = verdict_view(estimate, answers.verdict_on(job, "exact"), described="it", detail="exact")
    said = error_text(estimate["typical_error"])
    assert f"Typical error on measured steps like this one: {said}." in html
    assert main(["estimate", "-m", "gpt2-774m", "-d", "h200"]) == 0
    assert f"typical error on measured steps like this one: {said}\n" in capsys.readouterr().out
    assert [error_text(e) for e in (0.0, 9e-5, 1e-4, 0.0125)] == [
        "under 0.01%",
        "under 0.01%",
        "0.01%",
        "1.25%",
    ]


def test_the_error_of_a_config_that_says_almost_nothing_is_not_passed_off_as_its_own(capsys, tmp_path):
    job = TrainingJob(config={"model_type": "llama"}, device="h200")
    html = verdict_view(
        answers.answer(job, "fast").to_json(), answers.verdict_on(job, "fast"), described="it", detail="fast"
    )
    assert "Typical error on measured steps like this one" not in html
    assert (
        "The config gives 0 of the 5 sizes that decide this model, and 5 are its class&#x27;s defaults"
        in html
    )
    assert "need not be yours." in html
    file = tmp_path / "config.json"
    file.write_text(json.dumps(job.config))
    assert main(["estimate", "-m", str(file), "-d", "h200"]) in (0, 1)
    assert "the config gives 0 of the 5 sizes" in capsys.readouterr().out


@pytest.mark.parametrize("hostile", [None, True, 1.5, float("nan"), [], {"a": 1}, "\ud800", "a" * 5000])
def test_a_forged_value_in_any_control_is_a_line_or_an_answer(hostile, caplog):
    form = form_from_job(KNOWN)
    for key in FORM:
        session = Session()
        session.show(KNOWN)
        for handler in (_moved, _named, _pasted):
            values = form | {"lora": "on", key: hostile}
            assert handler(session, *(values[name] for name in FORM))
    assert caplog.records == []


def test_an_emptied_config_gives_back_the_model_before_it():
    session = Session()
    session.show(KNOWN)
    session.show(UNKNOWN)
    form = form_from_job(UNKNOWN) | {"config": ""}
    model, said, *_ = _pasted(session, *(form[name] for name in FORM))
    assert (model, said) == ("gpt2-774m", "")
    assert session.job.model == "gpt2-774m"


@pytest.mark.parametrize(
    "data", [None, "x", [], {"action": ["apply"]}, {"action": "restore", "index": "x"}, {"action": "unpin"}]
)
def test_a_forged_press_changes_nothing(data):
    session = Session()
    session.show(KNOWN)
    assert _pressed(session, SimpleNamespace(_data=data))
    assert (session.job, session.pins) == (KNOWN, [])
