"""The Tab key in a real Chromium: every stop shows something, and none is left out."""

import pytest

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser

TABS = ("calculator", "clock", "fit", "snapshot", "measured", "quiz")
JOB = "?model=gpt2-774m&micro_batch=2&lora=16"
READY = {
    "calculator": "#step svg",
    "clock": "#clock .tm-clock",
    "fit": "#fit summary",
    "snapshot": "#snapshot-example-amp",
    "measured": "#measured-machine",
    "quiz": "#quiz button",
}
MOST_STOPS = 120
STOP = """() => {
  const at = document.activeElement;
  if (!at || at === document.body) return null;
  const box = at.getBoundingClientRect();
  const ringed = [];
  for (let part = at; part && ringed.length < 3; part = part.parentElement) ringed.push(part);
  const shows = (part) => {
    const style = getComputedStyle(part);
    return style.opacity !== '0' && style.visibility === 'visible'
      && ((style.outlineStyle !== 'none' && style.outlineWidth !== '0px') || style.boxShadow !== 'none');
  };
  const frame = at.closest('.container > .wrap, label, .tm-import');
  return {
    what: [at.tagName, at.type, at.closest('[id]')?.id, at.name, at.value || at.textContent].join(' ').slice(0, 90),
    group: at.type === 'radio' ? at.closest('fieldset').id : null,
    shown: box.width > 0 && box.height > 0 && ([...ringed, frame].filter(Boolean).some(shows)),
  };
}"""


def stops(page):
    """What the Tab key stops at, from the top of the page to its end."""
    page.locator("[role=tab]").first.focus()
    found = [page.evaluate(STOP)]
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        stop = page.evaluate(STOP)
        if stop is None:
            # the end of the page, where the next one is the first again; anything else is a stop at nothing
            page.keyboard.press("Tab")
            after = page.evaluate(STOP)
            assert after is not None
            assert after["what"] == found[0]["what"], f"a stop at nothing after {found[-1]['what']}"
            return [after, *found[1:]]
        found.append(stop)
    raise AssertionError(f"more than {MOST_STOPS} stops")


@pytest.mark.parametrize("tab", TABS)
def test_every_stop_shows_itself_and_a_group_is_one(visit, tab):
    page = visit(f"{JOB}&tab={tab}")
    expect(page.locator(READY[tab]).first).to_be_visible()
    if tab == "calculator":
        expect(page.locator("#link a[href*='lora=16']")).to_be_visible()
        for fold in ("Paste a config.json", "Cluster"):
            page.get_by_role("button", name=fold).click()
    found = stops(page)
    assert [stop["what"] for stop in found if not stop["shown"]] == []
    groups = [stop["group"] for stop in found if stop["group"]]
    assert len(groups) == len(set(groups))
    whats = [stop["what"] for stop in found]
    assert [what for what in whats if whats.count(what) > 1] == []


def test_the_arrow_keys_choose_within_a_group(visit):
    page = visit("?model=gpt2-774m&micro_batch=2")
    expect(page.locator("#link a[href*='gpt2-774m']")).to_be_visible()
    page.locator("#lever-attention input:checked").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => new URLSearchParams(location.search).get('attention') === 'eager'")
    expect(page.locator("#lever-attention label.selected")).to_have_text("eager")


@pytest.mark.parametrize("width", [390, 1280])
def test_a_table_is_a_stop_where_it_scrolls_and_nowhere_else(visit, width):
    page = visit("?tab=measured", width=width)
    expect(page.locator(".tm-wide").first).to_be_visible()
    page.wait_for_function(
        "() => [...document.querySelectorAll('.tm-wide')].every("
        "(wide) => (wide.tabIndex === 0) === (wide.scrollWidth > wide.clientWidth))"
    )
