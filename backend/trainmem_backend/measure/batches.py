"""The search for the largest micro batch, each step of it a trial in its own process."""

from __future__ import annotations

from typing import Any

from trainmem_backend.measure.attempt import Attempts
from trainmem_backend.measure.largest import LEAST_TRIALS, Search
from trainmem_backend.measure.trial import Trial

__all__ = ["find_largest"]

_FITS_OR_NOT = ("ok", "oom", "guard_stopped")


def find_largest(trial: Trial, attempts: Attempts) -> list[dict[str, Any]]:
    """The rows of the batches tried, and last the row that says which was the largest to fit."""
    assert trial.job is not None
    job = trial.job
    cap = attempts.crew.cap()
    if attempts.predictor.peak_bytes(job.with_(micro_batch=1)) is None:
        return [attempts.skip(trial, "no prediction to start the search from")]

    def peak(batch: int) -> int:
        return attempts.predictor.peak_bytes(job.with_(micro_batch=batch)) or 0

    def fits_in(batch: int, capacity_bytes: int) -> bool:
        return bool(attempts.predictor.fits(job.with_(micro_batch=batch), capacity_bytes))

    search = Search(fits_in=fits_in, peak_bytes=peak, capacity_bytes=cap.cap_bytes)
    rows: list[dict[str, Any]] = []
    trials = search.trials()
    batch = next(trials, None)
    while batch is not None:
        # Step 2 is the first with optimizer state; more steps would prove nothing more.
        probe = Trial(
            suite=trial.suite,
            label=f"{trial.label}, b = {batch}",
            job=job.with_(micro_batch=batch),
            passes=("memory",),
            options={"steps": 2, "probe": True},
            forced=True,
        )
        if len(rows) >= LEAST_TRIALS:
            attempts.crew.expect(1)
        row = attempts.folder.row_of(probe.key) or attempts.run(probe)
        assert row is not None
        if row["outcome"] not in _FITS_OR_NOT:
            why = f"b = {batch} ended as {row['outcome']}: {row['reason']}"
            return [*rows, attempts.skip(trial, why)]
        rows.append(row)
        fitted = row["outcome"] == "ok"
        try:
            batch = trials.send(row["measured"]["peak_allocated_bytes"] if fitted else None)
        except StopIteration:
            batch = None
    row = {**attempts.blank(trial), "outcome": "ok", "measured": search.to_json()}
    row["guard"] = {"cap_bytes": cap.cap_bytes, "cap_reason": cap.reason}
    row["environment"] = attempts.described()
    return [*rows, attempts.write(row)]
