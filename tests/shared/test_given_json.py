"""JSON that somebody gives: what is wrong with it, in one line that names the field."""

import json
import re
from pathlib import Path

import pytest

from trainmem.cli.jobs import jobs_from_file
from trainmem.given_json import parse_json
from trainmem.job import JobError, TrainingJob

LONG = "7" * 5000
"""More digits than Python turns into a number."""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON (Expecting"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": {"b": 1, "b": 2}}', 'not one job: "b" stands in it twice'),
    ],
)
def test_why_a_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}"):
        parse_json(text, unique_keys=True)


def test_a_config_may_say_a_key_twice_as_for_transformers() -> None:
    assert parse_json('{"n_layer": 1, "n_layer": 2}') == {"n_layer": 2}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            f'{{"model": "m", "micro_batch": {LONG}}}',
            "micro_batch: a number of more than thirty digits is not",
        ),
        (
            f'{{"config": {{"n_layer": -{LONG}}}}}',
            "config.n_layer: a number of more than thirty digits is not",
        ),
        ('{"model": "m", "model": "m"}', 'line 1: not one job: "model" stands in it twice'),
        ("{", "line 1: not JSON"),
    ],
)
def test_a_line_of_jobs_names_the_field(tmp_path: Path, line: str, error: str) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text(f"{line}\n{json.dumps({'model': 'm'})}\n", encoding="utf-8")
    first, second = jobs_from_file(str(file))
    assert str(first).startswith(error)
    assert second == TrainingJob(model="m")


def test_a_line_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"model": "m"}\n' + "\0" * 5_000_000)
    _, endless = jobs_from_file(str(file))
    assert str(endless).startswith("line 2: more than 4,000,000 characters")


@pytest.mark.parametrize(
    ("said", "shown"), [("1e999", "Infinity"), ("-1e999", "-Infinity"), ("[1e999]", "[Infinity]")]
)
def test_an_infinity_is_shown_as_it_is_read(said: str, shown: str) -> None:
    from trainmem.model import resolve

    job = TrainingJob.from_json({"config": parse_json(f'{{"model_type": "gpt2", "n_layer": {said}}}')})
    with pytest.raises(JobError) as refused:
        resolve(job)
    assert str(refused.value).startswith(f"config.n_layer: {shown} is not a whole number")
