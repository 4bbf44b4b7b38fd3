"""Rows as a flat table: one column a figure, for people who open the parquet file in a notebook."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainmem.results import ENGINES, MeasuredRow, Predictions, throughput_doubt

__all__ = ["COLUMNS", "flat", "write_parquet"]

_JOB = (
    "model",
    "task",
    "micro_batch",
    "sequence_length",
    "accumulation",
    "precision",
    "optimizer",
    "attention",
    "checkpointing",
    "loss",
    "zero_grad",
    "base_quantization",
)
_ENVIRONMENT = (
    "gpu",
    "gpu_memory_bytes",
    "driver",
    "torch",
    "transformers",
    "allocator_settings",
    "capacity_text",
    "commit",
    "command",
    "date",
)


def flat(row: MeasuredRow, known: Predictions) -> dict[str, Any]:
    """One row's figures side by side; ``row_json`` holds the whole row."""
    job = row.job.to_json() if row.job is not None else {}
    throughput = row.measured.get("throughput") or {}
    first = row.measured.get("first_step") or {}
    found: dict[str, Any] = {
        "id": row.id,
        "suite": row.suite,
        "label": row.label,
        "kind": row.kind,
        "outcome": row.outcome,
        "reason": row.reason,
        **{name: job.get(name) for name in _JOB},
        "family": (job.get("config") or {}).get("model_type"),
        "lora_rank": (job.get("lora") or {}).get("rank"),
        "sharding": (job.get("sharding") or {}).get("mode"),
        "data_parallel": (job.get("sharding") or {}).get("data_parallel"),
        "peak_allocated_bytes": row.peak_allocated_bytes,
        "peak_reserved_bytes": row.peak_reserved_bytes,
        "first_step_peak_bytes": first.get("peak_bytes"),
        "step_seconds": row.step_seconds,
        "real_tokens_per_second": throughput.get("real_tokens_per_second"),
        "padded_tokens_per_second": throughput.get("padded_tokens_per_second"),
        "throughput_doubt": throughput_doubt(row),
    }
    for engine in ENGINES:
        answer = known.of_row.get(row.id, {}).get(engine)
        found[f"{engine}_allocated_bytes"] = answer.peak_allocated_bytes if answer else None
        found[f"{engine}_reserved_bytes"] = answer.peak_reserved_bytes if answer else None
    found |= {name: row.environment.get(name) for name in _ENVIRONMENT}
    found["row_json"] = json.dumps(row.data, separators=(",", ":"))
    return found


_INTEGERS = ("micro_batch", "sequence_length", "accumulation", "lora_rank", "data_parallel")
_NUMBERS = ("step_seconds", "real_tokens_per_second", "padded_tokens_per_second")


def _schema() -> Any:
    import pyarrow

    names = list(flat_names())
    kinds = [
        pyarrow.int64()
        if name.endswith("_bytes") or name in _INTEGERS
        else pyarrow.float64()
        if name in _NUMBERS
        else pyarrow.string()
        for name in names
    ]
    return pyarrow.schema(list(zip(names, kinds, strict=True)))


def flat_names() -> tuple[str, ...]:
    """The columns in order."""
    empty = MeasuredRow(data={}, job=None, kind="step", outcome="ok", suite=None, label=None, reason=None)
    return tuple(flat(empty, Predictions(version="", of_row={}, traits_of_row={}, measured_bytes={})))


COLUMNS = flat_names()


def write_parquet(rows: Sequence[MeasuredRow], known: Predictions, path: Path) -> None:
    """One parquet file with a declared schema, so that a column of nulls keeps its type."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist([flat(row, known) for row in rows], schema=_schema())
    parquet.write_table(table, path, compression="zstd")
