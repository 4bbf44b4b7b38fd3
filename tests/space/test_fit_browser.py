"""What fits in a real Chromium: it opens by click and by address, settings move it, the plan applies."""

import re

import pytest

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser

SHORT = "?tab=fit&model=gpt2-774m&micro_batch=8&sequence_length=1024&device=rtx-4090"
# The allocator replays a dozen models before an answer is settled.
SETTLED = 120_000


def opened(visit, query=SHORT, *, settled=False, **settings):
    page = visit(query, **settings)
    expect(page.locator("#fit .tm-fit")).to_be_visible(timeout=SETTLED)
    expect(page.locator("#fit-job .tm-fit-job")).to_be_visible(timeout=SETTLED)
    if settled:
        expect(page.locator("#fit [data-detail=exact]")).to_be_visible(timeout=SETTLED)
        expect(page.locator("#fit-job [data-detail=exact]")).to_be_visible(timeout=SETTLED)
    return page


def heading(page):
    return page.locator("#fit .tm-sentence")


def size(page, method):
    return page.locator(f"#fit details[data-key={method}] .size")


def choose(page, control, text):
    page.locator(f"#{control} input").click()
    page.locator(f'#{control} [role=option][aria-label="{text}"]').click()


def test_it_follows_the_calculator_when_it_is_opened(visit):
    page = visit("?model=gpt2-774m&micro_batch=8&sequence_length=1024&device=rtx-4090")
    # Until the address is read, the Calculator shows the job that it starts with.
    expect(page.locator("#verdict")).to_contain_text("RTX 4090", timeout=SETTLED)
    page.get_by_role("tab", name="What fits").click()
    expect(heading(page)).to_have_text("On the GeForce RTX 4090", timeout=SETTLED)
    expect(page.locator("#fit-device input")).to_have_value("GeForce RTX 4090")
    expect(page.locator("#fit-job .tm-lead")).to_contain_text("gpt2-774m", timeout=SETTLED)
    assert "tab=fit" in page.url


def test_the_fast_answer_is_settled_by_the_allocator(visit):
    page = opened(visit, settled=True)
    expect(page.locator("#fit-job")).to_contain_text("One more does not fit, replayed through the allocator")
    expect(page.locator("#fit-job .tm-fit-settled")).to_have_count(0)


def test_a_row_opens_to_its_reasons_and_stays_open(visit):
    page = opened(visit)
    row = page.locator("#fit details[data-key=bf16]")
    row.locator("summary").click()
    expect(row.locator(".about")).to_contain_text("most of that is")
    expect(row.locator(".about")).to_contain_text("Rule of thumb")
    page.locator("#fit-budget input, #fit-budget textarea").fill("40GiB")
    expect(heading(page)).to_contain_text("40.0 GiB of the GeForce RTX 4090", timeout=SETTLED)
    expect(row).to_have_attribute("open", "")


@pytest.mark.parametrize(
    ("control", "text", "method"),
    [("fit-device", "H200 (SXM)", "bf16"), ("fit-family", "Qwen2.5", "lora")],
)
def test_a_setting_moves_the_frontier(visit, control, text, method):
    page = opened(visit)
    before = size(page, method).inner_text()
    choose(page, control, text)
    expect(size(page, method)).not_to_have_text(before, timeout=SETTLED)


def test_longer_sequences_fit_smaller_models(visit):
    page = opened(visit)
    before = size(page, "bf16_8bit").inner_text()
    page.locator("#fit-length input").fill("16384")
    expect(size(page, "bf16_8bit")).not_to_have_text(before, timeout=SETTLED)
    expect(page.locator("#fit")).to_contain_text("of 16,384 tokens")


@pytest.mark.parametrize(
    ("control", "value", "said"),
    [
        ("fit-budget", "much", "Budget: 'much' is not a size"),
        ("fit-batch", "0", "Micro batch: 0 is not a whole number"),
        ("fit-length", "", 'Sequence length: "" is not a whole number'),
    ],
)
def test_a_wrong_setting_is_one_line_and_the_last_answer_stays(visit, control, value, said):
    page = opened(visit)
    before = heading(page).inner_text()
    field = page.locator(f"#{control} input, #{control} textarea").first
    field.fill(value)
    expect(page.locator("#fit-error .tm-error")).to_contain_text(said)
    assert heading(page).inner_text() == before
    field.fill({"fit-budget": "24GiB", "fit-batch": "1", "fit-length": "2048"}[control])
    expect(page.locator("#fit-error .tm-error")).to_have_count(0, timeout=SETTLED)


def test_a_plan_is_applied_in_the_calculator(visit):
    page = opened(visit, settled=True)
    first = page.locator("#fit-job .tm-plan > li").first
    expect(first).to_contain_text("Checkpointing")
    expect(first).to_contain_text("identical mathematics")
    first.locator(".tm-apply").click()
    expect(page.locator("#verdict .tm-verdict.fits")).to_be_visible(timeout=SETTLED)
    expect(page.locator("#lever-checkpointing input")).to_have_value("full")
    assert re.search("checkpointing=full", page.url)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(visit, width, dark):
    page = opened(visit, width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for label in page.locator("#fit .tm-frontier .size").all():
        box = label.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("width", [390, 1280])
def test_no_label_covers_a_mark(visit, width):
    page = opened(visit, "?tab=fit&model=gpt2-774m&device=spark", width=width)
    # What lies on top at each mark's middle: another mark may, text may not.
    on_top = page.evaluate(
        """() => [...document.querySelectorAll("#fit .tm-frontier .mark")].map((mark) => {
            mark.scrollIntoView({ block: "center" });
            const box = mark.getBoundingClientRect();
            return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2).tagName;
        })"""
    )
    assert len(on_top) > 40
    assert set(on_top) == {"B"}
