"""The quiz in a real Chromium: asking, judging, keys, the clock, and progress that stays in the browser."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from trainmem.quiz import by_name, key_text, start

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser


def opened(visit, query="?tab=quiz", **settings):
    page = visit(query, **settings)
    expect(page.locator("#quiz :is(.tm-menu, .tm-question)")).to_be_visible()
    return page


def asked(visit, question, **settings):
    page = opened(visit, f"?tab=quiz&question={question}", **settings)
    name, _, seed = question.partition("~")
    expect(page.locator("#quiz .tm-prompt")).to_have_text(by_name(name).question(int(seed)).prompt)
    return page


def press(page, name):
    page.locator("#quiz").get_by_role("button", name=name, exact=True).click()


def test_a_right_number_shows_the_sum_and_the_links(visit):
    question = by_name("states.total").question(7)
    page = asked(visit, question.id)
    expect(page.locator("#quiz .tm-field input")).to_be_focused()
    page.keyboard.type(key_text(question))
    page.keyboard.press("Enter")
    expect(page.locator("#quiz .tm-told")).to_have_text(f"Right: {key_text(question)}.")
    expect(page.locator("#quiz .tm-sum li")).to_have_count(len(question.steps))
    expect(page.locator("#quiz .tm-sum b").last).to_be_visible()
    expect(page.get_by_role("button", name="Next", exact=True)).to_be_focused()
    link = page.get_by_role("link", name="Open in the calculator")
    assert link.get_attribute("href") == f"?{question.link}"


def test_the_case_opens_in_the_calculator(visit):
    question = by_name("levers.checkpointing").question(3)
    page = asked(visit, question.id)
    press(page, "Skip")
    with page.context.expect_page() as other:
        page.get_by_role("link", name="Open in the calculator").click()
    calculator = other.value
    expect(calculator.locator("#lever-micro_batch input")).to_have_value(str(question.job.micro_batch))
    expect(calculator.locator("#verdict")).to_contain_text("Peak")


def test_a_slip_is_named_and_an_unreadable_answer_is_asked_again(visit):
    question = by_name("states.total").question(7)
    page = asked(visit, question.id)
    page.locator("#quiz .tm-field input").fill("a lot")
    page.keyboard.press("Enter")
    expect(page.locator("#quiz .tm-told")).to_contain_text("Not read")
    expect(page.locator("#quiz .tm-field input")).to_have_value("a lot")
    page.locator("#quiz .tm-field input").fill(f"{question.key.value / 1e9:.2f}")
    page.keyboard.press("Enter")
    expect(page.locator("#quiz .tm-told small")).to_have_text("GB for GiB")


def test_keys_choose_and_go_on(visit):
    question = by_name("levers.price").question(1)
    page = asked(visit, question.id)
    page.keyboard.press("c")
    expect(page.locator("#quiz .tm-option.right")).to_contain_text("by about a third")
    expect(page.locator("#quiz .tm-told")).to_contain_text("Right.")
    page.keyboard.press("Enter")
    expect(page.locator("#quiz .tm-prompt")).to_have_text("1 of 1 right.")


def test_a_spoken_answer_is_ticked(visit):
    question = by_name("spoken.zero").question(1)
    page = asked(visit, question.id)
    press(page, "Show a model answer")
    ticks = page.locator("#quiz [data-tick]")
    expect(ticks).to_have_count(len(question.key.must) + len(question.key.senior) + 1)
    for box in ticks.all():
        box.check()
    press(page, "Done")
    expect(page.locator("#quiz .tm-told")).to_contain_text("the usual mistake avoided")


def test_todays_three_end_in_a_line_to_share(visit):
    page = opened(visit)
    press(page, "Today's three")
    first = start("today", 0, day=datetime.now(UTC).date()).items[0].question()
    expect(page.locator("#quiz .tm-prompt")).to_have_text(first.prompt)
    for number in (1, 2, 3):
        expect(page.locator("#quiz .tm-quiz-head")).to_contain_text(f"{number} of 3")
        press(page, "Skip")
        press(page, "Next")
    expect(page.locator("#quiz .tm-share code")).to_have_text(
        re.compile(r"^trainmem quiz, .*: ···  0 of 3 in \d+ s$")
    )


def test_an_interview_counts_down_and_leaving_ends_it(visit):
    page = opened(visit)
    press(page, "Mock interview")
    expect(page.locator("#quiz .tm-left")).to_have_text(re.compile(r"^(10:00|9:5\d)$"))
    expect(page.locator("#quiz .tm-left")).to_have_text(re.compile(r"^9:5[0-8]$"))
    press(page, "Leave")
    expect(page.locator("#quiz .tm-menu")).to_be_visible()


def answer_one(page):
    press(page, "Five quick ones")
    press(page, "Skip")
    expect(page.locator("#quiz .tm-sum")).to_be_visible()
    press(page, "Leave")
    expect(page.locator("#quiz .tm-known")).to_contain_text("0 of 1")


def test_progress_survives_a_reload_and_stays_in_the_browser(visit):
    page = opened(visit)
    expect(page.locator("#quiz .tm-known")).to_have_count(0)
    answer_one(page)
    page.reload()
    expect(page.locator("#quiz .tm-known")).to_contain_text("0 of 1")
    assert page.evaluate("Object.keys(localStorage).some((key) => key.includes('trainmem-quiz-v1'))")
    stranger = opened(visit)
    expect(stranger.locator("#quiz .tm-known")).to_have_count(0)


def test_progress_is_exported_wiped_and_imported(visit, tmp_path):
    page = opened(visit)
    answer_one(page)
    with page.expect_download() as download:
        press(page, "Export")
    file = tmp_path / "progress.json"
    download.value.save_as(file)
    assert download.value.suggested_filename.startswith("trainmem-quiz-")
    assert len(json.loads(file.read_text())["attempts"]) == 1

    press(page, "Wipe")
    press(page, "Keep them")
    expect(page.locator("#quiz .tm-known")).to_be_visible()
    press(page, "Wipe")
    press(page, "Forget them")
    expect(page.locator("#quiz .tm-told")).to_have_text("Forgotten.")
    page.reload()
    expect(page.locator("#quiz .tm-menu")).to_be_visible()
    expect(page.locator("#quiz .tm-known")).to_have_count(0)

    page.locator("#quiz input[type=file]").set_input_files(file)
    expect(page.locator("#quiz .tm-told")).to_contain_text("Imported 1 answers")
    page.reload()
    expect(page.locator("#quiz .tm-known")).to_contain_text("0 of 1")


def test_a_file_that_is_not_progress_changes_nothing(visit, tmp_path):
    page = opened(visit)
    answer_one(page)
    file = tmp_path / "other.json"
    file.write_text("{}")
    page.locator("#quiz input[type=file]").set_input_files(file)
    expect(page.locator("#quiz .tm-told")).to_contain_text("Not imported. progress: not an object")
    expect(page.locator("#quiz .tm-known")).to_contain_text("0 of 1")


def test_a_sheet_is_saved(visit):
    page = opened(visit)
    with page.expect_download() as download:
        press(page, "Printable sheet")
    text = download.value.path().read_text(encoding="utf-8")
    assert text.startswith("# Training memory, sheet ")
    assert "# Answers to sheet" in text


def test_an_address_that_cites_nothing_says_so(visit):
    page = opened(visit, "?tab=quiz&question=nothing~1")
    expect(page.locator("#quiz .tm-told")).to_contain_text("address: question: 'nothing' is not a template")
    page = opened(visit, "?tab=quiz&question=%3Cscript%3E")
    expect(page.locator("#quiz .tm-told")).to_contain_text("is not a name and a seed")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(visit, width, dark):
    page = opened(visit, width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for question in ("timelines.act~2", "spoken.lora-or-full~1", "activations.gated~3"):
        page.goto(f"{page.url.partition('?')[0]}?tab=quiz&question={question}")
        expect(page.locator("#quiz .tm-prompt")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        press(page, "Skip")
        expect(page.locator("#quiz .tm-sum")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
