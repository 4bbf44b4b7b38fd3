"""One measured row: what ran, what it took, where, and how it ended (schema ``trainmem.measured/1``)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trainmem.job import JobError, TrainingJob

__all__ = [
    "KINDS",
    "OUTCOMES",
    "SCHEMA",
    "Kind",
    "MeasuredRow",
    "Outcome",
    "RowError",
    "read_row",
    "read_rows",
]

SCHEMA = "trainmem.measured/1"

Outcome = Literal["ok", "oom", "guard_stopped", "killed", "error", "skipped"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

Kind = Literal["step", "largest_batch", "curve", "machine", "preflight"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_WITHOUT_JOB = ("machine", "preflight")


class RowError(ValueError):
    """Not a row: the message names the field, the value and what is allowed, in one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRow:
    """A row as it was published, with its parts read.

    ``data`` is the JSON object itself and is what is written again, so that nothing a later version adds is
    lost. Rows from before ``suite``, ``kind`` and ``outcome`` existed are steps that ended well.
    """

    data: Mapping[str, Any]
    job: TrainingJob | None
    kind: Kind
    outcome: Outcome
    suite: str | None
    label: str | None
    reason: str | None

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that name this row: the start of the SHA-256 of its canonical JSON."""
        text = json.dumps(self.data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def measured(self) -> Mapping[str, Any]:
        """The figures; empty where nothing was measured."""
        return self.data.get("measured") or {}

    @property
    def environment(self) -> Mapping[str, Any]:
        """The machine, the software and the command."""
        return self.data.get("environment") or {}

    @property
    def machine(self) -> str:
        """The GPU's name, and the capacity it stood in for where it was held to a smaller one."""
        gpu = str(self.environment.get("gpu") or "no GPU")
        stands_for = self.environment.get("capacity_text")
        return f"{gpu}, held to {stands_for}" if stands_for else gpu

    @property
    def peak_allocated_bytes(self) -> int | None:
        """Highest allocated bytes of a steady step."""
        return self._bytes("peak_allocated_bytes")

    @property
    def peak_reserved_bytes(self) -> int | None:
        """Highest reserved bytes of the run."""
        return self._bytes("peak_reserved_bytes")

    @property
    def step_seconds(self) -> float | None:
        """See `seconds_of`."""
        return seconds_of(self.data)

    def _bytes(self, name: str) -> int | None:
        value = self.measured.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def seconds_of(data: Mapping[str, Any]) -> float | None:
    """Seconds of a row's steady step: of the timing pass, else of the pass that read the counters."""
    measured = data.get("measured") or {}
    timed = (measured.get("throughput") or {}).get("step_seconds")
    if timed is None and "throughput" not in measured:
        timed = (measured.get("steady_step") or {}).get("seconds")
    return float(timed) if isinstance(timed, int | float) else None


def read_row(data: object) -> MeasuredRow:
    """The row in a JSON object. Raises `RowError` where the object is not one."""
    if not isinstance(data, Mapping):
        raise RowError(f"row: {type(data).__name__} is not a JSON object")
    if data.get("schema") != SCHEMA:
        raise RowError(f"schema: {data.get('schema')!r} is not {SCHEMA!r}")
    kind = data.get("kind", "step")
    if kind not in KINDS:
        raise RowError(f"kind: {kind!r} is not one of {', '.join(KINDS)}")
    outcome = data.get("outcome", "ok")
    if outcome not in OUTCOMES:
        raise RowError(f"outcome: {outcome!r} is not one of {', '.join(OUTCOMES)}")
    for name in ("measured", "environment"):
        if not isinstance(data.get(name), Mapping | None):
            raise RowError(f"{name}: {type(data[name]).__name__} is not a JSON object")
    for name in ("suite", "label", "reason"):
        if not isinstance(data.get(name), str | None):
            raise RowError(f"{name}: {data[name]!r} is not a text")
    job = None
    if kind not in _WITHOUT_JOB:
        try:
            job = TrainingJob.from_json(data.get("job"))
        except JobError as error:
            raise RowError(f"job.{error}") from None
    return MeasuredRow(
        data=data,
        job=job,
        kind=kind,
        outcome=outcome,
        suite=data.get("suite"),
        label=data.get("label"),
        reason=data.get("reason"),
    )


def read_rows(text: str, *, source: str = "rows") -> list[MeasuredRow]:
    """The rows of a JSON Lines text; blank lines are skipped. Raises `RowError` naming source and line."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(read_row(json.loads(line)))
        except RowError as error:
            raise RowError(f"{source}, line {number}: {error}") from None
        except ValueError as error:
            raise RowError(f"{source}, line {number}: not JSON ({error})") from None
        except RecursionError:
            raise RowError(f"{source}, line {number}: nested too deeply") from None
    return rows
