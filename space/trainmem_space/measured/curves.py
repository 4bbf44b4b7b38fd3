"""Curves of the scaling and break-it suites."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainmem.results import MeasuredRow
from trainmem.results.tables import of_suite
from trainmem.scale import axis_end_bytes, share, tick_bytes
from trainmem.units import format_gib
from trainmem_space.charts.lines import Line, Style, Tick, line_chart
from trainmem_space.charts.text import escape, size, tick
from trainmem_space.measured.parts import not_run, wide

__all__ = ["break_it", "scaling"]

Read = Callable[[MeasuredRow], int | None]


def _saved(row: MeasuredRow) -> int | None:
    return (row.measured.get("saved_tensors") or {}).get("bytes")


def _peak(row: MeasuredRow) -> int | None:
    return row.peak_allocated_bytes


def scaling(rows: Sequence[MeasuredRow], machine: str | None) -> str:
    """Peak and saved tensors over length for both kinds of attention, and over the four sizes."""
    steps = [row for row in of_suite(rows, "scaling", kind="step") if row.outcome == "ok" and row.job]
    head = "<h2>How it grows</h2>"
    if not steps:
        return head + not_run("scaling", machine)
    lengths = [row for row in steps if (row.label or "").startswith(("sdpa", "eager"))]
    sizes = [row for row in steps if row not in lengths]
    parts = []
    if lengths:
        groups = {
            kind: [row for row in lengths if row.job and row.job.attention == kind]
            for kind in ("sdpa", "eager")
        }
        top = max(row.job.sequence_length for row in lengths if row.job)

        def along(row: MeasuredRow) -> float:
            return row.job.sequence_length / top if row.job else 0.0

        ticks = {along(row): f"{row.job.sequence_length:,}" for row in lengths if row.job}
        parts.append(_over(groups, along, ticks, "GPT-2 774M, b = 4, over length, GiB", "sequence length"))
    if sizes:
        count = max(int(row.measured["parameters"]) for row in sizes)

        def by_size(row: MeasuredRow) -> float:
            return int(row.measured["parameters"]) / count

        named = {by_size(row): (row.label or "").removeprefix("gpt2-") for row in sizes}
        parts.append(
            _over({"sdpa": sizes}, by_size, named, "GPT-2, b = 4, s = 1,024, over size, GiB", "size")
        )
    return (
        f"{head}<p>Peak allocated memory, and what autograd saved for backward, counted by hooks in a pass of its "
        f'own.</p><div class="tm-pair">{"".join(parts)}</div>'
    )


def _over(
    groups: dict[str, list[MeasuredRow]],
    along: Callable[[MeasuredRow], float],
    x: dict[float, str],
    title: str,
    axis: str,
) -> str:
    reads: tuple[tuple[str, Read, dict[str, Style]], ...] = (
        ("peak", _peak, {"sdpa": "ink", "eager": "accent"}),
        ("saved for backward", _saved, {"sdpa": "dashed", "eager": "dotted"}),
    )
    end = axis_end_bytes(*(value for rows in groups.values() for row in rows if (value := _peak(row))))
    lines, said = [], []
    for what, read, styles in reads:
        for kind, rows in groups.items():
            known = sorted(((along(row), value) for row in rows if (value := read(row))), key=lambda p: p[0])
            if not known:
                continue
            name = f"{kind}, {what}" if len(groups) > 1 else what
            points = [(at, share(value, end)) for at, value in known]
            lines.append(Line(name=name, points=points, style=styles[kind], dots=True))
            said.append(f"{name}: " + ", ".join(f"{x[at]} {format_gib(value)}" for at, value in known))
    return line_chart(
        lines,
        title=title,
        said=f"memory over {axis}; " + "; ".join(said),
        x=[Tick(at=at, text=text) for at, text in sorted(x.items())],
        y=[Tick(at=share(value, end), text=tick(value)) for value in tick_bytes(end, ticks=4)[1:]],
        height=240,
    )


def break_it(rows: Sequence[MeasuredRow], machine: str | None) -> str:
    """Each mistake beside the same run without it."""
    found = {row.label: row for row in of_suite(rows, "break-it")}
    head = "<h2>Break it</h2>"
    if not found:
        return head + not_run("break-it", machine)
    baseline = next((row for row in of_suite(rows, "lesson", kind="step") if row.label == "baseline"), None)
    parts = [
        _two(
            "Eager attention at 4,096 tokens", found.get("sdpa at s = 4,096"), found.get("eager at s = 4,096")
        ),
        _two("zero_grad(set_to_none=False)", baseline, found.get("zero_grad(set_to_none=False)")),
    ]
    charts = [
        _losses(
            found,
            "Forgetting zero_grad: loss on a fixed batch",
            (("zero_grad each step", "ink"), ("zero_grad forgotten", "accent")),
        ),
        _losses(
            found,
            "Learning rate 1e-5 in five precisions: loss on a fixed batch",
            (
                ("lr 1e-5 in fp32", "ink"),
                ("lr 1e-5 in AMP bf16", "dashed"),
                ("lr 1e-5 in pure bf16", "accent"),
                ("lr 1e-5 in pure bf16 with Kahan", "dotted"),
                ("lr 1e-5 in pure bf16, stochastic rounding", "pale"),
            ),
        ),
        _kept(found),
    ]
    table = "".join(part for part in parts if part)
    heads = "".join(f"<th>{name}</th>" for name in ("", "right", "broken", "more"))
    broken = (
        f'<table class="tm-table tm-breaks"><thead><tr>{heads}</tr></thead><tbody>{table}</tbody></table>'
    )
    drawn = "".join(chart for chart in charts if chart)
    return f'{head}{wide("mistakes", broken)}<div class="tm-pair">{drawn}</div>'


def _two(name: str, right: MeasuredRow | None, broken: MeasuredRow | None) -> str:
    if right is None or broken is None:
        return ""
    before, after = right.peak_allocated_bytes, broken.peak_allocated_bytes
    more = size(after - before) if before and after else f"<span>{escape(broken.outcome)}</span>"
    return f"<tr><th>{escape(name)}</th><td>{size(before)}</td><td>{size(after)}</td><td>{more}</td></tr>"


def _losses(found: dict[str | None, MeasuredRow], title: str, names: Sequence[tuple[str, Style]]) -> str:
    curves = [
        (name, style, losses)
        for name, style in names
        if name in found and (losses := found[name].measured.get("losses"))
    ]
    if not curves:
        return ""
    top = max(max(losses) for _, _, losses in curves)
    steps = max(len(losses) for _, _, losses in curves)
    lines = [
        Line(
            name=name.removeprefix("lr 1e-5 in "),
            style=style,
            points=[(i / max(steps - 1, 1), loss / top) for i, loss in enumerate(losses)],
        )
        for name, style, losses in curves
    ]
    said = "; ".join(f"{name} from {losses[0]:.2f} to {losses[-1]:.2f}" for name, _, losses in curves)
    whole = range(0, int(top) + 1, max(1, int(top) // 4))
    return line_chart(
        lines,
        title=title,
        said=f"{title}: {said} in {steps} steps",
        x=[Tick(at=0.0, text="step 1"), Tick(at=1.0, text=f"step {steps}")],
        y=[Tick(at=value / top, text=str(value)) for value in whole if value],
    )


def _kept(found: dict[str | None, MeasuredRow]) -> str:
    names: tuple[tuple[str, str, Style], ...] = (
        ("losses.append(loss.item())", "loss.item()", "ink"),
        ("losses.append(loss)", "loss, after backward", "dashed"),
        ("losses.append(loss) without no_grad", "loss of an evaluation without no_grad", "accent"),
    )
    curves = [
        (label, style, values)
        for name, label, style in names
        if name in found and (values := found[name].measured.get("step_allocated_bytes"))
    ]
    if not curves:
        return ""
    end = axis_end_bytes(*(max(values) for _, _, values in curves))
    steps = max(len(values) for _, _, values in curves)
    lines = [
        Line(
            # a loop that was set to fewer steps would look as if it had stopped
            name=label if len(values) == steps else f"{label} ({len(values)} steps were run)",
            style=style,
            points=[(i / max(steps - 1, 1), share(value, end)) for i, value in enumerate(values)],
        )
        for label, style, values in curves
    ]
    said = "; ".join(f"{label} grows by {values[-1] - values[0]:,} bytes" for label, _, values in curves)
    return line_chart(
        lines,
        title="losses.append(…): allocated after each step, GiB",
        said=f"allocated memory after each step; {said}",
        x=[Tick(at=0.0, text="step 1"), Tick(at=1.0, text=f"step {steps}")],
        y=[Tick(at=share(value, end), text=tick(value)) for value in tick_bytes(end, ticks=4)[1:]],
    )
