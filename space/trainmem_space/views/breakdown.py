"""Where it comes from: one row a bucket, tape and whiteboard side by side, each opening to its equation."""

from __future__ import annotations

import csv
import io
from html import escape
from typing import Any
from urllib.parse import quote

from trainmem.buckets import BUCKET_MEANINGS, BUCKETS, Bucket
from trainmem.whiteboard import GapItem, Term, Whiteboard
from trainmem_space.charts.text import size, words

__all__ = ["breakdown_csv", "breakdown_view"]


def breakdown_view(estimate: dict[str, Any], board: Whiteboard) -> str:
    """The table. Rows that are empty on both sides are left out."""
    at_peak = estimate["buckets_at_peak"]
    rows = "".join(
        _row(bucket, at_peak.get(bucket, 0), board)
        for bucket in BUCKETS
        if at_peak.get(bucket) or board.buckets.get(bucket)
    )
    link = quote(breakdown_csv(estimate, board))
    return (
        '<h2>Where it comes from</h2><div class="tm-breakdown">'
        '<div class="tm-cells tm-head"><span>Open for the sum</span>'
        f"<span>{estimate['engine'].capitalize()}</span>"
        f"<span>Whiteboard</span></div>{rows}"
        '<div class="tm-cells tm-total"><span>Total</span>'
        f"<span>{size(estimate['peak_allocated_bytes'])}</span><span>{size(board.peak_bytes)}</span></div></div>"
        f"{_why(board)}"
        '<p class="tm-actions"><a download="trainmem.csv" '
        f'href="data:text/csv;charset=utf-8,{link}">Download as CSV, exact bytes</a></p>'
    )


def breakdown_csv(estimate: dict[str, Any], board: Whiteboard) -> str:
    """The same table with exact bytes, one line a bucket."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["bucket", "tape_bytes", "whiteboard_bytes", "equation"])
    for bucket in BUCKETS:
        equations = "; ".join(term.substituted for term in _of(bucket, board.terms))
        table.writerow([bucket, estimate["buckets_at_peak"].get(bucket, 0), board.buckets[bucket], equations])
    table.writerow(["total", estimate["peak_allocated_bytes"], board.peak_bytes, ""])
    return text.getvalue()


def _of(bucket: Bucket, lines: tuple[Any, ...]) -> list[Any]:
    return [line for line in lines if line.bucket == bucket]


def _row(bucket: Bucket, tape_bytes: int, board: Whiteboard) -> str:
    terms: list[Term] = _of(bucket, board.terms)
    gap: list[GapItem] = _of(bucket, board.gap.items)
    sums = "".join(_term(term) for term in terms)
    if not sums:
        sums = "<dt>Not on the whiteboard</dt><dd>The tape finds it by replaying the step.</dd>"
    beyond = "".join(
        f"<dt>{escape(item.name)}</dt><dd><code>{escape(item.substituted)}</code>"
        f"<small>{escape(item.why)}</small></dd>"
        for item in gap
    )
    if beyond:
        beyond = f"<h3>What real code adds or drops at {escape(board.gap.instant)}</h3><dl>{beyond}</dl>"
    return (
        f'<details data-key="{bucket}"><summary class="tm-cells">'
        f'<span><i class="{bucket}"></i>{words(bucket)}</span><span>{size(tape_bytes)}</span>'
        f"<span>{size(board.buckets[bucket]) if terms else size(None)}</span></summary>"
        f"<div><p>{escape(BUCKET_MEANINGS[bucket].capitalize())}.</p><dl>{sums}</dl>{beyond}</div></details>"
    )


def _term(term: Term) -> str:
    return (
        f"<dt>{escape(term.name)} <em>{escape(term.certainty)}</em></dt>"
        f"<dd><code>{escape(term.equation)}</code><code>{escape(term.substituted)}</code>"
        f"<small>{escape(term.source)}</small></dd>"
    )


def _why(board: Whiteboard) -> str:
    return (
        '<p class="tm-note">The whiteboard adds up everything as if it were alive at once. '
        f"With what real code adds and drops at {escape(board.gap.instant)}, it comes to "
        f"{size(board.gap.peak_bytes)}; the tape replays every allocation.</p>"
    )
