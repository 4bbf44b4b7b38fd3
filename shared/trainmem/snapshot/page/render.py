"""Putting the page together: words and tables here, the timeline drawn by the page's own script."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from trainmem.buckets import BUCKETS
from trainmem.palette import ACCENT, ACCENT_DARK, BUCKET_COLOURS
from trainmem.recording import PHASES
from trainmem.snapshot.analysis import Analysis, DeviceAnalysis
from trainmem.snapshot.compare import Comparison, Difference
from trainmem.snapshot.notes import name_of, notes_of
from trainmem.snapshot.summary import Summary
from trainmem.snapshot.verdict import verdict_of
from trainmem.snapshot.view import view_of
from trainmem.units import format_bytes, format_gib

__all__ = ["render_comparison", "render_page"]

_MOST_DEVICES = 16
_MOST_STEPS = 12
_MOST_SITES = 20
_SMALL_BYTES = 1 << 19
_FAILURES_ABREAST = 3
"""So many stand beside each other, a line a figure, which a phone has room for; more are a line each."""
_PHASE_NAMES = (*(phase.replace("_", " ") for phase in PHASES), "before the recording")
_PHASE_COLOURS = ("#7c828b", "#4c98df", "#cd7b23", "#7e57e1", "#19c2a9", "#a7719f")


def render_page(analysis: Analysis, *, comparison: Comparison | None = None) -> str:
    """One HTML page with everything in it, and what changed since another run where that is given."""
    shown = [device for device in analysis.devices if device.peak_allocated_bytes > 0][:_MOST_DEVICES]
    views: list[Mapping[str, Any]] = [view_of(analysis, device) for device in shown]
    body = [_header(analysis), _limits(notes_of(analysis)), _verdict(verdict_of(analysis))]
    if comparison:
        body.append(_comparison(comparison))
    for number, device in enumerate(shown):
        body.append(_device(analysis, device, number, several=len(shown) > 1))
    if comparison:
        body.append(_timeline(comparison.before, views))
    return _page(analysis.snapshot.source.name, "".join(body), views)


def render_comparison(comparison: Comparison) -> str:
    """A page of the comparison alone, both timelines below it."""
    views: list[Mapping[str, Any]] = []
    body = [
        _comparison(comparison),
        _timeline(comparison.after, views),
        _timeline(comparison.before, views),
    ]
    return _page(f"{comparison.before.name} and {comparison.after.name}", "".join(body), views)


def _timeline(summary: Summary, views: list[Mapping[str, Any]]) -> str:
    if summary.view is None:
        return ""
    views.append(summary.view)
    return f'<h2>{escape(summary.name)}</h2><section data-view="{len(views) - 1}"></section>'


def _page(name: str, body: str, views: Sequence[Mapping[str, Any]]) -> str:
    style = f":root{{--accent-light:{ACCENT};--accent-dark:{ACCENT_DARK}}}\n{_asset('report.css')}"
    script = _asset("report.js")
    data = _embedded(
        {
            "views": views,
            "buckets": [bucket.replace("_", " ") for bucket in BUCKETS],
            "bucket_colours": [BUCKET_COLOURS[bucket] for bucket in BUCKETS],
            "phases": _PHASE_NAMES,
            "phase_colours": _PHASE_COLOURS,
        }
    )
    policy = (
        f"default-src 'none'; script-src '{_fingerprint(script)}'; style-src '{_fingerprint(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)}: memory snapshot</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n"
        f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script>\n</body>\n</html>\n'
    )


def _asset(name: str) -> str:
    return files("trainmem.snapshot.page").joinpath(name).read_text(encoding="utf-8")


def _fingerprint(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode('utf-8')).digest()).decode('ascii')}"


def _embedded(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _header(analysis: Analysis) -> str:
    source = analysis.snapshot.source
    events = sum(len(trace) for trace in analysis.snapshot.traces)
    size = source.size_bytes
    shown = f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"
    facts = f"{source.format}{', gzip' if source.gzip else ''}, {shown}, {events:,} events"
    return f'<header><h1>{escape(source.name)}</h1><p class="meta">{escape(facts)}</p></header>'


def _limits(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section class="limits"><h2>What this file cannot tell</h2><ul>{items}</ul></section>'


def _verdict(sentences: Sequence[str]) -> str:
    return f'<section class="verdict">{"".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)}</section>'


def _device(analysis: Analysis, device: DeviceAnalysis, number: int, *, several: bool) -> str:
    title = f"<h2>{escape(name_of(device))}</h2>" if several else ""
    return (
        f'{title}<section data-view="{number}"></section><noscript>{_peak_tables(device)}</noscript>'
        f"{_failures(device)}{_leak(device)}{_steps(device)}{_fragmentation(device)}"
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, code: bool = False) -> str:
    """The first column is text, the others numbers; all cells are escaped here and nowhere else."""
    first = '<td class="code">' if code else '<td class="name">'
    head = "".join(
        f"<th{'' if number == 0 else ' class=number'}>{escape(text)}</th>"
        for number, text in enumerate(heads)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"{first if number == 0 else '<td class=number>'}{escape(text)}</td>"
            for number, text in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _peak_tables(device: DeviceAnalysis) -> str:
    peak = device.peak_allocated_bytes
    buckets = [
        (bucket.replace("_", " "), _size(size), f"{size / peak:.1%}")
        for bucket, size in device.buckets_at_peak.items()
        if size
    ]
    sites = [
        (site.site, _size(site.bytes), f"{site.blocks:,}") for site in device.call_sites_at_peak[:_MOST_SITES]
    ]
    return (
        f"<h3>At the peak: {escape(format_gib(peak))}</h3>{_table(('Bucket', 'Size', 'Share'), buckets)}"
        f"{_table(('Call site', 'Size', 'Blocks'), sites, code=True)}"
    )


def _failures(device: DeviceAnalysis) -> str:
    if not device.failures:
        return ""
    columns = [
        (
            f"event {failure.event:,}",
            format_bytes(failure.requested_bytes),
            format_gib(failure.allocated_bytes),
            format_gib(failure.reserved_bytes),
            "unknown"
            if failure.largest_free_block_bytes is None
            else format_bytes(failure.largest_free_block_bytes),
            format_bytes(failure.private_pool_free_bytes),
            format_bytes(failure.device_free_bytes),
        )
        for failure in device.failures
    ]
    names = (
        "Out of memory",
        "Asked for",
        "Allocated",
        "Reserved",
        "Largest free piece",
        "Free in private pools",
        "Free on the device",
    )
    if len(columns) > _FAILURES_ABREAST:
        return f"<h3>Where memory ran out</h3>{_table(names, columns)}"
    heads, *rows = zip(names, *columns, strict=True)
    return f"<h3>Where memory ran out</h3>{_table(heads, rows)}"


def _leak(device: DeviceAnalysis) -> str:
    if device.leak is None:
        return ""
    rows = [
        (
            growth.site,
            f"+{format_bytes(growth.bytes_a_step)}",
            f"{growth.blocks_a_step:+g}",
            format_bytes(growth.held_bytes),
        )
        for growth in device.leak.sites
    ]
    heads = ("Allocated at", f"Each {device.leak.unit}", "Blocks", "Held at the end")
    return f"<h3>What grows from step to step</h3>{_table(heads, rows, code=True)}"


def _steps(device: DeviceAnalysis) -> str:
    steps = list(device.steps)
    if len(steps) < 2:
        return ""
    left_out = len(steps) - _MOST_STEPS
    if left_out > 0:
        steps = [*steps[:3], *steps[3 - _MOST_STEPS :]]
    phases = [phase for phase in PHASES[1:] if any(phase in step.phase_peaks_bytes for step in steps)]
    rows = [
        (
            f"step {step.step}{'' if step.is_whole else ' (part)'}",
            *(
                format_gib(step.phase_peaks_bytes[phase]) if phase in step.phase_peaks_bytes else ""
                for phase in phases
            ),
        )
        for step in steps
    ]
    note = f'<p class="meta">{left_out:,} steps between them are left out.</p>' if left_out > 0 else ""
    return f"<h3>The peak of each phase</h3>{_table(('', *(phase.replace('_', ' ') for phase in phases)), rows)}{note}"


def _fragmentation(device: DeviceAnalysis) -> str:
    found = device.fragmentation
    rows = [
        ("reserved, not allocated, at the peak", format_gib(found.at_peak_bytes)),
        ("the most at any time", format_gib(found.most_bytes)),
        ("at the end", format_gib(found.at_end_bytes)),
        (
            "of that in whole free segments, which empty_cache() gives back",
            format_gib(found.idle_segments_bytes),
        ),
    ]
    if found.private_pool_bytes:
        rows.append(("reserved for private pools", format_gib(found.private_pool_bytes)))
    held = [
        (
            f"0x{segment.address:x}",
            format_bytes(segment.size_bytes),
            format_bytes(segment.used_bytes),
            format_bytes(segment.largest_free_bytes),
        )
        for segment in found.held[:8]
    ]
    table = (
        "<h3>Segments held back at the "
        f"end</h3>{_table(('Segment', 'Size', 'Used', 'Largest free piece'), held)}"
        if held
        else ""
    )
    return f"<h3>Fragmentation</h3>{_table(('', 'Size'), rows)}{table}"


def _comparison(comparison: Comparison) -> str:
    before, after, peak = comparison.before, comparison.after, comparison.peak
    heads = ("", before.name, after.name, "Change")
    buckets = [row for row in comparison.buckets if row.before_bytes or row.after_bytes]
    parts = [
        f"<h2>Compared with {escape(before.name)}</h2><p>{escape(comparison.verdict)}</p>",
        _table(heads, map(_difference_row, [*buckets, peak])),
    ]
    if comparison.phases:
        parts.append("<h3>Peak of each phase</h3>" + _table(heads, map(_difference_row, comparison.phases)))
    if comparison.sites:
        rows = map(_difference_row, _largest(comparison.sites, max(peak.before_bytes, peak.after_bytes)))
        parts.append(f"<h3>By call site</h3>{_table(heads, rows, code=True)}")
    return "".join(parts)


def _largest(rows: Sequence[Difference], peak: int) -> list[Difference]:
    """The changes worth a line; the rest in one, so that the columns still sum to the peaks."""
    kept = [row for row in rows[:_MOST_SITES] if abs(row.change_bytes) > peak // 2000]
    rest = rows[len(kept) :]
    if rest:
        kept.append(
            Difference(
                name=f"{len(rest):,} other call sites",
                before_bytes=sum(row.before_bytes for row in rest),
                after_bytes=sum(row.after_bytes for row in rest),
            )
        )
    return kept


def _size(size: int) -> str:
    return "<0.001 GiB" if 0 < size < _SMALL_BYTES else format_gib(size)


def _difference_row(row: Difference) -> tuple[str, ...]:
    sign = "+" if row.change_bytes > 0 else "-" if row.change_bytes < 0 else ""
    return (
        row.name.replace("_", " ") if "/" not in row.name else row.name,
        _size(row.before_bytes),
        _size(row.after_bytes),
        f"{sign if abs(row.change_bytes) >= _SMALL_BYTES else ''}{_size(abs(row.change_bytes))}",
    )
