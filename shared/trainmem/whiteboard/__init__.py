"""Rung 1: the sums one does on a whiteboard, each with its equation and the numbers put in."""

from trainmem.whiteboard.board import Whiteboard, whiteboard
from trainmem.whiteboard.gap import Gap, GapItem
from trainmem.whiteboard.lesson import LessonLimit, lesson_limits
from trainmem.whiteboard.states import bytes_per_parameter, recipe_sum
from trainmem.whiteboard.term import Certainty, Term

__all__ = [
    "Certainty",
    "Gap",
    "GapItem",
    "LessonLimit",
    "Term",
    "Whiteboard",
    "bytes_per_parameter",
    "lesson_limits",
    "recipe_sum",
    "whiteboard",
]
