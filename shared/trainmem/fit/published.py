"""Borders worked out beforehand: every device at the page's own settings, in `borders.json`.

The catalogue and the devices are fixed, so that the page opens with what the allocator answered about every
border. `python -m tools.borders` writes the file; tests ask the allocator about it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from trainmem.buckets import Bucket
from trainmem.fit.borders import Border, Figures, MethodBorders, models
from trainmem.fit.family import DEFAULT_FAMILY, family
from trainmem.fit.methods import METHODS, Method
from trainmem.fit.room import Room
from trainmem.job import TrainingJob

__all__ = ["FILE", "PAGE", "SCHEMA", "published_borders"]

SCHEMA = "trainmem.borders/1"
FILE = "borders.json"
PAGE = TrainingJob(
    model=family(DEFAULT_FAMILY).members[0], micro_batch=1, sequence_length=2048, checkpointing="full"
)
"""What the page shows until somebody changes it; its model, its recipe and its device stand for any."""


def published_borders(method: Method, like: TrainingJob, at: Room, curve: str) -> MethodBorders | None:
    """What the allocator answered; None for a budget, other settings, or a device that has changed since."""
    if at.is_budget or _recipeless(like) != _recipeless(PAGE):
        return None
    rows = _published()["devices"].get(at.device.name)
    if rows is None or rows["limit_bytes"] != at.limit_bytes or curve not in rows["curves"]:
        return None
    name, *rest = rows["models"][method.key]
    names = [rung.name for rung in models(like.sequence_length)]
    example = rows["example"].get(method.key)
    return MethodBorders(
        models=_border(names.index(name) + 1 if name else 0, *rest),
        curve=_border(*rows["curves"][curve][method.key]),
        example=None if example is None else _border(*example),
    )


def _border(count: int, tight: bool, shown: tuple[int, Bucket, str] | None = None) -> Border:
    if shown is None:
        return Border(count=count, tight=tight)
    peak, bucket, instant = shown
    return Border(
        count=count,
        tight=tight,
        figures=Figures(peak_bytes=peak, binding_bucket=bucket, peak_instant=instant),
    )


def _recipeless(like: TrainingJob) -> TrainingJob:
    return METHODS[0].apply(like).with_(model=PAGE.model, config=None, task=PAGE.task, device=PAGE.device)


@cache
def _published() -> Mapping[str, Any]:
    text = resources.files("trainmem").joinpath("fit", FILE).read_text(encoding="utf-8")
    data: Mapping[str, Any] = json.loads(text)
    if data.get("schema") != SCHEMA:
        raise ValueError(f"schema: {data.get('schema')!r} is not {SCHEMA}")
    return data
