"""Writes the dataset's folder, the rows bundled with the package, and pushes a folder when asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from trainmem.results import MeasuredRow, Predictions
from trainmem.results.remote import ROWS_FILE
from trainmem_backend.publish.card import card
from trainmem_backend.publish.merge import Merged
from trainmem_backend.publish.table import write_parquet

__all__ = ["bundle", "push", "write_folder"]


def rows_text(rows: Sequence[MeasuredRow]) -> str:
    """JSON Lines of the rows as they were read, so that an id stays an id."""
    return "".join(json.dumps(row.data, separators=(", ", ": ")) + "\n" for row in rows)


def write_folder(merged: Merged, known: Predictions, folder: Path, *, title: str) -> None:
    """``data/rows.jsonl``, ``data/rows.parquet``, ``data/predictions.json`` and the card."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / ROWS_FILE).write_text(rows_text(merged.rows), encoding="utf-8")
    (folder / "data/predictions.json").write_text(predictions_text(known), encoding="utf-8")
    write_parquet(merged.rows, known, folder / "data/rows.parquet")
    (folder / "README.md").write_text(card(merged, known, title=title), encoding="utf-8")


def predictions_text(known: Predictions) -> str:
    """One row a line, so that a diff shows which predictions moved."""
    data = known.to_json()
    rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in data.pop("rows").items())
    head = json.dumps(data)[:-1]
    return f'{head}, "rows": {{\n{rows}\n}}}}\n'


def bundle(rows: Sequence[MeasuredRow], measured: Path, name: str) -> Path:
    """Write rows as ``<name>.jsonl`` among those that travel with the package."""
    if not name or any(not (c.isalnum() or c in "-._") for c in name):
        raise ValueError(f"bundle: {name!r} is not a file name of letters, digits, '-', '.' and '_'")
    path = measured / f"{name}.jsonl"
    path.write_text(rows_text(rows), encoding="utf-8")
    return path


def push(folder: Path, repo: str, *, message: str) -> str:
    """Upload the folder to a Hugging Face dataset, created where it does not exist; the commit to pin.

    Asks nobody for a token: huggingface_hub takes the one of ``hf auth login`` or of the environment.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(repo, repo_type="dataset", exist_ok=True)
    commit = api.upload_folder(
        folder_path=str(folder), repo_id=repo, repo_type="dataset", commit_message=message
    )
    return str(commit.oid)
