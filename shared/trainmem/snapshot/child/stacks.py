"""Strings, frames and stacks, each kept once."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Any

from .refusal import Refusal

__all__ = ["StackTable"]

_MOST_FRAMES = 512
_MOST_CHARACTERS = 4096
_MOST_LINE = (1 << 32) - 1
NO_STACK = -1
_TRACEBACK_LINE = re.compile(r'\s*File "([^"\n]+)", line (\d{1,9}), in ([^\n]+)')


class StackTable:
    """Numbers for stacks. Lists and frames seen before are found by identity first, then by content.

    A real file shares the frames between stacks and most stacks between events; walking every stack of every
    event would take longer than reading the file.
    """

    def __init__(self) -> None:
        self.strings: list[str] = []
        self.frame_names = array("I")
        self.frame_files = array("I")
        self.frame_lines = array("I")
        self.stack_ends = array("Q")
        self.stack_frames = array("I")
        self._strings: dict[str, int] = {}
        self._frames: dict[tuple[int, int, int], int] = {}
        self._frames_by_id: dict[int, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._stacks_by_id: dict[int, int] = {}
        self._kept: list[Any] = []

    def string(self, value: Any) -> int:
        """The number of a string; anything else counts as an empty one."""
        text = value[:_MOST_CHARACTERS] if type(value) is str else ""
        number = self._strings.get(text)
        if number is None:
            number = self._strings[text] = len(self.strings)
            self.strings.append(text)
        return number

    def stack(self, frames: Any) -> int:
        """The number of a stack, innermost frame first; ``NO_STACK`` when there are no frames."""
        if not frames:
            return NO_STACK
        number = self._stacks_by_id.get(id(frames))
        if number is None:
            if type(frames) is not list and type(frames) is not tuple:
                raise Refusal("frames: not a list")
            number = self._stacks_by_id[id(frames)] = self._intern(frames)
        return number

    def stacks(self, column: Sequence[Any]) -> array[int]:
        """The numbers of many stacks, one an event."""
        known = self._stacks_by_id
        identities = list(map(id, column))
        try:
            return array("i", list(map(known.__getitem__, identities)))
        except KeyError:
            for identity, frames in zip(identities, column, strict=True):
                if identity not in known:
                    known[identity] = self.stack(frames)
        return array("i", list(map(known.__getitem__, identities)))

    def tracebacks(self, column: list[Any]) -> array[int]:
        """The numbers of stacks written as lines of text, the outermost call first, as Python prints them."""
        turned = [value[::-1] if type(value) is list else value for value in column]
        # Stacks are known by identity: a list made here must not make room for another at its address.
        self._kept.append(turned)
        return self.stacks(turned)

    def _intern(self, frames: list[Any] | tuple[Any, ...]) -> int:
        if len(frames) > _MOST_FRAMES:
            frames = frames[:_MOST_FRAMES]
        try:
            content = tuple(map(self._frames_by_id.__getitem__, map(id, frames)))
        except KeyError:
            content = tuple([self._frame(frame) for frame in frames])
        number = self._stacks.get(content)
        if number is None:
            number = self._stacks[content] = len(self.stack_ends)
            self.stack_frames.extend(content)
            self.stack_ends.append(len(self.stack_frames))
        return number

    def _frame(self, frame: Any) -> int:
        number = self._frames_by_id.get(id(frame))
        if number is not None:
            return number
        if type(frame) is dict:
            line = frame.get("line")
            key = (
                self.string(frame.get("name")),
                self.string(frame.get("filename")),
                line if type(line) is int and 0 <= line <= _MOST_LINE else 0,
            )
        elif type(frame) is str:
            match = _TRACEBACK_LINE.match(frame)
            if match:
                key = (self.string(match[3]), self.string(match[1]), int(match[2]))
            else:
                key = (self.string(frame), self.string(""), 0)
        else:
            raise Refusal("frames: one of them is not an object with a name, a file and a line")
        number = self._frames.get(key)
        if number is None:
            number = self._frames[key] = len(self.frame_names)
            self.frame_names.append(key[0])
            self.frame_files.append(key[1])
            self.frame_lines.append(key[2])
        self._frames_by_id[id(frame)] = number
        return number
