"""What ``trainmem publish`` does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import trainmem
from trainmem.results import ENGINES, Predictions, forget_published_rows, predictions, published_rows
from trainmem_backend.publish.answers import predict
from trainmem_backend.publish.card import accuracy_table
from trainmem_backend.publish.folder import bundle, predictions_text, push, write_folder
from trainmem_backend.publish.merge import Merged, merge, read_run

__all__ = ["publish"]


def publish(
    *,
    runs: Sequence[Path],
    out: Path,
    bundled: bool,
    engines: tuple[str, ...],
    title: str,
    repo: str | None,
    bundle_name: str | None,
    missing_only: bool = False,
) -> int:
    """0, or 1 where rows were refused. Raises ``ValueError`` for wrong input."""
    for engine in engines:
        if engine not in ENGINES:
            raise ValueError(f"engines: {engine!r} is not one of {', '.join(ENGINES)}")
    if not runs and not bundled:
        raise ValueError("run: missing; name a run's folder, or give --bundled")
    fresh = merge(read_run(path) for path in runs)
    if runs and not fresh.rows and not fresh.refused:
        raise ValueError(f"run: {', '.join(map(str, runs))}: no rows, so there is nothing to publish")
    merged = fresh
    package = Path(trainmem.__file__).parent / "measured"
    if bundle_name is not None:
        _say(f"bundled: {bundle(fresh.rows, package, bundle_name)}")
        forget_published_rows()
        merged = merge([published_rows()])
        merged.refused += fresh.refused
    elif bundled:
        merged = merge([published_rows(), fresh.rows])
        merged.refused += fresh.refused
    _report(merged)

    def save(known: Predictions) -> None:
        if bundled or bundle_name is not None:
            (package / "predictions.json").write_text(predictions_text(known), encoding="utf-8")

    known = predict(merged.rows, engines=engines, known=predictions(), missing_only=missing_only, save=save)
    write_folder(merged, known, out, title=title)
    save(known)
    print(accuracy_table(merged.rows, known), end="")  # noqa: T201
    _say(f"written: {out}")
    if repo is not None:
        commit = push(out, repo, message=f"{len(merged.rows)} rows")
        _say(f"pushed: {repo}; read it as {repo}@{commit}")
    return 1 if fresh.refused else 0


def _report(merged: Merged) -> None:
    _say(f"{len(merged.rows)} rows, {merged.repeated} repeated, {len(merged.refused)} refused")
    for refused in merged.refused:
        name = f"{refused.row.suite}/{refused.row.label}"
        _say(f"refused {name}: {'; '.join(refused.reasons)}")


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201
