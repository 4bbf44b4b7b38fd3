"""The Snapshot tab in a real Chromium: a stranger's file becomes a verdict, and its text stays text."""

import pickle
import re

import pytest

from trainmem.snapshot.analysis import analyse
from trainmem.snapshot.examples import example_path
from trainmem.snapshot.page import render_page
from trainmem.snapshot.reader import read_snapshot

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser

expect.set_options(timeout=20_000)

MIB = 1 << 20
TRICKS = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "<!--<script>",
    "\x1b[31mred\x1b[0m",
    "abc\u202egnp.exe",
    "nul\x00byte",
    "=HYPERLINK(1)",
    "{{7*7}}${7*7}",
    "\ud800",
    "&lt;b&gt; &amp;",
)


@pytest.fixture
def app_uploads(app_url, tmp_path_factory):
    """Where the running app keeps uploads."""
    return tmp_path_factory.getbasetemp() / "app0" / "uploads"


def open_tab(visit, **settings):
    page = visit("?tab=snapshot", **settings)
    expect(page.locator("#snapshot-file")).to_be_visible()
    return page


def report(page, place="report"):
    """The page in the frame, once it has told how tall it is and nothing moves any more."""
    frame = page.locator(f"#snapshot-{place} iframe.tm-report")
    frame.wait_for(timeout=60_000)
    expect(frame).to_have_attribute("style", re.compile(r"height: \d+px"), timeout=60_000)
    return page.frame_locator(f"#snapshot-{place} iframe.tm-report")


def example(page, name):
    page.locator(f"#snapshot-example-{name}").click()
    return report(page)


def tricky() -> bytes:
    """Every string that a file can hold, set to something hostile."""
    events = []
    for number, trick in enumerate(TRICKS):
        frames = [{"name": trick, "filename": f"/home/alice/{trick}.py", "line": 5}]
        event = {"action": "alloc", "addr": number * 4 * MIB, "size": 2 * MIB, "stream": 0, "frames": frames}
        events.append(event | {"compile_context": trick, "user_metadata": trick, "time_us": number + 1})
    events.append({"action": TRICKS[0], "addr": 0, "size": 1, "stream": 0, "frames": []})
    marks = [
        {"stage": stage, "name": trick, "device": 0, "time_us": 2}
        for trick in TRICKS
        for stage in ("START", "END")
    ]
    settings = {trick: trick for trick in TRICKS}
    return pickle.dumps(
        {
            "segments": [],
            "device_traces": [events],
            "external_annotations": marks,
            "allocator_settings": settings,
        }
    )


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_an_example_is_one_click_away(visit, width, dark):
    page = open_tab(visit, width=width, dark=dark)
    shown = example(page, "amp")
    expect(shown.locator(".verdict p").first).to_contain_text("The peak is 3.04 GiB allocated")
    expect(shown.locator("html")).to_have_attribute("data-theme", "dark" if dark else "light")
    expect(shown.locator(".plot .tag.peak")).to_have_text("peak 3.04 GiB")
    expect(shown.locator("tr.sum")).to_contain_text("3.04 GiB")
    inside = shown.locator("html").evaluate("root => [root.scrollWidth, root.clientWidth]")
    assert inside[0] <= inside[1]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    frame = page.locator("#snapshot-report iframe")
    content = shown.locator("body").evaluate("body => body.getBoundingClientRect().height")
    expect(frame).to_have_css("height", re.compile(r"\d{3,}px"))
    page.wait_for_function(
        "height => document.querySelector('#snapshot-report iframe').clientHeight >= height", arg=content
    )


def test_what_the_file_cannot_tell_comes_first(visit):
    shown = example(open_tab(visit), "ring")
    limits, verdict = (shown.locator(part).bounding_box()["y"] for part in (".limits", ".verdict"))
    assert limits < verdict
    expect(shown.locator(".limits")).to_contain_text("the ring buffer very likely overflowed")


def test_the_timeline_answers(visit):
    shown = example(open_tab(visit), "amp")
    at = shown.locator(".at").first
    expect(at).to_contain_text("At the peak: 3.04 GiB, after event 5,340 of 13,188, backward of step 2")
    plot = shown.locator(".plot").first
    plot.focus()
    plot.press("ArrowRight")
    expect(at).to_contain_text("At this instant")
    plot.press("Home")
    expect(at).to_contain_text("At the peak")
    shown.get_by_role("button", name="Call site").first.click()
    expect(shown.locator("td.code").first).to_contain_text("transformers/activations.py:66 forward")
    shown.locator("tr.pick").first.click()
    expect(shown.locator("pre").first).to_contain_text("train/snapshots.py")
    shown.get_by_role("button", name="Phase").first.click()
    expect(shown.locator("tbody").first).to_contain_text("forward")
    shown.locator("select").first.select_option("3")
    expect(shown.locator(".axis").first).to_contain_text("event 8,383")
    box = plot.bounding_box()
    page = shown.owner.page
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(shown.locator("select").first).to_have_value("zoom")
    plot.press("Escape")
    expect(shown.locator("select").first).to_have_value("all")


def test_the_rows_sum_to_the_total_at_any_instant(visit):
    shown = example(open_tab(visit), "ckpt")
    sizes = "rows => rows.map(row => Number(row.title.split(' ')[0].replaceAll(',', '')))"
    plot = shown.locator(".plot").first
    plot.focus()
    for mode in ("Bucket", "Phase", "Call site"):
        shown.get_by_role("button", name=mode).first.click()
        for key in ("Home", "Shift+ArrowRight", "Shift+ArrowLeft"):
            plot.press(key)
            *parts, total = shown.locator("table").first.locator("tbody td.number[title]").evaluate_all(sizes)
            assert sum(parts) == total > 0


def test_an_upload_is_read_once_and_deleted(visit, tmp_path, app_uploads):
    page = open_tab(visit)
    file = tmp_path / "my run.pickle"
    file.write_bytes(tricky())
    page.locator("#snapshot-file input[type=file]").set_input_files(str(file))
    expect(report(page).locator("h1")).to_have_text("my run.pickle")
    left = [path for path in app_uploads.rglob("*") if path.is_file() and path.stat().st_size]
    assert left == []
    expect(page.locator("#snapshot-file")).to_contain_text("Drop File Here")


def test_a_file_that_is_none_is_one_line(visit, tmp_path, app_uploads):
    page = open_tab(visit)
    example(page, "graph")
    file = tmp_path / "evil.pickle"
    file.write_bytes(pickle.dumps({"segments": complex(1, 2)}))
    page.locator("#snapshot-file input[type=file]").set_input_files(str(file))
    expect(page.locator("#snapshot-status .tm-error")).to_contain_text("asks for a Python object by name")
    expect(page.locator("#snapshot-report iframe")).to_have_count(0)
    assert [path for path in app_uploads.rglob("*") if path.is_file() and path.stat().st_size] == []


def test_text_of_a_file_is_only_text(visit, tmp_path):
    page = open_tab(visit)
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    file = tmp_path / "tricks.pickle"
    file.write_bytes(tricky())
    page.locator("#snapshot-file input[type=file]").set_input_files(str(file))
    shown = report(page)
    shown.get_by_role("button", name="Call site").first.click()
    rows = shown.locator("td.code").all_text_contents()
    assert any("<img src=x onerror=alert(1)>" in row for row in rows)
    assert any("</script>" in row for row in rows)
    everything = shown.locator("body").text_content()
    assert not any(character in everything for character in "\x1b\x00\u202e")
    assert "alice" not in everything.replace("data", "")
    assert shown.locator("img").count() == 0
    assert shown.locator("script").count() == 2
    assert dialogs == []
    with page.expect_download() as download:
        shown.get_by_role("button", name="Table as CSV").first.click()
    text = download.value.path().read_text(encoding="utf-8")
    for line in text.splitlines()[1:]:
        assert not re.match(r'^"?\s*[=+\-@]', line)


def test_the_frame_shares_nothing_with_the_page(visit):
    page = open_tab(visit)
    example(page, "graph")
    frame = page.locator("#snapshot-report iframe")
    assert set(frame.get_attribute("sandbox").split()) == {"allow-scripts", "allow-downloads"}
    inner = next(frame for frame in page.frames if frame.parent_frame)
    assert inner.evaluate("origin") == "null"
    policy = inner.evaluate("document.querySelector('meta[http-equiv]').content")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_two_runs_side_by_side(visit):
    page = open_tab(visit)
    expect(page.locator(".tm-snapshot-compare")).to_be_hidden()
    example(page, "ckpt")
    page.locator("#snapshot-before-example-amp").press("Enter")
    shown = report(page, "comparison")
    expect(shown.locator("p").first).to_contain_text("The peak of step 3 goes from 3.04 GiB")
    expect(shown.locator(".plot")).to_have_count(2)


def test_a_prediction_beside_a_run(visit):
    page = visit("?model=gpt2-124m&micro_batch=2&sequence_length=512&device=h200&tab=snapshot")
    example(page, "amp")
    page.locator("#snapshot-predicted").press("Enter")
    shown = report(page, "comparison")
    expect(shown.locator("h2").first).to_have_text("Compared with predicted")
    expect(shown.locator(".plot")).to_have_count(2)
    expect(shown.locator("p").first).to_contain_text("(predicted) to 3.04 GiB")


@pytest.mark.parametrize("name", ["amp", "oom", "expandable"])
def test_on_a_phone_no_part_of_a_report_is_cut(browser, tmp_path, name):
    page_file = tmp_path / "report.html"
    page_file.write_text(render_page(analyse(read_snapshot(example_path(name)))), encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(page_file.as_uri())
    expect(page.locator(".plot .tag.peak")).to_be_visible()
    cut = "[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1)"
    assert page.evaluate(f"{cut}.map((e) => `${{e.tagName}} ${{e.textContent.slice(0, 40)}}`)") == []
    page.close()
