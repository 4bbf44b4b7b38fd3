"""Practice for the whiteboard: questions whose keys come from the same formulas as every answer."""

from trainmem.quiz.card import card
from trainmem.quiz.grade import Grade, grade, grade_spoken, key_text, skipped, tolerance_text
from trainmem.quiz.progress import EMPTY, Progress, ProgressError
from trainmem.quiz.question import TOPICS, ChoiceKey, NumericKey, Question, Rubric, Topic
from trainmem.quiz.session import INTERVIEW_SECONDS, MODES, Mode, Run, cited, share_text, start
from trainmem.quiz.sheet import sheet
from trainmem.quiz.templates import TEMPLATES, by_name

__all__ = [
    "EMPTY",
    "INTERVIEW_SECONDS",
    "MODES",
    "TEMPLATES",
    "TOPICS",
    "ChoiceKey",
    "Grade",
    "Mode",
    "NumericKey",
    "Progress",
    "ProgressError",
    "Question",
    "Rubric",
    "Run",
    "Topic",
    "by_name",
    "card",
    "cited",
    "grade",
    "grade_spoken",
    "key_text",
    "share_text",
    "sheet",
    "skipped",
    "start",
    "tolerance_text",
]
