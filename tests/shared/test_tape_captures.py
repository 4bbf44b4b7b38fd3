"""The tape against recorded runs: every allocation and every free of two training steps.

The order of frees that follow each other is left open; it changes nothing.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import Recording
from trainmem.tape import record
from trainmem.tape.families import FORWARD

CAPTURES = sorted((Path(__file__).parents[1] / "data" / "captures").glob("*.json.gz"))
TABLES_OF_A_SET = ("gemma3_text", "modernbert")
"""Families that make rotary tables in the order of a set, which differs between processes."""

CHUNK_EVENTS = 10
"""Events of one chunk of Liger's loss under autocast; the tape lets one chunk stand for all that are alike."""

Event = tuple[str, int, int]
"""("allocate", bytes, 0) or ("free", bytes, allocations made since)."""


def _load(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt") as source:
        capture: dict[str, Any] = json.load(source)
    return capture


def _recorded(capture: dict[str, Any]) -> dict[tuple[int, str, int], list[Event]]:
    """Each phase's events; blocks from before the first step have no known size."""
    sizes, allocated = capture["sizes"], []
    phases = {}
    for step, phase, micro, column in capture["phases"]:
        events: list[Event] = []
        for value in column:
            if value >= 0:
                allocated.append(sizes[value])
                events.append(("allocate", sizes[value], 0))
            else:
                known = -value <= len(allocated)
                events.append(("free", allocated[value] if known else 0, -value if known else 0))
        phases[step, phase, micro] = _with_frees_sorted(events)
    return phases


def _predicted(recording: Recording) -> dict[tuple[int, str, int], list[Event]]:
    marks = [mark for mark in recording.marks if mark.step]
    ends = [mark.event for mark in marks[1:]] + [len(recording.events)]
    before = sum(event > 0 for event in recording.events[: marks[0].event])
    sizes = [event for event in recording.events if event > 0]
    count = before
    phases = {}
    for mark, end in zip(marks, ends, strict=True):
        events: list[Event] = []
        for event in recording.events[mark.event : end]:
            if event > 0:
                count += 1
                events.append(("allocate", event, 0))
            else:
                known = ~event >= before
                events.append(("free", sizes[~event] if known else 0, count - ~event if known else 0))
        phases[mark.step, mark.phase, mark.micro] = _with_frees_sorted(events)
    return phases


def _with_frees_sorted(events: list[Event]) -> list[Event]:
    out: list[Event] = []
    frees: list[Event] = []
    for event in events:
        if event[0] == "free":
            frees.append(event)
        else:
            out += sorted(frees)
            out.append(event)
            frees = []
    return out + sorted(frees)


def _sizes_only(events: list[Event]) -> list[Event]:
    return _with_frees_sorted([(kind, size, 0) for kind, size, _ in events])


def _equal_chunks_once(events: list[Event]) -> list[Event]:
    """Events without the third and further of the chunks that repeat each other."""
    out: list[Event] = []
    at = 0
    while at < len(events):
        chunk = events[at : at + CHUNK_EVENTS]
        if out[-CHUNK_EVENTS:] == chunk and out[-2 * CHUNK_EVENTS : -CHUNK_EVENTS] == chunk:
            at += CHUNK_EVENTS
        else:
            out.append(events[at])
            at += 1
    return out


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_every_allocation_and_free_is_predicted(path: Path) -> None:
    capture = _load(path)
    job = TrainingJob.from_json(capture["job"])
    architecture = resolve(job).architecture
    predicted = _predicted(record(job, architecture))
    for phase, recorded in _recorded(capture).items():
        events = predicted[phase]
        if architecture.family in TABLES_OF_A_SET:
            events, recorded = _sizes_only(events), _sizes_only(recorded)
        if job.loss == "liger_fused" and job.precision.startswith("amp"):
            events = _equal_chunks_once(_sizes_only(events))
            recorded = _equal_chunks_once(_sizes_only(recorded))
        differing = [i for i, pair in enumerate(zip(events, recorded, strict=False)) if pair[0] != pair[1]]
        at = differing[0] if differing else min(len(events), len(recorded))
        assert events == recorded, (
            f"{phase}, event {at}: {events[at : at + 3]} predicted, {recorded[at : at + 3]} recorded"
        )


def test_every_family_of_the_tape_was_recorded() -> None:
    recorded = {_load(path)["job"]["config"]["model_type"] for path in CAPTURES}
    assert recorded == set(FORWARD)
