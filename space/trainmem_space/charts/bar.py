"""Stacked horizontal bars on one byte axis, with the lines of the machines they must stay under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from trainmem.buckets import BUCKET_MEANINGS, BUCKETS
from trainmem.scale import axis_end_bytes, share, tick_bytes
from trainmem.units import format_gib
from trainmem_space.charts.text import percent, tick, words

__all__ = ["Bar", "CapacityLine", "bars"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One scenario: what fills it, in GiB on the shared axis.

    ``caption`` is HTML beside the total. ``outline_bytes`` draws the total of the scenario just left.
    ``unused_bytes`` is reserved but not allocated. ``slim`` draws a lower bar, for comparison.
    """

    caption: str
    buckets_bytes: Mapping[str, int]
    total_bytes: int
    end_bytes: int
    outline_bytes: int | None = None
    unused_bytes: int = 0
    slim: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityLine:
    """A machine's memory: its name with both numbers, where the line stands, dashed when it is assumed."""

    label: str
    at_bytes: int
    dashed: bool = False
    chosen: bool = False


def bars(rows: Sequence[Bar], lines: Sequence[CapacityLine]) -> str:
    """The figure. Its text alternative names every bar's total and every line."""
    ends = [row.end_bytes for row in rows] + [row.outline_bytes or 0 for row in rows]
    shown = [line for line in lines if line.chosen or share(line.at_bytes, max(ends)) < 12]
    axis = axis_end_bytes(*ends, *(line.at_bytes for line in shown))
    limit = next((line.at_bytes for line in shown if line.chosen), None)
    ticks = "".join(_tick(at, axis) for at in tick_bytes(axis))
    return (
        f'<figure class="tm-bars" role="img" aria-label="{escape(_said(rows, shown))}">'
        f'<div class="tm-plot" style="--rows:{len(shown)}"><div class="tm-lines">{_lines(shown, axis)}</div>'
        f"{''.join(_row(row, axis, limit) for row in rows)}</div>"
        f'<div class="tm-axis" aria-hidden="true">{ticks}</div></figure>'
    )


def _tick(at_bytes: int, axis_bytes: int) -> str:
    at = share(at_bytes, axis_bytes)
    end = ' class="end"' if at > 0.95 else ""
    return f'<span{end} style="left:{percent(at)}">{tick(at_bytes) if at_bytes else "0 GiB"}</span>'


def _lines(lines: Sequence[CapacityLine], axis_bytes: int) -> str:
    stems, labels = [], []
    for row, line in enumerate(sorted(lines, key=lambda line: line.at_bytes)):
        at = share(line.at_bytes, axis_bytes)
        flags = {"dashed": line.dashed, "chosen": line.chosen}
        kind = " ".join(flag for flag, on in flags.items() if on)
        # The style sheet shifts a label left by this share of its own width too: it stays inside the chart.
        place = f'style="--at:{percent(at)};--row:{row}"'
        stems.append(f'<div class="tm-line {kind}" {place}></div>')
        labels.append(f'<div class="tm-label {kind}" {place}>{escape(line.label)}</div>')
    # Labels after all stems, so that a stem passes behind a label in its way.
    return "".join(stems + labels)


def _row(row: Bar, axis_bytes: int, limit_bytes: int | None) -> str:
    parts = []
    for bucket in BUCKETS:
        part = row.buckets_bytes.get(bucket, 0)
        width = percent(share(part, axis_bytes))
        # A bucket that is empty keeps its element, so that a bucket that fills grows from nothing.
        label = f"<span>{words(bucket)}</span>" if part else ""
        title = f"{bucket.replace('_', ' ')}: {format_gib(part)} ({part:,} bytes); {BUCKET_MEANINGS[bucket]}"
        parts.append(f'<i class="{bucket}" style="width:{width}" title="{escape(title)}">{label}</i>')
    unused = percent(share(row.unused_bytes, axis_bytes))
    title = f"reserved, not allocated: {format_gib(row.unused_bytes)} ({row.unused_bytes:,} bytes)"
    parts.append(f'<i class="unused" style="width:{unused}" title="{escape(title)}"></i>')
    if limit_bytes is not None:
        over = share(max(limit_bytes, 0), axis_bytes)
        end = share(max(row.end_bytes, limit_bytes), axis_bytes)
        parts.append(f'<b class="over" style="left:{percent(over)};right:{percent(1 - end)}"></b>')
    if row.outline_bytes is not None:
        parts.append(f'<b class="ghost" style="width:{percent(share(row.outline_bytes, axis_bytes))}"></b>')
    kind = "tm-bar slim" if row.slim else "tm-bar"
    caption = f'<div class="tm-caption">{row.caption}</div>'
    return f'<div class="{kind}">{caption}<div class="tm-track">{"".join(parts)}</div></div>'


def _said(rows: Sequence[Bar], lines: Sequence[CapacityLine]) -> str:
    totals = [
        ", ".join(
            f"{bucket.replace('_', ' ')} {format_gib(part)}"
            for bucket in BUCKETS
            if (part := row.buckets_bytes.get(bucket))
        )
        for row in rows
    ]
    bars = [
        f"bar {i}: {format_gib(row.total_bytes)} ({parts})"
        for i, (row, parts) in enumerate(zip(rows, totals, strict=True), 1)
    ]
    return "; ".join(bars + [f"line: {line.label}" for line in lines])
