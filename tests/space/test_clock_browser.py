"""One step on a clock in a real Chromium: stepping by button, key and slider, toggles, the address."""

import pytest

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser

QUERY = "?tab=clock&model=gpt2-774m&micro_batch=8&sequence_length=1024&device=spark"


def opened(visit, query=QUERY, **settings):
    page = visit(query, **settings)
    expect(page.locator("#clock-job")).to_contain_text("gpt2-774m")
    expect(page.locator("#clock .tm-instants > section:visible")).to_have_count(1)
    return page


def instant(page):
    return page.locator("#clock .tm-instants > section:visible h3")


def total(page):
    return page.locator("#clock .tm-instants > section:visible tfoot .tm-num").get_attribute("title")


def test_it_opens_at_the_peak(visit):
    page = opened(visit)
    everywhere = page.locator("#clock .tm-instants tfoot .tm-num")
    totals = [text.get_attribute("title") for text in everywhere.all()]
    sizes = [int(text.removesuffix(" bytes").replace(",", "")) for text in totals]
    assert total(page) == totals[sizes.index(max(sizes))]


def test_buttons_keys_and_slider_step_through_the_instants(visit):
    page = opened(visit)
    first = instant(page).inner_text()
    page.get_by_role("button", name="next instant").click()
    expect(instant(page)).not_to_have_text(first)
    page.get_by_role("button", name="previous instant").click()
    expect(instant(page)).to_have_text(first)
    page.locator("#clock h2").click()
    page.keyboard.press("ArrowRight")
    expect(instant(page)).not_to_have_text(first)
    page.keyboard.press("ArrowLeft")
    expect(instant(page)).to_have_text(first)
    slider = page.locator("#clock input[type=range]")
    slider.fill("0")
    expect(page.get_by_role("button", name="previous instant")).to_be_disabled()
    left = page.locator("#clock .tm-cursor").evaluate("cursor => cursor.style.left")
    assert float(left.rstrip("%")) == 0
    slider.press("ArrowRight")
    expect(page.get_by_role("button", name="previous instant")).to_be_enabled()
    slider.press("End")
    expect(page.get_by_role("button", name="next instant")).to_be_disabled()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_thumb_stands_under_the_line_and_the_line_hides_nothing(visit, width):
    page = opened(visit, width=width)
    placed = """() => {
      const box = (chosen) => document.querySelector(`#clock ${chosen}`).getBoundingClientRect();
      const slider = document.querySelector('#clock input[type=range]');
      const track = slider.getBoundingClientRect(), thumb = 18;
      const at = track.left + thumb / 2 + (slider.value / slider.max) * (track.width - thumb);
      const line = box('.tm-cursor'), dot = box('.tm-peak'), canvas = box('.tm-canvas');
      return {thumb: at, line: line.left + 1, bottom: line.bottom, peak: dot.bottom, canvas: canvas.width};
    }"""
    for _ in range(3):
        found = page.evaluate(placed)
        assert found["thumb"] == pytest.approx(found["line"], abs=2)
        # the peak is the highest point of the chart; a line that ends at or above it covers no memory
        if page.locator("#clock .tm-at").inner_text().startswith("the peak"):
            assert found["bottom"] == pytest.approx(found["peak"], abs=2)
        page.get_by_role("button", name="next instant").click()


@pytest.mark.parametrize("width", [390, 1280])
def test_every_phase_is_named_under_the_axis(visit, width):
    page = opened(visit, width=width)
    for phase in ("optimizer", "zero grad"):
        name = page.locator("#clock .tm-ribbon em", has_text=phase)
        expect(name).to_be_visible()
        box = name.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


def test_the_phases_are_all_there(visit):
    page = opened(visit)
    said = page.locator("#clock figure").get_attribute("aria-label")
    for phase in ("forward", "backward", "optimizer", "zero_grad"):
        assert phase in said


def test_the_first_step_starts_without_optimizer_state(visit):
    page = opened(visit)
    start = page.locator("#clock .tm-instants > section").first.locator("tbody i.optimizer_state")
    expect(start).to_have_count(1)
    page.locator("#clock-step label").get_by_text("the first step", exact=True).click()
    expect(start).to_have_count(0)


def test_checkpointing_lowers_the_curve_here_alone(visit):
    page = opened(visit)
    before = page.locator("#clock .tm-peak").inner_text()
    page.locator("#clock-checkpointing label").get_by_text("full", exact=True).click()
    expect(page.locator("#clock .tm-peak")).not_to_have_text(before)
    page.get_by_role("tab", name="Calculator").click()
    expect(page.locator("#lever-checkpointing input")).to_have_value("none")


def test_it_follows_the_calculator_and_says_so_in_the_address(visit):
    page = opened(visit)
    page.get_by_role("tab", name="Calculator").click()
    assert "tab=" not in page.url
    page.locator("#lever-micro_batch input").fill("2")
    page.wait_for_function("() => location.search.includes('micro_batch=2')")
    page.get_by_role("tab", name="One step on a clock").click()
    expect(page.locator("#clock-job")).to_contain_text("micro batch 2")
    assert "tab=clock" in page.url
    assert "micro_batch=2" in page.url


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?tab=clock&config=x", "In the address, config.json: not a packed config"),
        ("?tab=clock&model=bert-large&task=sequence_classification", "Sequence length: 1,024 is longer"),
    ],
)
def test_an_address_that_names_no_step_shows_none(visit, query, said):
    page = visit(query)
    expect(page.locator("#clock, #clock-address").locator(".tm-error")).to_contain_text(said)
    expect(page.locator("#clock .tm-clock")).to_have_count(0)


def test_three_things_are_said_in_words(visit):
    page = opened(visit)
    expect(page.locator("#clock ol > li")).to_have_count(3)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(visit, width, dark):
    page = opened(visit, width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_on_a_phone_the_menu_of_tabs_is_in_the_address_too(visit):
    page = opened(visit, "?tab=clock&model=gpt2-774m&micro_batch=8", width=390)
    page.get_by_role("button", name="More tabs").click()
    page.locator("#tabs .overflow-dropdown").get_by_text("Quiz", exact=True).click()
    page.wait_for_function("() => location.search.includes('tab=quiz')")
