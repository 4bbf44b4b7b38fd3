"""How counts of parameters, prices and borders are written, the same in the terminal and on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from trainmem.capacity import SumAnswer, needed_bytes, sum_answer, sum_doubt, sum_name
from trainmem.estimate import Estimate
from trainmem.fit.floor import Fraction, StepFloor
from trainmem.fit.frontier import MethodFit, WhatFits
from trainmem.fit.methods import Kind
from trainmem.fit.plan import EXPANDABLE, Plan, Plans
from trainmem.fit.rent import Offer, RentOrOwn
from trainmem.job import TrainingJob
from trainmem.levers import Mathematics
from trainmem.units import GIB, format_gib
from trainmem.whiteboard import LessonLimit

__all__ = [
    "BY_DEFAULT",
    "BY_RANK",
    "BY_SUM",
    "CHECKING",
    "FAST",
    "ORDER",
    "THUMB",
    "TIGHT",
    "Sum",
    "billions",
    "fraction_sentence",
    "in_short",
    "limit_titles",
    "limits_doubt",
    "mathematics_in_words",
    "offer_in_words",
    "offer_needs",
    "offers_doubt",
    "outcome_sentence",
    "plan_answer",
    "plan_sum",
    "smallest_device",
    "step_time",
    "thumb_sentence",
]

CHECKING = "Reserved memory is still being checked."
"""Beside an answer of the fast peak that the allocator's will follow."""

BY_SUM = "Where the whiteboard's sum reaches the limit, which is too close to say: no step was replayed"
"""What limits of a model are that the tape does not know."""

BY_RANK = "The largest that probably fits, by a rank's step that was put together from the unsharded one"
"""What limits of a sharded job are that the tape does not replay."""

FAST = (
    "Reserved memory was left out (--detail fast): what is said to fit here, the allocator may still refuse."
)
"""Under an answer of the fast peak alone."""

ORDER = (
    "Not by step time but by what changes: first lists that cost time alone, then numerics, then what is trained, then "
    "more devices, then offloading."
)
"""In which order plans stand: `levers_that_fit`."""

TIGHT = (
    "it runs, but PyTorch's allocator has to hand cached memory back to the device and ask again, which costs time "
    f"at every step it happens; with {EXPANDABLE} it need not. A device with a little more memory may even "
    "run out, as the allocator then asks again at another moment"
)
"""What "tight" means."""

BY_DEFAULT = "at its default settings, so without expandable segments"
"""How the allocator was replayed for limits."""

THUMB = (
    "The rule of thumb, for comparison: the memory over the bytes that weights, gradients and optimizer state take a "
    "parameter, less a share for everything else. It knows neither batch nor length nor recipe."
)


def thumb_sentence(limit: LessonLimit) -> str:
    """One method's rule of thumb: ``"about 7B. 118 GiB / 16 B = 7.9B parameters with nothing else; ..."``."""
    return f"{limit.answer}. {limit.substituted} with nothing else in memory; {limit.why}"


def fraction_sentence(floor: StepFloor, part: Fraction) -> str:
    """How much longer than their least time measured steps took, and so this one."""
    least, most = 1 / part.most, 1 / part.least
    return (
        f"measured steps like it ({part.alike}, {part.rows} on {part.machine}) took {least:.2g} to {most:.2g} times "
        f"their least time, so expect about {floor.seconds / part.median:.3g} s"
    )


_SUM_WORDS: dict[SumAnswer, str] = {
    "probably_fits": "probably fits",
    "unsure": "is too close to say",
    "probably_out_of_memory": "probably does not fit",
}

_NAMES: dict[Kind, str] = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}


def billions(parameters: int) -> str:
    """``"11.5B"``, three significant digits; ``"774M"`` below a billion."""
    if parameters < 10**9:
        return f"{parameters / 10**6:.3g}M"
    return f"{parameters / 10**9:.3g}B"


class Sum:
    """A plan's sum as it is shown: the old peak less what each lever saves is the new one, digit by digit.

    ``before``, ``saved`` and ``after`` are texts in GiB; savings are differences of rounded peaks.
    """

    def __init__(self, peaks_bytes: Sequence[int]) -> None:
        digits = 1 if peaks_bytes[-1] >= GIB else 2
        rounded = [round(peak / GIB, digits) for peak in peaks_bytes]

        def text(gib: float) -> str:
            return f"{gib:,.{digits}f} GiB"

        self.before, self.after = text(rounded[0]), text(rounded[-1])
        self.saved = [text(high - low) for high, low in pairwise(rounded)]


def plan_sum(before_bytes: int, plan: Plan) -> Sum:
    """The sum of one plan for a job that peaks at ``before_bytes``."""

    def peaks() -> Iterator[int]:
        peak = before_bytes
        yield peak
        for step in plan.steps:
            peak -= step.saved_bytes
            yield peak

    return Sum([*peaks()])


def outcome_sentence(found: Plans) -> str:
    """Whether the job fits and by how much, as the rest of a sentence that names it."""
    held, limit, place = found.held_bytes, found.room.limit_bytes, found.room.place
    if found.sum is not None:
        return _by_a_sum(found, found.sum)
    may = f"the allocator may hold {format_gib(limit)}"
    if found.fits and found.tight:
        return f"fits {place}, but it is tight: it would hold {format_gib(held)}, and {may}; {TIGHT}"
    if found.fits:
        return f"fits {place}: it holds {format_gib(held)}, and {may}"
    if found.peak_bytes > limit:
        return f"does not fit {place}: its tensors alone take {format_gib(found.peak_bytes)} at the peak, and {may}"
    tensors = f"its tensors take {format_gib(found.peak_bytes)} at the peak"
    return (
        f"does not fit {place}: {tensors}, for which the allocator would hold {format_gib(held)}, and {may}"
    )


def _by_a_sum(found: Plans, answer: Estimate) -> str:
    """Of a job that was not replayed: no promise, but the band of such answers' errors."""
    need, limit = needed_bytes(answer), found.room.limit_bytes
    said = _SUM_WORDS[sum_answer(answer, limit)]
    return (
        f"{said} {found.room.place}: {sum_name(answer)} {format_gib(need)} of {format_gib(limit)}. "
        f"{sum_doubt(answer)}"
    )


def limit_titles(job: TrainingJob) -> tuple[str, str]:
    """What each of the two limits of ``job`` is, and which setting of the other lever it holds for."""
    return (
        f"largest micro batch at {job.sequence_length:,} tokens",
        f"longest sequence at micro batch {job.micro_batch:,}",
    )


def limits_doubt(found: Plans) -> str:
    """What the limits of a job rest on that was not replayed; empty where it was."""
    if found.sum is None:
        return ""
    if found.sum.over_ranks:
        return BY_RANK if found.sum.detail == "exact" else ""
    return BY_SUM


def plan_answer(plan: Plan) -> str:
    """What is left to doubt of one plan: nothing where it was replayed, else what the sum says."""
    return "" if plan.sum_answer is None else _in_a_cell(plan.sum_answer)


def offer_in_words(offer: Offer) -> str:
    """Whether one offer runs the job."""
    if offer.sum_answer is not None:
        return _in_a_cell(offer.sum_answer)
    return "does not fit" if not offer.fits else "tight" if offer.tight else "fits"


def offer_needs(offer: Offer) -> str:
    """What each rank of an offer needs, and beside it the tensors where those alone would not be refused."""
    tensors = offer.estimate.peak_allocated_bytes
    is_refused = not offer.fits and tensors <= offer.room.limit_bytes < offer.needed_bytes
    return format_gib(offer.needed_bytes) + (f" for {format_gib(tensors)} of tensors" if is_refused else "")


def _in_a_cell(found: SumAnswer) -> str:
    return _SUM_WORDS[found].removeprefix("is ")


def offers_doubt(found: RentOrOwn) -> str:
    """What answers of a sum allow for, where any is one; else empty."""
    sums = [offer for offer in found.offers if offer.sum_answer is not None]
    if not sums:
        return ""
    which = "" if len(sums) == len(found.offers) else "Where an answer is only probable: "
    said = f"{sum_doubt(sums[0].estimate)}."
    return f"{which}{said[0].lower() if which else said[0]}{said[1:]}"


def smallest_device(found: RentOrOwn, named: Callable[[Offer], str]) -> str:
    """The smallest single device, and under which settings it runs the job."""
    settings = "with checkpointing" if found.changed else "as set"
    alone, plain = found.smallest, found.smallest_as_set
    if alone is None:
        return f"no single device in the list runs it{', even' if found.changed else ''} {settings}"
    runs = "runs" if alone.sum_answer is None else "probably runs"
    as_set = f"; as set: {named(plain) if plain else 'none'}" if found.changed else ""
    return f"the smallest single device in the list that {runs} it {settings}: {named(alone)}{as_set}"


def step_time(share: float) -> str:
    """``"+25% step time"``, ``"4.0 times the step time"``."""
    if share >= 2:
        return f"{1 + share:.1f} times the step time"
    rounded = round(100 * share)
    return "same step time" if rounded == 0 else f"{rounded:+d}% step time"


def mathematics_in_words(kind: Mathematics) -> str:
    """``"identical mathematics"``, or what the lever changes."""
    return "identical mathematics" if kind == "identical" else kind


def in_short(page: WhatFits) -> str:
    """One sentence: how large each kind of training gets along the curve, by the best and the plainest recipe."""
    parts = []
    for kind, name in _NAMES.items():
        rows = [row for row in page.rows if row.method.kind == kind]
        sizes = sorted({_parameters(row) for row in rows})
        if not sizes[-1]:
            parts.append(f"no {name} at all")
        elif len(sizes) == 1:
            parts.append(f"{name} to {billions(sizes[0])}")
        elif not sizes[0]:
            parts.append(
                f"{name} to {billions(sizes[-1])} by the recipe that needs least, not at all by the one that needs most"
            )
        else:
            most, least = billions(sizes[-1]), billions(sizes[0])
            parts.append(
                f"{name} to {most} by the recipe that needs least, {least} by the one that needs most"
            )
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _parameters(row: MethodFit) -> int:
    return row.curve.largest.parameters if row.curve.largest else 0
