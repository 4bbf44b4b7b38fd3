"""The dataset's card and the accuracy table, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from trainmem.results import ENGINES, MeasuredRow, Predictions, accuracy
from trainmem.results.accuracy import Counter, by_trait
from trainmem.results.likeness import TRAITS
from trainmem_backend.publish.merge import Merged

__all__ = ["accuracy_table", "card"]

_SHOWN_TRAITS = ("precision", "family", "checkpointing", "adapters")


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def accuracy_table(rows: Sequence[MeasuredRow], known: Predictions) -> str:
    """Median, 95th percentile and worst error of each engine, overall and by what moves it most."""
    lines = [
        "| engine | counter | rows | no answer | median | p95 | worst | under by > 0.5% |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    counters: tuple[Counter, ...] = ("allocated", "reserved")
    for engine in ENGINES:
        for counter in counters:
            found = accuracy(rows, known, engine, counter)
            if found is not None:
                lines.append(
                    f"| {engine} | {counter} | {found.rows} | {found.unanswered} | {_percent(found.median)} "
                    f"| {_percent(found.p95)} | {_percent(found.worst)} | {found.under} |"
                )
    for trait in _SHOWN_TRAITS:
        tables = {engine: by_trait(rows, known, engine, TRAITS.index(trait)) for engine in ENGINES}
        values = sorted({value for table in tables.values() for value in table})
        if len(values) < 2:
            continue
        lines += ["", f"| {trait} | rows | {' | '.join(ENGINES)} |", "|---|---:|" + "---:|" * len(ENGINES)]
        for value in values:
            cells = []
            for engine in ENGINES:
                found = tables[engine].get(value)
                cells.append(f"{_percent(found.median)} ({_percent(found.worst)})" if found else "-")
            count = max(table[value].rows for table in tables.values() if value in table)
            lines.append(f"| {value} | {count} | {' | '.join(cells)} |")
    if len(lines) > 2:
        lines += ["", "By trait: median, and worst in brackets, of the allocated peak."]
    return "\n".join(lines) + "\n"


def card(merged: Merged, known: Predictions, *, title: str) -> str:
    """The README of the dataset's folder."""
    rows = merged.rows
    machines = sorted({row.machine for row in rows})
    torches = sorted({str(row.environment.get("torch")) for row in rows})
    outcomes = ", ".join(
        f"{sum(row.outcome == outcome for row in rows)} {outcome}"
        for outcome in dict.fromkeys(row.outcome for row in rows)
    )
    machine_lines = "\n".join(
        f"- {name}: {sum(row.machine == name for row in rows)} rows, total memory {_total(rows, name)}"
        for name in machines
    )
    return f"""---
license: apache-2.0
pretty_name: {title}
tags:
- memory
- training
- gpu
configs:
- config_name: default
  data_files: data/rows.parquet
---
# {title}

Training steps measured on real GPUs: the peak of allocated and reserved memory phase by phase, for step 1
and for a steady step, each beside what trainmem predicts for the same job. {len(rows)} rows ({outcomes});
torch {", ".join(torches)}.

{machine_lines}

## How far off the predictions are
{accuracy_table(rows, known)}
An error is predicted over measured, minus 1. Predictions were made by trainmem {known.version} when the
rows were published.

## Files
- `data/rows.jsonl`: the rows, schema `trainmem.measured/1`, one JSON object a line.
- `data/rows.parquet`: the same as a flat table, one column a figure; `row_json` holds the whole row.
- `data/predictions.json`: every engine's answer to every row.

## How it was measured
One fresh process a job. Counters, hooks and times are taken in separate passes. Rows say how they ended
(`ok`, `oom`, `guard_stopped`, `killed`, `error`, `skipped`) and why. A machine held to a smaller capacity
says so and has no times. {len(merged.refused)} rows were refused as implausible.
"""


def _total(rows: Sequence[MeasuredRow], machine: str) -> str:
    totals = {
        int(row.environment["gpu_memory_bytes"])
        for row in rows
        if row.machine == machine and row.environment.get("gpu_memory_bytes")
    }
    return ", ".join(f"{total:,} bytes" for total in sorted(totals)) or "not recorded"
