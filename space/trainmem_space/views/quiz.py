"""The quiz as HTML: the menu, one question, what is said after it, the end of a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from trainmem.quiz import (
    INTERVIEW_SECONDS,
    TEMPLATES,
    TOPICS,
    ChoiceKey,
    Grade,
    NumericKey,
    Progress,
    Question,
    Rubric,
    Run,
    card,
    share_text,
    tolerance_text,
)
from trainmem.quiz.card import LETTERS
from trainmem.quiz.question import Step
from trainmem_space.charts.small import small_chart
from trainmem_space.charts.text import escape

__all__ = ["Shown", "end_view", "menu_view", "question_view", "waiting_view"]

_LETTERS = "ABCDEFGHIJ"
_LEAD = (
    '<p class="tm-lead">Interviewers ask for this sum. Every key here is computed by the formulas that '
    f"answer on the other tabs: {len(TEMPLATES)} kinds of questions, new numbers each time.</p>"
)
_TOPIC_OF = {template.name: template.topic for template in TEMPLATES}
_SAID = {"right": "right", "slip": "slip", "wrong": "wrong", "skipped": "wrong", "unreadable": "unread"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What is on the screen of a run: the question, its place, the clock, and the grade once there is one.

    ``chosen`` is the option taken, from 0; ``revealed`` says that a spoken question shows its model answer.
    """

    question: Question
    number: int
    total: int | None
    left_seconds: float | None
    grade: Grade | None = None
    answer: str = ""
    chosen: int | None = None
    revealed: bool = False


def _button(action: str, text: str, *, extra: str = "", kind: str = "") -> str:
    css = f' class="{kind}"' if kind else ""
    return f'<button type="button" data-action="{action}"{css}{extra}>{text}</button>'


def waiting_view() -> str:
    """What stands there until the browser has said what it keeps: nothing that could be pressed too early."""
    return f'<section class="tm-quiz" aria-busy="true">{_LEAD}</section>'


def menu_view(progress: Progress, today: date, *, note: str = "", wiping: bool = False) -> str:
    """What one can start, how far one is, and where that is kept."""
    modes = (
        ("five", "Five quick ones", "five topics, a minute each"),
        ("today", "Today's three", f"{today.day} {today:%B}, the same for everybody"),
        ("interview", "Mock interview", f"{INTERVIEW_SECONDS // 60} minutes, each case gets deeper"),
        ("weak", "Weak spots first", "what you missed, then what is due, then what is new"),
    )
    starts = "".join(
        f"<li>{_button('start', escape(title), extra=f' data-mode={mode}')}<span>{escape(text)}</span></li>"
        for mode, title, text in modes
    )
    topics = "".join(f"<option>{escape(topic)}</option>" for topic in TOPICS)
    by_topic = (
        f'<li><span class="tm-pick"><select aria-label="topic">{topics}</select>'
        f"{_button('start', 'Ask', extra=' data-mode=topic')}</span>"
        "<span>five of one topic</span></li>"
    )
    said = f'<p role="status" class="tm-told">{escape(note)}</p>' if note else ""
    return (
        '<section class="tm-quiz tm-menu">'
        f'{_LEAD}{_card()}{said}<ul class="tm-starts">{starts}{by_topic}</ul>'
        f"{_history(progress, today)}{_keeping(progress, wiping)}</section>"
    )


def _card() -> str:
    """What to know first, closed: who comes to be asked does not see it."""
    lines = "".join(
        f"<li><span>{escape(line.name)}</span><div><code>{escape(line.equation)}</code> "
        f"<em>{escape(line.note)}</em></div></li>"
        for line in card()
    )
    return (
        '<details class="tm-card"><summary>New to it? The formulas first</summary>'
        f'<ol class="tm-sum">{lines}</ol><p class="tm-note">{escape(LETTERS)}.</p></details>'
    )


def _history(progress: Progress, today: date) -> str:
    known = progress.known_by(_TOPIC_OF)
    if not known:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(topic)}</th><td>{right} of {given}</td>'
        f'<td><meter min="0" max="{given}" value="{right}" aria-label="{escape(topic)}"></meter></td></tr>'
        for topic in TOPICS
        if topic in known
        for right, given in (known[topic],)
    )
    streak = progress.streak_days(today)
    days = f" <small>{streak} days in a row</small>" if streak > 1 else ""
    return f'<h2>So far{days}</h2><table class="tm-table tm-known"><tbody>{rows}</tbody></table>'


def _keeping(progress: Progress, wiping: bool) -> str:
    if wiping:
        count = len(progress.attempts)
        buttons = (
            f"<span>Forget {count:,} answers for good?</span> "
            f"{_button('wipe-yes', 'Forget them')} {_button('menu', 'Keep them')}"
        )
    else:
        none = "" if progress.attempts else " disabled"
        buttons = (
            f"{_button('export', 'Export', extra=none)} "
            '<label class="tm-import"><input type="file" accept=".json,application/json">'
            "<span>Import</span></label> "
            f"{_button('wipe', 'Wipe', extra=none)}"
        )
    return (
        "<h2>Where it is kept</h2><p>Your answers stay in this browser. Nothing is stored on the server; "
        f'export them to keep or to move them.</p><p class="tm-actions">{buttons}</p>'
        "<h2>For interviewers</h2><p>Twelve questions on paper, with answers, usual slips and a rubric.</p>"
        f'<p class="tm-actions">{_button("sheet", "Printable sheet")}</p>'
    )


def question_view(shown: Shown) -> str:
    """One question and nothing else; with its grade, also the sum and what comes next."""
    question, key = shown.question, shown.question.key
    given = "".join(f"<li>{escape(line)}</li>" for line in question.setting)
    chart = small_chart(question.chart) if question.chart is not None else ""
    done = shown.grade is not None and shown.grade.verdict != "unreadable"
    if isinstance(key, NumericKey):
        field = _number_field(shown, key, done)
    elif isinstance(key, ChoiceKey):
        field = _options(shown, key, done)
    else:
        field = _spoken(shown, key, done)
    said = _told(shown) if shown.grade is not None else ""
    return (
        f'<section class="tm-quiz tm-question{" tm-done" if done else ""}"{_clock(shown)}>{_head(shown)}'
        f"{f'<ul class=tm-given>{given}</ul>' if given else ''}{chart}"
        f'<p class="tm-prompt">{escape(question.prompt)}</p>{field}{said}'
        f"{_after(question) if done else ''}</section>"
    )


def _clock(shown: Shown) -> str:
    return "" if shown.left_seconds is None else f' data-left="{max(0, round(shown.left_seconds))}"'


def _head(shown: Shown) -> str:
    place = f"{shown.number}" if shown.total is None else f"{shown.number} of {shown.total}"
    clock = "" if shown.left_seconds is None else '<span class="tm-left" role="timer"></span>'
    return (
        f'<p class="tm-quiz-head"><span>{place} · {escape(shown.question.topic)}</span>{clock}'
        f"{_button('menu', 'Leave')}</p>"
    )


def _number_field(shown: Shown, key: NumericKey, done: bool) -> str:
    how = escape(tolerance_text(key))
    if done:
        text = escape(shown.answer) or "–"
        return f'<p class="tm-field"><output>{text}</output><span>{how}</span></p>'
    value = f' value="{escape(shown.answer)}"' if shown.answer else ""
    return (
        '<form class="tm-field"><input name="answer" autocomplete="off" autocapitalize="off" maxlength="100" '
        f'aria-label="your answer, {how}"{value}><span>{how}</span>'
        f'<button type="submit" class="tm-primary">Answer</button>{_button("skip", "Skip")}</form>'
    )


def _options(shown: Shown, key: ChoiceKey, done: bool) -> str:
    rows = []
    for index, option in enumerate(key.options):
        text = f"<b>{_LETTERS[index]}</b><span>{escape(option.text)}</span>"
        if not done:
            rows.append(f"<li>{_button('choose', text, extra=f' data-index={index}', kind='tm-option')}</li>")
            continue
        kind = "right" if index == key.right else "wrong" if index == shown.chosen else "other"
        why = f"<small>{escape(option.why)}</small>" if kind == "other" else ""
        rows.append(f'<li class="tm-option {kind}">{text}{why}</li>')
    skip = "" if done else f'<p class="tm-actions">{_button("skip", "Skip")}</p>'
    return f'<ol class="tm-options">{"".join(rows)}</ol>{skip}'


def _spoken(shown: Shown, key: Rubric, done: bool) -> str:
    if not shown.revealed and not done:
        return (
            '<p class="tm-note">Say it aloud, as you would at the whiteboard. Then look.</p>'
            f'<p class="tm-actions">{_button("reveal", "Show a model answer", kind="tm-primary")} '
            f"{_button('skip', 'Skip')}</p>"
        )
    model = f'<blockquote class="tm-model">{escape(key.model_answer)}</blockquote>'
    if done:
        return model
    ticks = "".join(
        f'<li><label><input type="checkbox" data-tick="{kind}" data-index="{index}"> {escape(text)}'
        f"{'<small>senior</small>' if kind == 'senior' else ''}</label></li>"
        for kind, lines in (("must", key.must), ("senior", key.senior))
        for index, text in enumerate(lines)
    )
    avoided = (
        '<li><label><input type="checkbox" data-tick="avoided"> '
        f"I avoided this: {escape(key.avoid)}</label></li>"
    )
    return (
        f'{model}<p class="tm-note">Tick what you said.</p><ul class="tm-ticks">{ticks}{avoided}</ul>'
        f'<p class="tm-actions">{_button("ticked", "Done", kind="tm-primary")}</p>'
    )


def _told(shown: Shown) -> str:
    grade = shown.grade
    assert grade is not None
    name = f" <small>{escape(grade.slip)}</small>" if grade.slip else ""
    return f'<p class="tm-told {_SAID[grade.verdict]}" role="status">{escape(grade.message)}{name}</p>'


def _after(question: Question) -> str:
    lines = "".join(_sum_line(index, step) for index, step in enumerate(question.steps))
    return (
        f'<ol class="tm-sum">{lines}</ol><p class="tm-mistake">{escape(question.mistake)}</p>'
        f'<p class="tm-actions">{_button("next", "Next", kind="tm-primary")}'
        f'<a href="?{escape(question.link)}" target="_blank" rel="noopener">Open in the calculator</a>'
        f'<a href="?tab=quiz&amp;question={escape(question.id)}">Link to this question</a></p>'
    )


def _sum_line(index: int, step: Step) -> str:
    # it comes in two beats: the numbers, then the result
    numbers, equals, result = step.substituted.rpartition(" = ")
    if equals:
        text = f"<code>{escape(numbers)} <b>= {escape(result)}</b></code>"
    else:
        kind = "code" if any(letter.isdigit() for letter in result) else "em"
        text = f"<{kind}>{escape(result)}</{kind}>"
    return f'<li style="--beat:{index}"><span>{escape(step.name)}</span>{text}</li>'


def end_view(run: Run) -> str:
    """How a run went, and a line to share that gives nothing away."""
    rows = "".join(
        f'<tr class="{_SAID[grade.verdict]}"><th scope="row">{escape(item.question().prompt)}</th>'
        f"<td>{escape(grade.slip or grade.verdict)}</td></tr>"
        for item, grade in zip(run.asked, run.grades, strict=True)
    )
    result = escape(share_text(run))
    copy = f'<p class="tm-share"><code>{result}</code>{_button("copy", "Copy")}</p>' if run.grades else ""
    over = "Time is up. " if run.mode == "interview" else ""
    return (
        f'<section class="tm-quiz tm-end"><p class="tm-prompt">{over}{run.right} of {len(run.grades)} '
        "right.</p>"
        f'{copy}<table class="tm-table tm-asked"><tbody>{rows}</tbody></table>'
        f'<p class="tm-actions">{_button("menu", "Back", kind="tm-primary")}</p></section>'
    )
