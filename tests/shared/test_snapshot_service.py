"""The command line, the worker process of the web, and the examples."""

from __future__ import annotations

import csv
import io
import json
import pickle
from pathlib import Path

import pytest
import snapshot_files as make

from trainmem.cli import main
from trainmem.snapshot import __all__ as exported
from trainmem.snapshot import service
from trainmem.snapshot.examples import EXAMPLES, example_path
from trainmem.snapshot.limits import Limits, command_line_limits
from trainmem.snapshot.reader import SnapshotRejected
from trainmem.snapshot.service import STAGES, report_in_process


def run(*arguments: str) -> int:
    return main(["snapshot", *arguments])


def test_json_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(example_path("graph")), "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "trainmem.snapshot/1"
    assert answer["devices"][0]["peak_allocated_bytes"] == 175_671_296


def test_words_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("example:ring") == 0
    out = capsys.readouterr().out
    assert out.startswith("What ring.pickle.gz cannot tell:")
    assert out.index("the ring buffer") < out.index("The peak is 2.41 GiB")
    assert "optimizer state" in out


def test_files_that_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, table = tmp_path / "report.html", tmp_path / "sites.csv"
    arguments = (
        "example:ckpt",
        "--compare",
        "example:amp",
        "--html",
        str(page),
        "--csv",
        str(table),
        "--json",
    )
    assert run(*arguments) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["comparison"]["step"] == 3
    assert "Compared with amp.pickle.gz" in page.read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
    assert sum(int(row["bytes"]) for row in rows) == answer["devices"][0]["peak_allocated_bytes"]


def test_a_prediction_to_compare_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    estimate = {
        "schema": "trainmem.estimate/1",
        "peak_allocated_bytes": 1 << 30,
        "buckets_at_peak": {"weights": 1 << 30},
        "phases": {},
    }
    path = tmp_path / "estimate.json"
    path.write_text(json.dumps(estimate))
    assert run("example:amp", "--compare", str(path)) == 0
    assert "goes from 1.00 GiB (predicted)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nowhere.pickle",), "no such file"),
        (("example:nothing",), "is not one of amp, ckpt"),
        (("{bad}",), "by name"),
        (("example:graph", "--compare", "{bad}"), "by name"),
        (("example:graph", "--html", "/nowhere/report.html"), "no such file"),
    ],
)
def test_one_line_and_status_2(
    arguments: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.pickle"
    bad.write_bytes(pickle.dumps(complex(1, 2)))
    assert run(*(argument.format(bad=bad) for argument in arguments)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert reason in said.err


def test_the_worker_reports_its_stages() -> None:
    stages: list[str] = []
    report = report_in_process(example_path("graph"), name="a <b> \x1b[1m run", progress=stages.append)
    assert tuple(stages) == STAGES
    assert report.verdict[0].startswith("The peak is 0.164 GiB")
    assert report.summary is not None
    assert report.summary.name == "a <b> \ufffd[1m run"
    assert "a &lt;b&gt;" in report.page


def test_the_worker_rejects_and_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = tmp_path / "bad.pickle"
    bad.write_bytes(b"\x80\x04}N" + b"\x85" * 150_000 + b"Ns.")
    with pytest.raises(SnapshotRejected, match="too large or malformed"):
        report_in_process(bad)
    with pytest.raises(SnapshotRejected, match="MB"):
        report_in_process(example_path("amp"), limits=Limits(most_bytes=1000, most_rows=1000))
    monkeypatch.setattr(service, "_MOST_SECONDS", 0.0)
    with pytest.raises(SnapshotRejected, match="too large or malformed"):
        report_in_process(example_path("amp"))


def test_every_example_opens() -> None:
    for name in EXAMPLES:
        for found in make.understood(example_path(name).read_bytes()).devices:
            make.check(found)
    with pytest.raises(ValueError, match="is not one of"):
        example_path("../amp")


def test_the_command_line_reads_what_memory_holds() -> None:
    assert command_line_limits().most_bytes >= 200_000_000


def test_what_the_package_exports_exists() -> None:
    import trainmem.snapshot

    assert all(hasattr(trainmem.snapshot, name) for name in exported)
