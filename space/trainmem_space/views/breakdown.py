"""Where it comes from: one row a bucket, tape and whiteboard side by side, each opening to its equation."""

from __future__ import annotations

import csv
import io
from html import escape
from typing import Any
from urllib.parse import quote

from trainmem.buckets import BUCKET_MEANINGS, BUCKETS, Bucket
from trainmem.whiteboard import GapItem, Term, Whiteboard
from trainmem_space.charts.text import cell, size, words

__all__ = ["breakdown_csv", "breakdown_view"]


def breakdown_view(estimate: dict[str, Any], board: Whiteboard) -> str:
    """The table. Rows that are empty on both sides are left out."""
    at_peak = _replayed(estimate)
    rests = board.rests(at_peak) if at_peak else {}
    rows = "".join(
        _row(bucket, at_peak.get(bucket, 0) if at_peak else None, rests.get(bucket), board)
        for bucket in BUCKETS
        if at_peak.get(bucket) or board.buckets.get(bucket)
    )
    total = estimate["peak_allocated_bytes"] if at_peak else None
    link = quote(breakdown_csv(estimate, board))
    return (
        '<h2>Where it comes from</h2><div class="tm-breakdown">'
        '<div class="tm-cells tm-head"><span>Open for the sum</span>'
        f"<span>Tape</span><span>Whiteboard</span></div>{rows}"
        '<div class="tm-cells tm-total"><span>Total</span>'
        f"<span>{size(total)}</span><span>{size(board.peak_bytes)}</span></div></div>"
        f"{_why(board, rests)}"
        '<p class="tm-actions"><a download="trainmem.csv" '
        f'href="data:text/csv;charset=utf-8,{link}">Download as CSV, exact bytes</a></p>'
    )


def breakdown_csv(estimate: dict[str, Any], board: Whiteboard) -> str:
    """The same table with exact bytes, one line a bucket; the tape's are empty for a job that it does not know."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["bucket", "tape_bytes", "whiteboard_bytes", "equation"])
    at_peak = _replayed(estimate)
    for bucket in BUCKETS:
        equations = "; ".join(term.substituted for term in _of(bucket, board.terms))
        tape = at_peak.get(bucket, 0) if at_peak else ""
        table.writerow([bucket, tape, board.buckets[bucket], equations])
    table.writerow(["total", estimate["peak_allocated_bytes"] if at_peak else "", board.peak_bytes, ""])
    return text.getvalue()


def _replayed(estimate: dict[str, Any]) -> dict[Bucket, int]:
    """The buckets of a replayed step; empty where the answer is the whiteboard's own."""
    return {} if estimate["engine"] == "whiteboard" else estimate["buckets_at_peak"]


def _of(bucket: Bucket, lines: tuple[Any, ...]) -> list[Any]:
    return [line for line in lines if line.bucket == bucket]


def _row(bucket: Bucket, tape_bytes: int | None, rest_bytes: int | None, board: Whiteboard) -> str:
    terms: list[Term] = _of(bucket, board.terms)
    gap: list[GapItem] = _of(bucket, board.gap.items) if rest_bytes is not None else []
    sums = "".join(_term(term) for term in terms)
    if not sums:
        sums = "<dt>Not on the whiteboard</dt><dd>The tape finds it by replaying the step.</dd>"
    beyond = "".join(
        f"<dt>{escape(item.name)}</dt><dd><code>{escape(item.substituted)}</code>"
        f"<small>{escape(item.why)}</small></dd>"
        for item in gap
    )
    if rest_bytes and (terms or gap):
        beyond += _rest(rest_bytes)
    if beyond:
        beyond = f"<h3>What real code adds or drops at {escape(board.gap.instant)}</h3><dl>{beyond}</dl>"
    return (
        f'<details data-key="{bucket}"><summary class="tm-cells">'
        f'<span><i class="{bucket}"></i>{words(bucket)}</span><span>{cell(tape_bytes)}</span>'
        f"<span>{cell(board.buckets[bucket] if terms else None)}</span></summary>"
        f"<div><p>{escape(BUCKET_MEANINGS[bucket].capitalize())}.</p><dl>{sums}</dl>{beyond}</div></details>"
    )


def _term(term: Term) -> str:
    return (
        f"<dt>{escape(term.name)} <em>{escape(term.certainty)}</em></dt>"
        f"<dd><code>{escape(term.equation)}</code><code>{escape(term.substituted)}</code>"
        f"<small>{escape(term.source)}</small></dd>"
    )


def _rest(rest_bytes: int) -> str:
    sign = "+" if rest_bytes > 0 else "−"
    return (
        f"<dt>The rest</dt><dd>{sign}{size(abs(rest_bytes))}"
        "<small>what no line names: roundings, scratch memory, tensors on their way at that instant</small></dd>"
    )


def _why(board: Whiteboard, rests: dict[Bucket, int]) -> str:
    alone = "The whiteboard adds up everything as if it were alive at once."
    if not rests:
        return (
            f'<p class="tm-note">{alone} The tape does not know this job, so no step was replayed '
            "and there is nothing to lay beside it.</p>"
        )
    rest = sum(rests.values())
    return (
        f'<p class="tm-note">{alone} With what real code adds and drops at {escape(board.gap.instant)}, '
        f"it comes to {size(board.gap.peak_bytes)}; the tape, which replays every allocation, finds "
        f"{size(abs(rest))} {'more' if rest >= 0 else 'less'}.</p>"
    )
