"""The verdict: one sentence, the peak and its instant, and the cheapest lever with its button."""

from __future__ import annotations

from html import escape
from typing import Any

from trainmem.estimate import error_sentence
from trainmem.job import TrainingJob
from trainmem.verdict import Verdict
from trainmem_space.charts.text import prose, size
from trainmem_space.words import in_words, of_address

__all__ = ["error_line", "verdict_view"]


def verdict_view(
    estimate: dict[str, Any], verdict: Verdict, *, described: str, detail: str, plan: str = ""
) -> str:
    """What an engineer with ten seconds reads.

    ``described`` is the job in words, shown where no form is; ``plan`` is the link to what several levers do
    together, shown where one alone does not help.
    """
    state = {True: "fits", False: "short", None: "unsure"}[verdict.fits]
    reserved = estimate["peak_reserved_bytes"]
    held = f", {size(reserved)} reserved" if reserved is not None else ""
    typical = error_sentence(TrainingJob.from_json(estimate["job"]), estimate["typical_error"])
    typical = f"{typical[0].upper()}{typical[1:]}."
    peak = size(estimate["peak_allocated_bytes"])
    parts = [
        f'<p class="tm-sentence">{escape(verdict.sentence)}</p>',
        f"<p>Peak {peak} allocated{held}: {escape(estimate['peak_instant'])}. {escape(typical)}</p>",
    ]
    if verdict.cheapest_lever is not None:
        sentence = escape(verdict.cheapest_lever[0])
        parts.append(
            f'<p class="tm-lever">{sentence} <button type="button" data-action="apply">Apply</button></p>'
        )
    elif verdict.fits is False and not verdict.fits_expandable and plan:
        parts.append(f'<p class="tm-lever">No single lever makes it fit here. {plan}</p>')
    parts.append(f'<p class="tm-job">{escape(described)}</p>')
    if detail == "exact" and reserved is None and estimate["engine"] == "tape":
        parts.append('<p class="tm-note">Too many micro batches to replay here: without reserved memory.</p>')
    notes = [*([verdict.note] if verdict.note else []), *estimate["warnings"]]
    parts += [f'<p class="tm-note">{prose(in_words(note))}</p>' for note in notes]
    return (
        f'<section class="tm-verdict {state}" data-detail="{detail}" aria-live="polite">'
        f"{''.join(parts)}</section>"
    )


def error_line(
    message: str | None, lever: str | None = None, *, address: bool = False, answered: bool = False
) -> str:
    """One line for wrong input, in the page's words and naming the control so that the page can mark it; empty
    when all is well.

    ``address``: it is the page's address that is wrong; ``answered``: what stands below is the answer all the same.
    """
    if message is None:
        return ""
    named = f' data-lever="{escape(lever)}"' if lever else ""
    kinds = "".join(
        f" data-{kind}" for kind, is_so in (("address", address), ("answered", answered)) if is_so
    )
    said = of_address(message) if address else in_words(message)
    return f'<p class="tm-error" role="alert"{named}{kinds}>{prose(said)}</p>'
