"""The Measured tab in a real Chromium: opening, filtering, provenance, the scatter, phones and dark pages."""

import pytest

expect = pytest.importorskip("playwright.sync_api").expect
# A machine that runs other tests beside this one answers late; a failure is still a failure.
PATIENCE = {"timeout": 30_000}

pytestmark = pytest.mark.browser

SPARK = "NVIDIA DGX Spark (GB10)"


def opened(visit, **settings):
    page = visit("?tab=measured", **settings)
    expect(page.locator("#measured .tm-lessons").first).to_be_visible(**PATIENCE)
    return page


def choose(page, control, name):
    page.locator(f"#{control} input").click()
    page.get_by_role("option", name=name, exact=True).click()


def test_it_opens_from_the_address_and_from_its_tab(visit):
    opened(visit)
    page = visit("")
    page.get_by_role("tab", name="Measured").click()
    expect(page.locator("#measured .tm-lessons").first).to_be_visible(**PATIENCE)


def test_a_line_opens_to_its_row(visit):
    page = opened(visit)
    line = page.locator("#measured details").first
    expect(line.locator(".tm-row")).to_be_hidden()
    line.locator("summary").click()
    expect(line.locator(".tm-row")).to_be_visible(**PATIENCE)
    expect(line.locator(".tm-row")).to_contain_text("trainmem measure --suite lesson", **PATIENCE)


def test_the_spark_has_no_rows_yet_and_says_how_to_get_them(visit):
    page = opened(visit)
    choose(page, "measured-machine", SPARK)
    empty = page.locator('#measured [data-empty="lesson"]')
    expect(empty).to_contain_text(f"Not run yet on {SPARK}", **PATIENCE)
    expect(empty).to_contain_text("trainmem measure --suite lesson", **PATIENCE)
    expect(page.locator("#measured-rows")).to_contain_text("No rows of this machine", **PATIENCE)
    choose(page, "measured-machine", "every machine")
    expect(page.locator("#measured .tm-lessons").first).to_be_visible(**PATIENCE)


def test_pointing_at_a_dot_tells_its_job(visit):
    page = opened(visit)
    dot = page.locator("#measured .tm-scatter [data-row]").first
    dot.scroll_into_view_if_needed()
    dot.dispatch_event("pointerover", {"bubbles": True})
    expect(page.locator("#measured .tm-said")).to_contain_text("measured", **PATIENCE)
    expect(page.locator("#measured .tm-scatter .told").first).to_be_visible(**PATIENCE)


def test_the_rows_follow_the_suite(visit):
    page = opened(visit)
    choose(page, "measured-suite", "adapters")
    expect(page.locator("#measured-rows")).to_contain_text("1B, QLoRA, checkpointing", **PATIENCE)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(visit, width, dark):
    page = opened(visit, width=width, dark=dark)
    page.locator("#measured details summary").first.click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_on_a_phone_no_table_is_cut(visit):
    page = opened(visit, width=390)
    cut = page.evaluate(
        "[...document.querySelectorAll('.tm-wide, .tm-lines-of > span')]"
        ".filter((box) => box.offsetParent && box.getBoundingClientRect().right > innerWidth).length"
    )
    assert cut == 0
    cell = page.locator("#measured .tm-lesson [data-head=measured]").first
    expect(cell).to_be_visible()
    assert "measured" in cell.evaluate("cell => getComputedStyle(cell, '::before').content")
