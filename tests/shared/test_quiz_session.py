"""Modes, the clock, weak spots, progress files, sharing, and the printable sheet."""

from __future__ import annotations

import json
from datetime import date, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem.quiz import (
    EMPTY,
    INTERVIEW_SECONDS,
    TEMPLATES,
    TOPICS,
    Progress,
    ProgressError,
    Run,
    by_name,
    cited,
    grade,
    share_text,
    sheet,
    skipped,
    start,
)
from trainmem.quiz.grade import Grade
from trainmem.quiz.progress import Attempt
from trainmem.quiz.question import NumericKey
from trainmem.quiz.schedule import Card, cards, weakest_first
from trainmem.quiz.sheet import sheet_questions

DAY = date(2026, 11, 29)
RIGHT = Grade(verdict="right", message="", quality=5)
WRONG = Grade(verdict="wrong", message="", quality=1)


def attempt(template: str, quality: int, day: date = DAY) -> Attempt:
    return Attempt(template=template, seed=1, quality=quality, day=day, seconds=6.0)


def play(run: Run, *grades: Grade, seconds: float = 10) -> list[str]:
    asked, now = [], 0.0
    for one in grades:
        if run.current is None:
            break
        asked.append(run.current.template)
        now += seconds
        run.record(one, now=now, seconds=seconds)
    return asked


def test_five_quick_ones_are_of_five_topics():
    for seed in range(30):
        templates = [by_name(item.template) for item in start("five", seed, day=DAY).items]
        assert len({t.topic for t in templates}) == 5
        assert all(t.level <= 2 and t.topic not in ("spoken", "design") for t in templates)


def test_five_quick_ones_begin_with_what_is_easy():
    for seed in range(30):
        templates = [by_name(item.template) for item in start("five", seed, day=DAY).items]
        levels = [template.level for template in templates]
        assert levels == sorted(levels)
        assert levels[:2] == [1, 1]
        for level in (1, 2):
            topics = [TOPICS.index(t.topic) for t in templates if t.level == level]
            assert topics == sorted(topics)


def test_todays_three_are_the_same_for_everybody_and_change_with_the_date():
    first = start("today", 1, day=DAY).items
    assert first == start("today", 2, day=DAY, progress=EMPTY).items
    assert [by_name(item.template).level for item in first] == [1, 2, 3]
    others = [start("today", 1, day=DAY + timedelta(days=n)).items for n in range(1, 8)]
    assert all(items != first for items in others)


def test_an_interview_goes_deeper_into_one_case_and_moves_on_after_two_misses():
    run = start("interview", 3, day=DAY)
    chain = run.items[0].chain
    length = sum(item.chain == chain for item in run.items)
    asked = play(run, *[RIGHT] * length)
    assert len(asked) == length
    assert {item.chain for item in run.asked} == {chain}
    assert run.current is not None
    assert run.current.chain != chain

    run = start("interview", 3, day=DAY)
    play(run, WRONG, RIGHT, WRONG)
    assert run.current is not None
    assert run.current.chain != chain


def test_an_interview_ends_after_ten_minutes():
    run = start("interview", 0, day=DAY)
    assert run.remaining_seconds(5.0) == INTERVIEW_SECONDS
    run.record(RIGHT, now=100.0, seconds=60.0)
    assert run.remaining_seconds(100.0) == INTERVIEW_SECONDS - 60
    run.record(RIGHT, now=700.0, seconds=600.0)
    assert run.current is None
    assert start("five", 0, day=DAY).remaining_seconds(0.0) is None


def test_unreadable_answers_do_not_count():
    run = start("five", 0, day=DAY)
    before = run.current
    unreadable = Grade(verdict="unreadable", message="", quality=0)
    assert run.record(unreadable, now=1, seconds=1) is None
    assert run.current == before
    assert run.grades == []


def test_a_question_can_be_cited():
    run = cited("states.total~7", day=DAY)
    assert run.items[0].question() == by_name("states.total").question(7)
    for text in (
        "states.total",
        "states.total~x",
        "nothing~7",
        "~7",
        "states.total~-1",
        "states.total~" + "9" * 99,
    ):
        with pytest.raises(ValueError, match=r"^question: "):
            cited(text, day=DAY)


def test_modes_and_topics_that_do_not_exist():
    with pytest.raises(ValueError, match=r"^mode: 'six' is not one of five, today"):
        start("six", 0, day=DAY)
    with pytest.raises(ValueError, match=r"^topic: 'knitting' is not one of bytes per parameter"):
        start("topic", 0, day=DAY, topic="knitting")
    items = start("topic", 0, day=DAY, topic="adapters", count=4).items
    assert len(items) == 4
    assert {by_name(item.template).topic for item in items} == {"adapters"}


def test_sm2_spaces_what_is_known_and_repeats_what_is_not():
    card = Card(template="a")
    first = card.after(5, DAY)
    second = first.after(5, DAY + timedelta(days=1))
    third = second.after(5, DAY + timedelta(days=4))
    assert [c.interval_days for c in (first, second)] == [1, 3]
    assert third.interval_days == pytest.approx(3 * third.easiness)
    assert third.easiness == pytest.approx(2.8)
    failed = third.after(1, DAY + timedelta(days=12))
    assert (failed.repetitions, failed.interval_days, failed.lapses) == (0, 1, 1)
    for _ in range(20):
        failed = failed.after(0, DAY)
    assert failed.easiness == 1.3


def test_weak_spots_come_first_then_new_ones_then_what_is_not_due():
    history = [attempt("weak", 1), attempt("weaker", 0), attempt("known", 5), attempt("known", 5)]
    later = DAY + timedelta(days=2)
    order = weakest_first(history, ["known", "new", "weak", "weaker"], later)
    assert order == ["weaker", "weak", "new", "known"]


def test_the_weak_mode_asks_what_was_missed():
    missed = ["states.total", "sharding.limit", "adapters.nf4"]
    progress = Progress(tuple(attempt(name, 1) for name in missed))
    run = start("weak", 0, day=DAY + timedelta(days=1), progress=progress)
    assert {item.template for item in run.items[:3]} == set(missed)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([t.name for t in TEMPLATES]), st.integers(0, 5), st.integers(0, 400)))
)
def test_progress_survives_export_and_import(history):
    progress = EMPTY
    for name, quality, days in history:
        progress = progress.with_(attempt(name, quality, DAY + timedelta(days=days)))
    again = Progress.from_text(json.dumps(progress.to_json()))
    assert again == progress
    assert cards(again.attempts) == cards(progress.attempts)


def test_progress_keeps_the_newest_two_thousand():
    progress = EMPTY
    for number in range(2010):
        progress = progress.with_(Attempt(template="a", seed=number, quality=5, day=DAY, seconds=1))
    assert len(progress.attempts) == 2000
    assert progress.attempts[0].seed == 10


GOOD = {"template": "a", "seed": 1, "quality": 5, "day": "2026-11-29", "seconds": 3}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "progress: not JSON"),
        ("[]", "progress: not an object"),
        ('{"schema": "other"}', "progress: not an object"),
        ("[" * 100_000, "progress: not JSON"),
        ("x" * (1 << 21), "progress: 2,097,152 characters"),
        ({"attempts": {}}, "attempts: not a list"),
        ({"attempts": [GOOD] * 2001}, "attempts: 2,001 of them"),
        ({"attempts": [1]}, "attempts[0]: not an object"),
        ({"attempts": [GOOD, {**GOOD, "template": ""}]}, "attempts[1].template: "),
        ({"attempts": [{**GOOD, "template": "x" * 100}]}, "attempts[0].template: "),
        ({"attempts": [{**GOOD, "seed": -1}]}, "attempts[0].seed: "),
        ({"attempts": [{**GOOD, "quality": 6}]}, "attempts[0].quality: "),
        ({"attempts": [{**GOOD, "quality": True}]}, "attempts[0].quality: "),
        ({"attempts": [{**GOOD, "day": "yesterday"}]}, "attempts[0].day: "),
        ({"attempts": [{**GOOD, "day": None}]}, "attempts[0].day: "),
        ({"attempts": [{**GOOD, "seconds": "NaN"}]}, "attempts[0].seconds: "),
        (
            '{"schema": "trainmem.quiz-progress/1", "attempts": [{"template": "a", "seed": 1, "quality": 5, '
            '"day": "2026-11-29", "seconds": NaN}]}',
            "attempts[0].seconds: ",
        ),
    ],
)
def test_a_file_that_is_not_progress_is_refused_in_one_line(text, line):
    if isinstance(text, dict):
        text = json.dumps({"schema": "trainmem.quiz-progress/1", **text})
    with pytest.raises(ProgressError) as caught:
        Progress.from_text(text)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_templates_that_are_gone_stay_in_the_history_and_harm_nothing():
    progress = Progress((attempt("was.removed", 1),))
    assert start("weak", 0, day=DAY, progress=progress).items
    assert progress.known_by({"states.total": "bytes per parameter"}) == {}


def test_known_by_topic_and_streak():
    days = [DAY - timedelta(days=n) for n in (5, 2, 1, 1)]
    progress = Progress(tuple(attempt("states.total", q, d) for q, d in zip((5, 1, 5, 4), days, strict=True)))
    assert progress.known_by({"states.total": "bytes per parameter"}) == {"bytes per parameter": (3, 4)}
    assert progress.streak_days(DAY) == 2
    assert progress.with_(attempt("states.total", 5)).streak_days(DAY) == 3
    assert EMPTY.streak_days(DAY) == 0


def test_sharing_gives_nothing_away():
    run = start("today", 0, day=DAY)
    questions = [item.question() for item in run.items]
    for one in (RIGHT, Grade(verdict="slip", message="", quality=2), skipped(questions[2])):
        run.record(one, now=10, seconds=25)
    text = share_text(run)
    assert text == "trainmem quiz, 29 November 2026: ■◧·  1 of 3 in 1 min 15 s"
    assert not any(q.template in text or q.prompt in text for q in questions)


def test_a_whole_run_is_answered_by_its_own_keys():
    run = start("five", 11, day=DAY)
    while (item := run.current) is not None:
        question = item.question()
        key = question.key
        answer = str(key.right + 1) if not isinstance(key, NumericKey) else f"{key.value:.6e}"
        found = grade(
            question, answer if not isinstance(key, NumericKey) or key.value > 1e6 else repr(key.value)
        )
        assert found.correct
        assert run.record(found, now=1, seconds=1) is not None
    assert run.right == 5


def test_a_sheet_is_the_same_for_a_seed_and_has_all_answers():
    text = sheet(7)
    assert text == sheet(7)
    assert text != sheet(8)
    assert text.count("\n## ") == 24
    assert text.count("\f") == 1
    questions = sheet_questions(7)
    assert len({q.topic for q in questions}) == 12
    assert questions[-1].topic == "spoken"
    asked, answers = text.split("\f")
    for question in questions:
        assert question.prompt in asked
        assert question.id in answers
        assert question.id not in asked
    assert len(sheet_questions(7, 30)) == 30
