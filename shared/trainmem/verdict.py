"""Does the job fit on this device? One sentence, and the cheapest lever that changes the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trainmem.allocator import TURN_ON_EXPANDABLE_SEGMENTS, AllocatorSettings, check_capacity
from trainmem.capacity import capacity_report, needed_bytes, sum_answer, sum_doubt, sum_name
from trainmem.device import Device
from trainmem.estimate import Estimate, estimate
from trainmem.frozen_base import frozen_base_note
from trainmem.job import TrainingJob
from trainmem.levers import LEVERS_BY_COST, Mathematics, MemoryLever
from trainmem.recording import Recording
from trainmem.units import format_gib

__all__ = ["Verdict", "needed_bytes", "verdict", "verdict_of_recording"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """``fits`` is the job's as it is set, and None where the device cannot run it at all or a sum's error is wider
    than the gap. ``fits_expandable``: it does not fit, but would with the allocator's ``expandable_segments:True``.

    ``headroom_bytes`` is negative when short.
    """

    fits: bool | None
    headroom_bytes: int
    sentence: str
    fits_expandable: bool = False
    cheapest_lever: tuple[str, TrainingJob] | None = None
    note: str | None = None
    """What the sentence rests on where that is no plain comparison, and what a frozen base is held in."""

    def to_json(self, device: Device) -> dict[str, Any]:
        """For the command line, beside the estimate."""
        return {
            "device": device.name,
            "fits": self.fits,
            "fits_with_expandable_segments": self.fits_expandable,
            "limit_bytes": device.allocator_limit_bytes if device.cuda else None,
            "headroom_bytes": self.headroom_bytes if device.cuda else None,
            "sentence": self.sentence,
            "note": self.note,
        }


def _named(title: str) -> str:
    return title if title.startswith(("the ", "an ", "a ")) else f"the {title}"


def verdict(
    job: TrainingJob,
    answer: Estimate,
    device: Device,
    settings: AllocatorSettings | None = None,
    *,
    recording: Recording | None = None,
    try_levers: bool = True,
) -> Verdict:
    """Compare the reserved peak with what the allocator may take on ``device``.

    That is the memory torch shows, without the operating system's share of a shared pool and without the CUDA
    context. Levers are tried one at a time, cheapest first, on the same footing as ``answer``, which was worked
    out with the same ``settings`` of the allocator; where only one that changes what is trained would do, two
    cheaper ones are tried together. ``recording`` is what a trace's ``answer`` was read from.
    """
    if not device.cuda:
        return _without_cuda(device)
    found = _on_cuda(job, answer, device, settings, recording, try_levers)
    notes = [note for note in (found.note, frozen_base_note(job, answer.engine)) if note]
    return replace(found, note=" ".join(notes) or None)


def _on_cuda(
    job: TrainingJob,
    answer: Estimate,
    device: Device,
    settings: AllocatorSettings | None,
    recording: Recording | None,
    try_levers: bool,
) -> Verdict:
    limit, need = device.allocator_limit_bytes, needed_bytes(answer)
    if answer.is_sum:
        return _of_a_sum(answer, limit, _named(device.title))
    squeezed = None
    if need > limit >= answer.peak_allocated_bytes:
        squeezed = _squeezed(job, answer, device, settings, recording)
    if tight := _barely(squeezed, need, device):
        return tight
    lever = _cheapest(job, answer, limit, settings) if need > limit and try_levers else None
    if lever is None:
        return _compared(need, device)
    found = _compared(need, device, f"; {lever[2]} would fit")
    return replace(found, cheapest_lever=(lever[0], lever[1]))


def verdict_of_recording(
    recording: Recording, *, allocated_bytes: int, reserved_bytes: int, device: Device
) -> Verdict:
    """The same for a replay that may have no job behind it, such as a script's: no levers, only whether it fits."""
    if not device.cuda:
        return _without_cuda(device)
    limit = device.allocator_limit_bytes
    if reserved_bytes > limit >= allocated_bytes:
        found = check_capacity(
            recording.events,
            capacity_bytes=device.usable_bytes,
            outside_bytes=device.usable_bytes - limit,
            streams=recording.streams(),
            empty_cache_before=recording.empty_cache_before,
        )
        if tight := _barely(found.answer, reserved_bytes, device):
            return tight
    return _compared(reserved_bytes, device)


def _without_cuda(device: Device) -> Verdict:
    sentence = f"{device.title} has no CUDA: this job does not run there."
    return Verdict(fits=None, headroom_bytes=0, sentence=sentence)


def _barely(squeezed: str | None, need_bytes: int, device: Device) -> Verdict | None:
    """Of a job whose tensors fit, but not its cached memory; None where it does not run either way."""
    name = _named(device.title)
    note = (
        f"{format_gib(need_bytes)} reserved is what the allocator holds by default where it has room; here it may hold "
        f"{format_gib(device.allocator_limit_bytes)}."
    )
    if squeezed == "fits":
        how = "the allocator has to give idle memory back and ask again, which costs time"
        return Verdict(fits=True, headroom_bytes=0, sentence=f"Fits on {name}, barely: {how}.", note=note)
    if squeezed == "fits_with_expandable_segments":
        return Verdict(
            fits=False,
            fits_expandable=True,
            headroom_bytes=device.allocator_limit_bytes - need_bytes,
            sentence=f"Does not fit on {name} as it is, but does with {TURN_ON_EXPANDABLE_SEGMENTS}.",
            note=note,
        )
    return None


def _compared(need_bytes: int, device: Device, hint: str = "") -> Verdict:
    headroom = device.allocator_limit_bytes - need_bytes
    name = _named(device.title)
    if headroom >= 0:
        sentence = f"Fits on {name}, with {format_gib(headroom)} to spare."
    else:
        sentence = f"Does not fit on {name}: short by {format_gib(-headroom)}{hint}."
    return Verdict(fits=headroom >= 0, headroom_bytes=headroom, sentence=sentence)


def _of_a_sum(answer: Estimate, limit: int, name: str) -> Verdict:
    need = needed_bytes(answer)
    said = sum_answer(answer, limit)
    of = f"{sum_name(answer)} {format_gib(need)} of {format_gib(limit)}"
    words = {
        "probably_fits": f"Probably fits on {name}: {of}.",
        "unsure": f"Too close to say for {name}: {of}.",
        "probably_out_of_memory": f"Probably does not fit on {name}: {of}.",
    }
    return Verdict(
        fits={"probably_fits": True, "probably_out_of_memory": False}.get(said),
        headroom_bytes=limit - need,
        sentence=words[said],
        note=f"{sum_doubt(answer)}.",
    )


def _squeezed(
    job: TrainingJob,
    answer: Estimate,
    device: Device,
    settings: AllocatorSettings | None,
    recording: Recording | None,
) -> str | None:
    """What the allocator says of the device itself; None without a replay."""
    if answer.peak_reserved_bytes is None or (answer.engine == "trace" and recording is None):
        return None
    report = capacity_report(
        job, device.usable_bytes, engine=answer.engine, settings=settings, recording=recording
    )
    return report.answer


def _cheapest(
    job: TrainingJob, answer: Estimate, limit: int, settings: AllocatorSettings | None
) -> tuple[str, TrainingJob, str] | None:
    """The first single lever that makes the job fit: a sentence, the changed job, and what was changed.

    Two levers that cost time or numerics come before one that packs the base or trains adapters, as in a plan.
    """
    for lever in LEVERS_BY_COST:
        if lever.mathematics == "trains fewer parameters":
            break
        if found := _pulled((lever,), job, answer, limit, settings):
            return found
    dear = [lever for lever in LEVERS_BY_COST if lever.mathematics == "trains fewer parameters"]
    alone = next(
        (found for lever in dear if (found := _pulled((lever,), job, answer, limit, settings))), None
    )
    return alone and (_two_cheaper(job, answer, limit, settings) or alone)


def _two_cheaper(
    job: TrainingJob, answer: Estimate, limit: int, settings: AllocatorSettings | None
) -> tuple[str, TrainingJob, str] | None:
    cheaper = [lever for lever in LEVERS_BY_COST if lever.mathematics != "trains fewer parameters"]
    timed = [lever for lever in cheaper if lever.mathematics == "identical"]
    for at, dearer in enumerate(cheaper):
        # the micro batch goes last, as it is halved until the rest of the job fits
        pairs = (sorted((lever, dearer), key=lambda one: one.repeats) for lever in timed[:at])
        for pair in pairs:
            if found := _pulled(tuple(pair), job, answer, limit, settings):
                return found
    return None


def _pulled(
    levers: tuple[MemoryLever, ...],
    job: TrainingJob,
    answer: Estimate,
    limit: int,
    settings: AllocatorSettings | None,
) -> tuple[str, TrainingJob, str] | None:
    """What these levers make of the job, the last of them pulled again where it repeats; None: not enough."""
    names: list[str] = []
    changed: TrainingJob | None = job
    kinds: list[Mathematics] = []
    for lever in levers:
        before, changed = changed, lever.pull(changed) if changed else None
        if before is None or changed is None:
            return None
        names.append(lever.describe(changed))
        kinds.append(lever.changes(before, changed))
    while changed is not None:
        quick = estimate(changed, answer.engine, "fast") if answer.engine == "tape" else None
        if quick is not None and quick.peak_allocated_bytes <= limit:
            better = quick
            if answer.detail != "fast":
                better = estimate(changed, answer.engine, "exact", settings=settings)
            if _surely_fits(better, limit):
                saved = needed_bytes(answer) - needed_bytes(better)
                name = " with ".join([*names[:-1], levers[-1].describe(changed)])
                sentence = (
                    f"{name[0].upper()}{name[1:]}: {format_gib(needed_bytes(better))}, fits; "
                    f"saves {format_gib(saved)}, {_mathematics(kinds)}."
                )
                return sentence, changed, name
        # a smaller micro batch may have to be halved again
        changed = levers[-1].pull(changed) if levers[-1].repeats else None
    return None


def _surely_fits(answer: Estimate, limit: int) -> bool:
    return sum_answer(answer, limit) == "probably_fits" if answer.is_sum else needed_bytes(answer) <= limit


def _mathematics(kinds: list[Mathematics]) -> str:
    changes = [kind for kind in kinds if kind != "identical"]
    return changes[-1] if changes else "identical mathematics"
