"""Stacks, each judged once: the phase it speaks for, and the line of code that stands for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from trainmem.snapshot.frames import Mark, is_python, line_of, marks_of
from trainmem.snapshot.model import Frame, Snapshot, Stacks

__all__ = ["NO_STACK_SITE", "StackFacts", "Vote", "judge_stacks"]

NO_STACK_SITE = "no stack recorded"
_AUTOGRAD_NODE = re.compile(
    r"torch::autograd::(?:generated::)?(?:CppFunction::)?(\w+Backward\d*|AccumulateGrad)"
)
_OPERATOR = re.compile(r"at::_ops::(\w+)::")
_LONGEST_NAME = 300
_LEADING = 3
"""How many of the innermost Python frames decide whether a collective made the allocation."""

_UPPER_MARKS = (
    (Mark.ZERO_GRAD, "zero_grad"),
    (Mark.OPTIMIZER, "optimizer"),
    (Mark.BACKWARD, "backward"),
    (Mark.LOSS | Mark.MODULE_CALL, "forward"),
)


class Vote(IntEnum):
    """The phase a stack speaks for. ``NONE`` leaves it as it was, ``BARE`` has no frames at all."""

    NONE = 0
    SETUP = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    ZERO_GRAD = 5
    BARE = 6


_VOTES = {
    "zero_grad": Vote.ZERO_GRAD,
    "optimizer": Vote.OPTIMIZER,
    "backward": Vote.BACKWARD,
    "forward": Vote.FORWARD,
}


@dataclass(slots=True)
class StackFacts:
    """One entry a stack, and a last one for stack -1, so that index -1 finds it.

    Where the file says which forward a backward allocation belongs to, that stack stands for the allocation
    under its number plus the number of stacks.
    """

    votes: list[int]
    marks: list[int]
    """All marks of the stack's frames together (`trainmem.snapshot.frames.Mark`)."""

    leading: list[int]
    """The same of the innermost Python frames only."""

    sites: list[str]
    has_python: bool
    """Whether any stack of the file has a Python frame."""

    python_frames: int
    cpp_frames: int


def judge_stacks(snapshot: Snapshot) -> StackFacts:
    """The facts of every stack of the file."""
    stacks = snapshot.stacks
    frame_marks = [marks_of(frame) for frame in stacks.frames]
    facts = StackFacts(
        votes=[],
        marks=[],
        leading=[],
        sites=[],
        has_python=any(mark & Mark.PYTHON for mark in frame_marks),
        python_frames=sum(1 for mark in frame_marks if mark & Mark.PYTHON),
        cpp_frames=sum(1 for mark in frame_marks if not mark & Mark.PYTHON),
    )
    labels: dict[int, str] = {}
    native: dict[int, tuple[str, str]] = {}
    for stack in range(len(stacks)):
        numbers = stacks.frame_numbers_of(stack)
        marks = [frame_marks[number] for number in numbers]
        together = 0
        for mark in marks:
            together |= mark
        facts.marks.append(together)
        facts.leading.append(_leading(marks))
        facts.votes.append(_vote(marks, together))
        facts.sites.append(_site(numbers, marks, stacks, labels, native))
    if any(trace.forward_stack is not None for trace in snapshot.traces):
        count = len(stacks)
        facts.marks += [0] * count
        facts.leading += [0] * count
        facts.votes += [Vote.BACKWARD] * count
        facts.sites += [f"backward of {site}" for site in facts.sites]
    facts.marks.append(0)
    facts.leading.append(0)
    facts.votes.append(Vote.BARE if facts.has_python else Vote.NONE)
    facts.sites.append("autograd engine, no Python frames" if facts.has_python else NO_STACK_SITE)
    return facts


def _leading(marks: list[int]) -> int:
    together = count = 0
    for mark in marks:
        if mark & Mark.PYTHON:
            together |= mark
            count += 1
            if count == _LEADING:
                break
        elif mark & (Mark.COLLECTIVE | Mark.WORKSPACE):
            together |= mark
    return together


def _vote(marks: list[int], together: int) -> Vote:
    """The innermost frame that knows its phase decides, except that a recomputation belongs to backward.

    Innermost, because a training loop may run forward and backward in a closure of the optimizer's step.
    """
    if not together & Mark.PYTHON:
        return Vote.BACKWARD if together & Mark.BACKWARD else Vote.NONE
    if together & Mark.RECOMPUTE or _outermost_python(marks) & Mark.AUTOGRAD_FUNCTION:
        return Vote.BACKWARD
    for mark in marks:
        for kinds, phase in _UPPER_MARKS:
            if mark & kinds:
                return _VOTES[phase]
    return Vote.SETUP if together & Mark.MODULE_BUILD else Vote.NONE


def _outermost_python(marks: list[int]) -> int:
    return next((mark for mark in reversed(marks) if mark & Mark.PYTHON), 0)


def _site(
    numbers: Sequence[int],
    marks: list[int],
    stacks: Stacks,
    labels: dict[int, str],
    native: dict[int, tuple[str, str]],
) -> str:
    """The innermost Python frame that is not plumbing; failing that the innermost; failing that the operator."""
    chosen = -1
    for position, mark in enumerate(marks):
        if mark & Mark.PYTHON:
            if not mark & Mark.PLUMBING:
                chosen = position
                break
            if chosen < 0:
                chosen = position
    if chosen < 0:
        return _native_site(numbers, stacks, native)
    number = numbers[chosen]
    if number not in labels:
        labels[number] = _label(stacks.frames[number])
    return labels[number]


def _label(frame: Frame) -> str:
    return line_of(frame) if is_python(frame) else frame.name


def _native_site(numbers: Sequence[int], stacks: Stacks, native: dict[int, tuple[str, str]]) -> str:
    """The autograd node nearest to the allocation, failing that the operator."""
    operator = ""
    for number in numbers:
        if number not in native:
            native[number] = _native_names(stacks.frames[number].name[:_LONGEST_NAME])
        node, called = native[number]
        if node:
            return f"autograd {node}"
        operator = operator or called
    return f"operator {operator}" if operator else "C++ frames only"


def _native_names(name: str) -> tuple[str, str]:
    """The autograd node and the operator that a C++ name speaks of; empty where it speaks of none."""
    node, operator = _AUTOGRAD_NODE.search(name), _OPERATOR.search(name)
    return node[1] if node else "", operator[1] if operator else ""
