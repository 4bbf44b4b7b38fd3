"""One job on one device, as HTML: the plan, its limits, its step's floor, and where else it would run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from trainmem.estimate import Detail
from trainmem.fit import Fraction, Limit, Offer, Plan, Plans, RentOrOwn, StepFloor
from trainmem.fit.plan import EXPANDABLE
from trainmem.fit.report import ConfigurationLimits
from trainmem.fit.words import (
    BY_DEFAULT,
    CHECKING,
    ORDER,
    TIGHT,
    fraction_sentence,
    limit_titles,
    mathematics_in_words,
    offer_in_words,
    offer_needs,
    offers_doubt,
    outcome_sentence,
    plan_answer,
    plan_sum,
    smallest_device,
    step_time,
)
from trainmem.frozen_base import frozen_base_note
from trainmem.job import TrainingJob
from trainmem_space.address import anchor
from trainmem_space.charts.text import size
from trainmem_space.words import in_words

__all__ = ["floor_view", "limits_view", "offers_view", "plans_view"]

_TIGHT = escape(TIGHT).replace("=", "=<wbr>")


def plans_view(found: Plans, described: str, detail: str, *, is_checking: bool = False) -> str:
    """What to change first, and what it costs.

    ``is_checking``: the allocator's answer is on its way, and may be another: until then no plan can be applied.
    """
    said = f'<p class="tm-fit-short">It {escape(outcome_sentence(found))}.{_checking(is_checking)}</p>'
    said += _base(found.job, found)
    if not found.fits:
        would = f"<p>It would with {EXPANDABLE}, which costs nothing.</p>" if found.expandable else ""
        said += f"{would}{_list(found, is_checking)}"
    return (
        f'<section class="tm-fit-job" data-detail="{detail}"><h2>The plan for {escape(_which(found.job))}</h2>'
        f'<p class="tm-lead">From here on it is about the Calculator\'s job: {escape(described)}. Of the controls '
        f"above, only the device and the budget change it.</p>{said}</section>"
    )


def _which(job: TrainingJob) -> str:
    """A job by what the page's own controls set for everything above it: a name, batch x length, checkpointing."""
    name = job.model or str((job.config or {}).get("model_type", "the pasted config"))
    checkpointed = "no checkpointing" if job.checkpointing == "none" else f"{job.checkpointing} checkpointing"
    return f"{name}, {job.micro_batch:,} × {job.sequence_length:,} tokens, {checkpointed}"


def _checking(is_checking: bool) -> str:
    return f' <span class="tm-fit-settled">{CHECKING}</span>' if is_checking else ""


def _list(found: Plans, is_checking: bool) -> str:
    if not found.plans:
        return "<p>No list of levers makes it fit, on this device or on 64 of it.</p>"
    plans = "".join(_plan(plan, found, is_checking) for plan in found.plans)
    return (
        f'<p class="tm-note">{ORDER} Savings are of the tensors at the peak. Prices are measured on a '
        "published machine, or computed from arithmetic and bytes over the device's rates: point at one for its source."
        f'</p><ol class="tm-plan">{plans}</ol>'
    )


def _plan(plan: Plan, found: Plans, is_checking: bool) -> str:
    shown = plan_sum(found.peak_bytes, plan)
    rows = []
    for step, saved in zip(plan.steps, shown.saved, strict=True):
        price = step.price
        source = f'<small title="{escape(price.source)}">{price.basis}</small>'
        rows.append(
            f"<li><b>{escape(_capital(step.name))}</b>{_gib(f'− {saved}')}"
            f"<span>{_time(price.share)} {source}</span>"
            f"<span>{mathematics_in_words(step.mathematics)}</span></li>"
        )
    held = plan.held_bytes
    holds = ", ".join(filter(None, (held and f"the allocator holds {size(held)}", plan_answer(plan))))
    tight = f"<p>Tight: {_TIGHT}.</p>" if plan.tight else ""
    base = _base(plan.job, found)
    held_back = f'<span class="tm-apply" aria-disabled="true" title="{CHECKING}">Apply</span>'
    apply = held_back if is_checking else anchor(plan.job, "Apply", "tm-apply")
    return (
        f"<li><ul>{''.join(rows)}"
        f'<li class="sum"><span>{shown.before} becomes</span>{_gib(shown.after)}'
        f"<span>{_time(plan.step_time_share)}</span><span>{holds}</span></li></ul>"
        f"{tight}{base}<p>{apply}</p></li>"
    )


def _base(job: TrainingJob, found: Plans) -> str:
    note = frozen_base_note(job, found.engine)
    return f'<p class="tm-note">{escape(in_words(note))}</p>' if note else ""


def _time(share: float) -> str:
    return step_time(share).replace("-", "−")


def _gib(text: str) -> str:
    return f'<span class="tm-num">{text}</span>'


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def limits_view(
    job: TrainingJob, found: Sequence[ConfigurationLimits], detail: Detail, doubt: str = ""
) -> str:
    """The largest micro batch and the longest sequence of each configuration of ``job``.

    ``doubt``: what they rest on where that is no replay (`limits_doubt`).
    """
    rows = "".join(
        f'<tr><th scope="row">{escape(_capital(limits.title))}</th><td>{_limit(limits.micro_batch)}</td>'
        f"<td>{_limit(limits.sequence_length)}</td></tr>"
        for limits in found
    )
    titles = "".join(f"<td>{escape(title).replace(' at ', '<br>at ')}</td>" for title in limit_titles(job))
    tight = any(part.tight for limits in found for part in (limits.micro_batch, limits.sequence_length))
    note = (
        f"{doubt}."
        if doubt
        else {
            "fast": "An upper bound: the allocator's reserved memory is left out. `trainmem fit` replays it.",
            "exact": f"One more does not fit, replayed through the allocator {BY_DEFAULT}.",
        }[detail]
    )
    return (
        f'<h2>How far it goes</h2><p class="tm-note">{escape(note)}{f" Tight: {_TIGHT}." if tight else ""}</p>'
        '<table class="tm-table tm-fit-table"><thead><tr><th></th>'
        f"{titles}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _limit(limit: Limit) -> str:
    if not limit.value:
        return "not even 1"
    notes = []
    if limit.is_model_end:
        notes.append("all it takes")
    if limit.tight:
        notes.append("tight")
    if limit.measured is not None:
        notes.append(f"measured {limit.measured:,}")
    note = f" <small>{', '.join(notes)}</small>" if notes else ""
    return f'<span class="tm-num">{limit.value:,}</span>{note}'


def floor_view(floor: StepFloor, fraction: Fraction | None, name: str) -> str:
    """The least time of a step, and how near measured steps come to theirs."""
    parts = []
    if floor.compute_seconds is not None:
        parts.append(f"{floor.compute_seconds:.3g} s of arithmetic at the data sheet's rate")
    if floor.weights_seconds > (floor.compute_seconds or 0):
        parts.append(f"{floor.weights_seconds:.3g} s to move weights and gradients meanwhile")
    if floor.link_seconds > max(floor.compute_seconds or 0, floor.weights_seconds):
        parts.append(f"{floor.link_seconds:.3g} s between ranks meanwhile")
    if floor.optimizer_seconds:
        parts.append(f"{floor.optimizer_seconds:.3g} s to move the optimizer's {size(floor.optimizer_bytes)}")
    if floor.offload_seconds:
        parts.append(f"{floor.offload_seconds:.3g} s to the host and back")
    said = f"<p>{escape(_capital(fraction_sentence(floor, fraction)))}.</p>" if fraction is not None else ""
    return (
        f"<h2>How long a step takes</h2><p>At least {floor.seconds:.3g} s on {escape(name)}: "
        f"{'; '.join(parts)}.</p>{said}"
    )


def offers_view(found: RentOrOwn, *, is_checking: bool = False) -> str:
    """The same job on rented GPUs, and on the smallest device that runs it alone; ``is_checking`` as in `plans_view`.

    What the fast peak refuses does not fit whatever the allocator says.
    """
    rows = "".join(
        f'<tr class="{"fits" if offer.fits else "short"}"><th scope="row">{offer.count} × '
        f"{escape(offer.room.device.title.removeprefix('NVIDIA '))}</th><td>{offer_needs(offer)}</td>"
        f"<td>{_fits(offer, is_checking)}</td>"
        f'<td class="tm-num">{offer.floor.seconds:.3g} s</td>'
        f'<td class="tm-num">{offer.tokens_per_second:,.0f}</td></tr>'
        for offer in found.offers
    )
    smallest = escape(_capital(smallest_device(found, lambda offer: offer.room.device.title)))
    with_ = ""
    if found.changed:
        with_ = "As set, the job fits no number of rented ones: these are of the job with checkpointing. "
    doubt = offers_doubt(found)
    note = f'<p class="tm-note">{escape(doubt)}</p>' if doubt else ""
    return (
        f"<h2>Rent or own</h2><p>{smallest}. {with_}On several GPUs it is FSDP2, and each rank needs:"
        f"{_checking(is_checking)}</p>"
        '<table class="tm-table tm-fit-table"><thead><tr><th></th><td>each needs</td><td>answer</td><td>step at '
        f"least</td><td>tokens/s at most</td></tr></thead><tbody>{rows}</tbody></table>{note}"
    )


def _fits(offer: Offer, is_checking: bool) -> str:
    if is_checking and offer.fits:
        return "being checked"
    return offer_in_words(offer)
