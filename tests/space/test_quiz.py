"""The quiz's views: every question renders safely, with its answer hidden until it is given."""

from __future__ import annotations

import json
import urllib.request
from datetime import date
from html import escape, unescape
from html.parser import HTMLParser

import pytest

from trainmem.quiz import (
    EMPTY,
    TEMPLATES,
    ChoiceKey,
    NumericKey,
    Progress,
    Rubric,
    by_name,
    grade,
    skipped,
    start,
)
from trainmem.quiz.grade import key_text
from trainmem.quiz.progress import Attempt
from trainmem_space import pins
from trainmem_space.charts.small import small_chart
from trainmem_space.tabs.quiz import STORAGE_KEY, STORAGE_SECRET
from trainmem_space.views.quiz import Shown, end_view, menu_view, question_view

VOID = {"input", "br", "path", "meter"}
DAY = date(2026, 11, 29)


class Balanced(HTMLParser):
    """Complains about tags that do not close in order."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def well_formed(html: str) -> str:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    return html


def shown(question, **more) -> str:
    fields = {"number": 2, "total": 5, "left_seconds": None} | more
    return well_formed(question_view(Shown(question=question, **fields)))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.name)
def test_every_question_renders_and_keeps_its_answer_back(template):
    question = template.question(5)
    before = shown(question)
    assert escape(question.prompt) in before
    assert "tm-sum" not in before
    assert escape(question.mistake) not in before
    if isinstance(question.key, NumericKey) and question.key.unit != "count":
        assert escape(key_text(question)) not in before
    if isinstance(question.key, Rubric):
        assert escape(question.key.model_answer) not in before
    after = shown(question, grade=skipped(question))
    assert all(escape(step.name) in after for step in question.steps)
    assert escape(question.mistake) in after
    assert f"?{escape(question.link)}" in after
    assert (question.chart is not None) == ("<figure" in before)


def test_a_number_field_says_unit_and_tolerance_and_keeps_what_was_typed():
    question = by_name("states.total").question(1)
    assert isinstance(question.key, NumericKey)
    html = shown(question, grade=grade(question, "banana"), answer='ban"ana<')
    assert "in GiB, within 5%" in html
    assert "Not read" in html
    assert 'value="ban&quot;ana&lt;"' in html
    assert "tm-sum" not in html


def test_options_show_what_was_right_and_why_the_others_are_not():
    question = by_name("levers.price").question(1)
    assert isinstance(question.key, ChoiceKey)
    html = shown(question, grade=grade(question, "1"), chosen=0)
    assert 'tm-option right"' in html
    assert 'tm-option wrong"' in html
    assert html.count('tm-option other"') == len(question.key.options) - 2


def test_a_spoken_question_shows_its_rubric_only_when_asked():
    question = by_name("spoken.zero").question(1)
    assert isinstance(question.key, Rubric)
    assert "tm-ticks" not in shown(question)
    html = shown(question, revealed=True)
    ticks = len(question.key.must) + len(question.key.senior) + 1
    assert html.count("data-tick=") == ticks
    assert escape(question.key.model_answer) in html


def test_an_interview_shows_its_clock():
    question = by_name("states.total").question(1)
    assert 'data-left="432"' in shown(question, left_seconds=431.7, total=None)
    assert 'data-left="0"' in shown(question, left_seconds=-3)
    assert "data-left" not in shown(question)


@pytest.mark.parametrize("template", [t for t in TEMPLATES if t.topic == "timelines"], ids=lambda t: t.name)
def test_charts_stay_inside_their_axis(template):
    for seed in range(5):
        chart = template.question(seed).chart
        end, ticks = chart.axis_gib
        assert max(chart.totals_gib) <= end
        assert ticks[0] == 0
        assert 2 <= len(ticks) <= 6
        html = well_formed(small_chart(chart))
        assert escape(chart.alt) in unescape(html) or escape(chart.alt) in html


def test_the_menu_tells_how_far_one_is_and_where_it_is_kept():
    html = well_formed(menu_view(EMPTY, DAY))
    assert "stay in this browser" in html
    assert "So far" not in html
    attempts = [
        Attempt(template="states.total", seed=1, quality=quality, day=DAY, seconds=3) for quality in (5, 1)
    ]
    html = well_formed(menu_view(Progress(tuple(attempts)), DAY, note="<hello>"))
    assert "1 of 2" in html
    assert "&lt;hello&gt;" in html
    assert "Forget 2 answers for good?" in menu_view(Progress(tuple(attempts)), DAY, wiping=True)


def test_the_end_has_a_line_to_share_without_spoilers():
    run = start("today", 1, day=DAY)
    questions = [item.question() for item in run.items]
    for question in questions:
        run.record(skipped(question), now=1, seconds=5)
    html = well_formed(end_view(run))
    assert "trainmem quiz, 29 November 2026: ···" in html
    assert all(escape(question.prompt) in html for question in questions)


def test_what_the_browser_keeps_outlives_the_server(app_url):
    """Gradio draws a new key and secret for each process unless both are fixed."""
    with urllib.request.urlopen(f"{app_url}config", timeout=30) as answer:
        parts = json.load(answer)["components"]
    kept = [part["props"] for part in parts if part["type"] == "browserstate"]
    found = sorted((props["storage_key"], props["secret"]) for props in kept)
    assert found == [(pins.STORAGE_KEY, pins.STORAGE_SECRET), (STORAGE_KEY, STORAGE_SECRET)]
