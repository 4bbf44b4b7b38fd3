"""Draw a chart in a terminal or on a printed sheet."""

from __future__ import annotations

from trainmem.quiz.chart import Chart

__all__ = ["chart_text"]

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def chart_text(chart: Chart, *, width: int = 64, height: int = 10) -> str:
    """The chart's total as columns of blocks, with a scale in GiB, its ribbons and its limit."""
    totals = chart.totals_gib
    top = max(*totals, chart.limit.value_gib if chart.limit else 0.0) * 1.05
    span = chart.x[-1] - chart.x[0] or 1.0
    columns = [_at(chart, totals, chart.x[0] + span * i / (width - 1)) for i in range(width)]
    limit_row = int(chart.limit.value_gib / top * height) if chart.limit else None
    lines = [chart.title]
    for row in range(height - 1, -1, -1):
        cells = []
        for value in columns:
            eighths = round(8 * max(0.0, min(1.0, value / top * height - row)))
            cells.append("─" if eighths == 0 and row == limit_row else _EIGHTHS[eighths])
        label = f"{top * (row + 1) / height:6.1f} " if row % 3 == height % 3 else " " * 7
        note = f" {chart.limit.label}" if chart.limit and row == limit_row else ""
        lines.append(f"{label}│{''.join(cells)}{note}")
    lines.append(f"{'GiB':>6} └{'─' * width}")
    for row_text in (_ribbons(chart, width, span), _x_labels(chart, width, span)):
        if row_text.strip():
            lines.append(f"{'':8}{row_text}")
    return "\n".join(line.rstrip() for line in lines)


def _at(chart: Chart, totals: tuple[float, ...], x: float) -> float:
    for i in range(1, len(chart.x)):
        if x <= chart.x[i]:
            left, right = chart.x[i - 1], chart.x[i]
            share = (x - left) / (right - left) if right > left else 1.0
            return totals[i - 1] + share * (totals[i] - totals[i - 1])
    return totals[-1]


def _place(chart: Chart, x: float, width: int, span: float) -> int:
    return round((x - chart.x[0]) / span * (width - 1))


def _ribbons(chart: Chart, width: int, span: float) -> str:
    row = [" "] * width
    for ribbon in chart.ribbons:
        start, end = (_place(chart, x, width, span) for x in (ribbon.start, ribbon.end))
        row[start] = "|"
        for offset, letter in enumerate(ribbon.name[: max(0, end - start - 1)]):
            row[start + 1 + offset] = letter
    return "".join(row)


def _x_labels(chart: Chart, width: int, span: float) -> str:
    row = [" "] * (width + 8)
    for x, label in chart.x_labels:
        place = _place(chart, x, width, span)
        row[place : place + len(label)] = label
    return "".join(row)
