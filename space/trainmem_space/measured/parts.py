"""What the Measured tables share: the frame that scrolls sideways, their head, an error, and an empty
state."""

from __future__ import annotations

from collections.abc import Sequence

from trainmem_space.charts.text import escape, size

__all__ = ["error_cell", "head_of", "line_of", "not_run", "wide"]

_EXACT = 0.00005
_FAR = 0.05


def wide(name: str, html: str) -> str:
    """Something that may be wider than a phone: it scrolls by itself, by keyboard too."""
    return f'<div class="tm-wide" tabindex="0" role="region" aria-label="{escape(name)}">{html}</div>'


def head_of(kind: str, names: Sequence[str]) -> str:
    """The line above lines that open."""
    cells = "".join(f"<span>{name}</span>" for name in names)
    return f'<div class="tm-lines-of {kind} tm-head" aria-hidden="true">{cells}</div>'


def line_of(kind: str, names: Sequence[str], cells: Sequence[str], inside: str) -> str:
    """One line that opens to ``inside``. On a phone each cell but the first stands beside its name."""
    named = "".join(
        f'<span data-head="{name}">{cell}</span>' for name, cell in zip(names[1:], cells[1:], strict=True)
    )
    return f'<details><summary class="tm-lines-of {kind}"><span>{cells[0]}</span>{named}</summary>{inside}</details>'


def error_cell(predicted_bytes: int | None, error: float | None) -> str:
    """A prediction and how far it was off, or a dash."""
    if predicted_bytes is None or error is None:
        return '<span class="tm-num" title="no answer">–</span>'
    shown = f"{error:+.2%}" if abs(error) >= _EXACT else "exact to 0.01%"
    far = ' class="tm-far"' if abs(error) >= _FAR else ""
    return f"{size(predicted_bytes)} <small{far}>{shown}</small>"


def not_run(suite: str, machine: str | None) -> str:
    """What stands where a machine has no rows of a suite."""
    where = f" on {escape(machine)}" if machine else ""
    return (
        f'<p class="tm-note" data-empty="{escape(suite)}">Not run yet{where}. To fill this in, run there: '
        f"<code>trainmem measure --suite {escape(suite)}</code>, then "
        f"<code>trainmem publish runs/{escape(suite)}</code>.</p>"
    )
