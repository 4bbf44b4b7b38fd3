"""Publishing: merging, refusing, predicting beside, and the files that come out."""

import copy
import json

import pytest

from trainmem.results import Prediction, predictions, published_rows, read_row, read_rows
from trainmem.results.published import read_predictions
from trainmem_backend.publish.answers import ask_engine, predict
from trainmem_backend.publish.card import accuracy_table, card
from trainmem_backend.publish.command import publish
from trainmem_backend.publish.folder import bundle, predictions_text, push, rows_text, write_folder
from trainmem_backend.publish.merge import merge, read_run
from trainmem_backend.publish.table import COLUMNS, flat


@pytest.fixture
def rows():
    """Three published steps of different kinds."""
    steps = [row for row in published_rows() if row.kind == "step" and row.outcome == "ok"]
    return [steps[0], steps[1], next(row for row in steps if row.job and row.job.lora)]


def doubled(row, **measured):
    data = copy.deepcopy(dict(row.data))
    data["measured"] |= measured
    return read_row(data)


def exact(job, engine):
    """An engine that is 1% too high, and one that has no answer."""
    if engine == "trace":
        return Prediction(error="no torch here")
    truth = next(row for row in published_rows() if row.job == job)
    return Prediction(peak_allocated_bytes=round(1.01 * (truth.peak_allocated_bytes or 0)))


def test_implausible_rows_are_refused_with_the_reason_and_repeated_ones_taken_once(rows):
    bad = doubled(rows[0], peak_reserved_bytes=1)
    merged = merge([rows, [rows[0], bad]])
    assert merged.rows == rows
    assert merged.repeated == 1
    (refused,) = merged.refused
    assert "peak_reserved_bytes" in refused.reasons[0]


def test_a_folder_holds_rows_table_card_and_predictions(rows, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    merged = merge([rows])
    known = predict(merged.rows, engines=("tape", "trace"), ask=exact)
    write_folder(merged, known, tmp_path, title="Measured")
    assert read_rows((tmp_path / "data/rows.jsonl").read_text()) == rows
    table = parquet.read_table(tmp_path / "data/rows.parquet").to_pylist()
    assert [line["peak_allocated_bytes"] for line in table] == [row.peak_allocated_bytes for row in rows]
    assert set(table[0]) == set(COLUMNS)
    assert json.loads(table[0]["row_json"]) == rows[0].data
    again = read_predictions(json.loads((tmp_path / "data/predictions.json").read_text()))
    assert again.of_row == known.of_row
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("---\n")
    assert "NVIDIA H200: 3 rows" in text
    assert "| tape | allocated | 3 | 0 | 1.00% | 1.00% | 1.00% | 0 |" in text


def test_an_engine_without_an_answer_says_why_and_is_counted(rows):
    known = predict(rows, engines=("trace",), ask=exact)
    assert all(answers["trace"].error == "no torch here" for answers in known.of_row.values())
    assert "trace" not in accuracy_table(rows, known)


def test_engines_that_are_not_asked_again_keep_their_answers(rows):
    first = predict(rows, engines=("tape",), ask=exact)
    second = predict(rows, engines=("trace",), known=first, ask=exact)
    assert {tuple(answers) for answers in second.of_row.values()} == {("tape", "trace")}


def test_only_missing_answers_are_asked_for_and_a_job_once(rows):
    asked = []

    def ask(job, engine):
        asked.append(engine)
        return exact(job, engine)

    twice = [*rows, read_row(dict(rows[0].data) | {"label": "again"})]
    first = predict(twice, engines=("tape",), ask=ask)
    assert len(asked) == len(rows)
    assert len(first.of_row) == len(twice)
    predict(twice, engines=("tape",), known=first, missing_only=True, ask=ask)
    assert len(asked) == len(rows)
    # An error is not an answer: it is asked for again.
    failed = predict(twice, engines=("trace",), ask=ask)
    predict(twice, engines=("trace",), known=failed, missing_only=True, ask=ask)
    assert asked.count("trace") == 2 * len(rows)


def test_the_tape_s_fallback_to_the_whiteboard_is_not_an_answer_of_the_tape(rows):
    job = rows[0].job
    assert job is not None
    board = ask_engine(job, "whiteboard")
    assert board.peak_allocated_bytes
    unknown = ask_engine(job.with_(config={"model_type": "never-seen"}), "tape")
    assert unknown.error
    assert unknown.peak_allocated_bytes is None


def test_predictions_are_written_one_row_a_line(rows):
    known = predict(rows, engines=("tape",), ask=exact)
    text = predictions_text(known)
    assert read_predictions(json.loads(text)).of_row == known.of_row
    assert len(text.splitlines()) == len(rows) + 2


def test_a_bundle_s_name_is_a_file_name(rows, tmp_path):
    assert bundle(rows, tmp_path, "h200-2026-12").read_text() == rows_text(rows)
    for name in ("../x", "", "a/b"):
        with pytest.raises(ValueError, match="bundle"):
            bundle(rows, tmp_path, name)


def test_publish_writes_what_is_good_and_exits_1_for_what_is_not(rows, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    run = tmp_path / "run"
    run.mkdir()
    bad = doubled(rows[0], peak_reserved_bytes=1)
    (run / "rows.jsonl").write_text(rows_text([*rows, bad]))
    options = {"bundled": False, "title": "T", "repo": None, "bundle_name": None}
    assert publish(runs=[run], out=tmp_path / "out", engines=("whiteboard",), **options) == 1
    said = capsys.readouterr()
    assert "1 refused" in said.err
    assert "| whiteboard | allocated | 3 |" in said.out
    assert len(read_run(tmp_path / "out/data/rows.jsonl")) == 3
    with pytest.raises(ValueError, match="engines: 'best' is not one of"):
        publish(runs=[run], out=tmp_path / "out", engines=("best",), **options)
    with pytest.raises(ValueError, match="run: missing"):
        publish(runs=[], out=tmp_path / "out", engines=(), **options)
    with pytest.raises(ValueError, match=r"run: .*nowhere"):
        publish(runs=[tmp_path / "nowhere"], out=tmp_path / "out", engines=(), **options)
    unread = tmp_path / "rows.jsonl"
    for content, said in ((b"", "no rows"), (b"\xff\xfe", r"rows\.jsonl is not text in UTF-8")):
        unread.write_bytes(content)
        with pytest.raises(ValueError, match=said):
            publish(runs=[unread], out=tmp_path / "empty", engines=(), **options)
    assert not (tmp_path / "empty").exists()


def test_pushing_names_the_commit_to_pin(monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    calls = []

    class Api:
        def create_repo(self, repo, repo_type, exist_ok):
            calls.append(("create", repo, repo_type, exist_ok))

        def upload_folder(self, *, folder_path, repo_id, repo_type, commit_message):
            calls.append(("upload", folder_path, repo_id, repo_type))
            return type("Commit", (), {"oid": "a" * 40})

    monkeypatch.setattr(hub, "HfApi", Api)
    assert push(tmp_path, "someone/rows", message="3 rows") == "a" * 40
    assert calls == [
        ("create", "someone/rows", "dataset", True),
        ("upload", str(tmp_path), "someone/rows", "dataset"),
    ]


def test_a_card_without_predictions_or_refusals_still_reads(rows):
    merged = merge([rows])
    text = card(merged, predict(rows, engines=()), title="T")
    assert "3 rows (3 ok)" in text


def test_the_bundled_predictions_belong_to_the_bundled_rows():
    known = predictions()
    if known.of_row:
        steps = {row.id for row in published_rows() if row.kind == "step" and row.outcome == "ok"}
        assert set(known.of_row) == steps


def test_a_flat_row_keeps_nulls(rows):
    line = flat(rows[2], predict(rows, engines=()))
    assert line["lora_rank"] == 16
    assert line["tape_allocated_bytes"] is None
    assert line["throughput_doubt"] is None
