"""Reading numbers as people write them, and judging them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem.job import TrainingJob
from trainmem.quiz import by_name, grade, grade_spoken
from trainmem.quiz.quantity import UNITS, AnswerError, in_unit, parse, show
from trainmem.quiz.question import NumericKey, Rubric
from trainmem.quiz.templates import TEMPLATES


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("28.8 GiB", "GiB", 28.8 * 2**30),
        ("28.8", "GiB", 28.8 * 2**30),
        ("28.8gib", "GiB", 28.8 * 2**30),
        ("28,8", "GiB", 28.8 * 2**30),
        ("about 29", "GiB", 29 * 2**30),
        ("~ 29 GiB", "GiB", 29 * 2**30),
        ("19.8 GB", "GiB", 19.8e9),
        ("19.8e9", "GiB", 19.8e9),
        ("19.8e9 bytes", "GiB", 19.8e9),
        ("19,800,000,000", "GiB", 19.8e9),
        ("512 MiB", "GiB", 2**29),
        ("44G", "GiB", 44 * 2**30),
        ("774e6 x 16", "GiB", 774e6 * 16),
        ("774e6 × 16 B", "GiB", 774e6 * 16),
        ("(2 + 2 + 12) * 7.5e9", "GB", 120e9),
        ("1/2", "GiB", 2**29),
        ("16", "B per parameter", 16),
        ("16 B", "B per parameter", 16),
        ("16 bytes per parameter", "B per parameter", 16),
        ("16 B/param", "B per parameter", 16),
        ("42M", "parameters", 42e6),
        ("42 million parameters", "parameters", 42e6),
        ("7B", "parameters", 7e9),
        ("41,943,040", "parameters", 41_943_040),
        ("1,024 tokens", "tokens", 1024),
        ("2k", "tokens", 2000),
        ("4x", "times", 4),
        ("× 1.25", "times", 1.25),
        ("25 %", "%", 25),
        ("8 GPUs", "count", 8),
        ("4 micro batches", "count", 4),
        ("4.127 bits", "bits", 4.127),
    ],
)
def test_understood(text, unit, value):
    assert parse(text, unit) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    "text", ["", "a lot", "5 apples", "1e999", "1/0", "2**30", "1 2 3 GiB", "((1", "4 +", "x" * 200, "GiB"]
)
def test_unreadable_is_not_wrong(text):
    with pytest.raises(AnswerError):
        parse(text, "GiB")
    found = grade(by_name("states.total").question(0), text)
    assert (found.verdict, found.correct) == ("unreadable", False)
    assert found.message.startswith("Not read: ")


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40), st.sampled_from(UNITS))
def test_no_text_breaks_the_reader(text, unit):
    with contextlib.suppress(AnswerError):
        parse(text, unit)


@settings(max_examples=200, deadline=None)
@given(st.floats(min_value=0.01, max_value=9e5), st.sampled_from(UNITS))
def test_what_is_shown_is_read_back_to_three_digits(value, unit):
    base = value * parse("1", unit)
    assert parse(show(base, unit), unit) == pytest.approx(base, rel=0.006)


def test_wrong_says_by_how_much():
    question = by_name("states.total").question(0, TrainingJob(model="gpt2-774m"))
    assert grade(question, "13.0").correct
    found = grade(question, "1")
    assert found.message == "Wrong: 1 GiB is off, 13 times too little. The answer is 13.0 GiB."
    assert (found.verdict, found.quality) == ("wrong", 1)
    assert grade(question, "26").message.startswith("Wrong: 26 GiB is off, 2 times too much.")


def test_a_bare_number_of_parameters_is_asked_back():
    question = by_name("adapters.model").question(0)
    assert grade(question, "42").verdict == "unreadable"
    assert grade(question, "1 byte").verdict == "unreadable"
    assert "more than a thousand times too little" in grade(question, "1000").message


def test_choices_take_letters_and_numbers():
    question = by_name("levers.price").question(0)
    assert grade(question, "c").correct
    assert grade(question, " 3. ").correct
    assert grade(question, "a").verdict == "wrong"
    for text in ("", "e", "9", "by about a third"):
        assert grade(question, text).verdict == "unreadable"


def test_every_judged_answer_begins_by_saying_whether_it_is_right():
    words = {"right": ("Right",), "slip": ("Wrong.",), "wrong": ("Wrong", "Not complete")}
    seen = set()
    for template in TEMPLATES:
        question = template.question(3)
        if isinstance(question.key, Rubric):
            grades = [grade_spoken(question.key, [], [], False)]
        elif isinstance(question.key, NumericKey):
            shown = (question.key.value, *(slip.value for slip in question.key.slips), question.key.value * 9)
            grades = [grade(question, in_unit(value, question.key.unit)) for value in shown]
        else:
            grades = [grade(question, index + 1) for index in range(len(question.key.options))]
        for found in grades:
            if found.verdict != "unreadable":
                seen.add(found.verdict)
                assert found.message.startswith(words[found.verdict]), (question.id, found.message)
    assert seen == set(words)


def test_what_is_neither_text_nor_a_number_is_unreadable():
    for answer in (None, True, [], {"a": 1}, b"1", float("nan"), float("inf"), 10**5000, object()):
        for name in ("states.total", "levers.price"):
            assert grade(by_name(name).question(0), answer).verdict == "unreadable"


def test_spoken_answers_are_ticked():
    rubric = Rubric(model_answer="", must=("a", "b"), senior=("c",), avoid="d")
    assert grade_spoken(rubric, [0, 1], [0], True).quality == 5
    assert grade_spoken(rubric, [0, 1], [], True).quality == 4
    half = grade_spoken(rubric, [0], [], True)
    assert (half.correct, half.quality) == (False, 1)
    assert not grade_spoken(rubric, [0, 1], [0], False).correct
    assert grade_spoken(rubric, [0, 0, 7, -1], [], True).quality == 1
    with pytest.raises(TypeError, match="spoken"):
        grade(by_name("spoken.zero").question(0), "1")
