"""The Calculator in a real Chromium: levers move the verdict, mistakes are one line, links carry the job."""

import csv
import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.browser

SMALL = "?model=gpt2-774m&micro_batch=8&sequence_length=1024&device=spark"
TIGHT = "?model=llama3.2-1b&micro_batch=16&sequence_length=2048&device=spark"
LARGE = "?model=llama2-7b&micro_batch=4&sequence_length=4096&device=spark"


def sentence(page):
    return page.locator("#verdict .tm-sentence")


def number(page, lever):
    return page.locator(f"#lever-{lever} input")


def choose(page, lever, text):
    page.locator(f"#lever-{lever} input").click()
    page.locator(f'#lever-{lever} [role=option][aria-label="{text}"]').click()


def press(page, lever, text):
    page.locator(f"#lever-{lever} label").get_by_text(text, exact=True).click()


def address(page):
    return {key: value[0] for key, value in parse_qs(urlsplit(page.url).query).items()}


def ready(page):
    expect(sentence(page)).to_be_visible()
    expect(page.locator("#step svg")).to_be_visible()
    return page


def opened(visit, query=SMALL, **settings):
    """The page once it shows the scenario of ``query``."""
    page = ready(visit(query, **settings))
    wanted = parse_qs(query[1:])
    expect(page.locator(f"#link a[href*='model={wanted['model'][0]}']")).to_be_visible()
    expect(page.locator("#verdict [data-detail=exact]")).to_be_visible()
    return page


def test_an_empty_address_shows_the_first_scenario(visit):
    page = ready(visit())
    expect(page.locator(".tm-error")).to_have_count(0)
    expect(page.locator("#breakdown summary")).not_to_have_count(0)


def test_a_lever_moves_the_verdict_the_ghost_and_the_address(visit):
    page = opened(visit)
    before = sentence(page).inner_text()
    number(page, "micro_batch").fill("16")
    expect(sentence(page)).not_to_have_text(before)
    expect(page.locator(".ghost")).to_have_count(1)
    expect(page.locator(".tm-caption").first).to_contain_text("with micro batch 8")
    page.wait_for_function("() => location.search.includes('micro_batch=16')")
    assert address(page)["model"] == "gpt2-774m"


@pytest.mark.parametrize(
    ("lever", "how", "label", "key", "value"),
    [
        ("precision", choose, "pure bf16", "precision", "bf16"),
        ("optimizer", choose, "SGD", "optimizer", "sgd"),
        ("checkpointing", choose, "full", "checkpointing", "full"),
        ("attention", press, "eager", "attention", "eager"),
        ("loss", press, "fused (Liger)", "loss", "liger_fused"),
        ("zero_grad", press, "fill with zeros", "zero_grad", "zeros"),
        ("lora", press, "on", "lora", "16"),
        ("device", choose, "H200 (SXM)", "device", "h200"),
    ],
)
def test_every_kind_of_lever_is_live(visit, lever, how, label, key, value):
    page = opened(visit)
    how(page, lever, label)
    page.wait_for_function(f"() => new URLSearchParams(location.search).get('{key}') === '{value}'")
    expect(page.locator(".tm-error")).to_have_count(0)


def test_lora_opens_its_own_levers(visit):
    page = opened(visit)
    expect(page.locator("#lever-lora_rank")).to_be_hidden()
    press(page, "lora", "on")
    expect(page.locator("#lever-lora_rank")).to_be_visible()
    number(page, "lora_rank").fill("64")
    page.wait_for_function("() => new URLSearchParams(location.search).get('lora') === '64'")
    press(page, "base_quantization", "NF4")
    page.wait_for_function("() => location.search.includes('base_quantization=nf4')")


def test_the_cheapest_lever_is_one_click(visit):
    page = opened(visit, TIGHT)
    expect(page.locator(".tm-verdict.short")).to_be_visible()
    before = sentence(page).inner_text()
    page.locator("#verdict [data-action=apply]").click()
    expect(sentence(page)).not_to_have_text(before)
    expect(page.locator(".tm-verdict.fits")).to_be_visible()
    expect(number(page, "micro_batch")).to_have_value("8")
    expect(page.locator(".tm-caption").first).to_contain_text("outline:")


def test_scenarios_are_pinned_restored_and_let_go(visit):
    page = opened(visit)
    page.locator("[data-action=pin]").click()
    expect(page.locator("[data-action=unpin]")).to_have_count(1)
    expect(page.locator("[data-action=pin]")).to_be_disabled()
    for batch in ("1", "2", "3"):
        number(page, "micro_batch").fill(batch)
        expect(page.locator("[data-action=pin]")).to_be_enabled()
        page.locator("[data-action=pin]").click()
        expect(page.locator("[data-action=pin]")).to_be_disabled()
    expect(page.locator("[data-action=unpin]")).to_have_count(4)
    number(page, "micro_batch").fill("5")
    page.wait_for_function("() => location.search.includes('micro_batch=5')")
    expect(page.locator("[data-action=pin]")).to_be_disabled()
    page.locator("[data-action=restore]").first.click()
    expect(number(page, "micro_batch")).to_have_value("8")
    page.locator("[data-action=unpin]").first.click()
    expect(page.locator("[data-action=unpin]")).to_have_count(3)


def test_pins_outlive_a_reload_until_they_are_removed(visit):
    page, pins = opened(visit), "[data-action=unpin]"
    page.locator("[data-action=pin]").click()
    expect(page.locator(pins)).to_have_count(1)
    number(page, "micro_batch").fill("2")
    expect(page.locator("[data-action=pin]")).to_be_enabled()
    page.locator("[data-action=pin]").click()
    expect(page.locator(pins)).to_have_count(2)
    page.reload()
    expect(page.locator(pins)).to_have_count(2)
    page.goto(page.url.partition("?")[0])  # an address without a job
    expect(page.locator(pins)).to_have_count(2)
    page.locator("[data-action=unpin-all]").click()
    expect(page.locator(pins)).to_have_count(0)
    page.reload()
    expect(page.locator("#step svg")).to_be_visible()
    expect(page.locator(pins)).to_have_count(0)


@pytest.mark.parametrize(
    ("lever", "value", "said"),
    [
        ("micro_batch", "-3", "Micro batch: -3 is not a whole number from 1 to"),
        ("micro_batch", "1.5", "Micro batch: 1.5 is not a whole number"),
        ("micro_batch", "", 'Micro batch: "" is not a whole number'),
        ("sequence_length", "4096", "Sequence length: 4,096"),
        ("sequence_length", "1000000000000", "Sequence length: 1000000000000 is not"),
    ],
)
def test_a_wrong_number_is_one_line_and_the_last_answer_stays(visit, lever, value, said):
    page = opened(visit)
    before = sentence(page).inner_text()
    number(page, lever).fill(value)
    expect(page.locator(".tm-error")).to_contain_text(said)
    expect(page.locator("#verdict")).to_have_css("opacity", "0.4")
    expect(page.locator(f"#lever-{lever}.tm-wrong")).to_have_count(1)
    expect(number(page, lever)).to_have_attribute("aria-invalid", "true")
    assert sentence(page).inner_text() == before
    number(page, lever).fill("4")
    expect(page.locator(".tm-error")).to_have_count(0)
    expect(page.locator(".tm-wrong")).to_have_count(0)


def type_model(page, text):
    field = number(page, "model")
    field.click()
    field.fill(text)
    field.press("Enter")


def test_a_model_is_chosen_by_name_or_by_an_id_of_the_catalogue(visit):
    page = opened(visit)
    type_model(page, "qwen2.5-0.5b")
    page.wait_for_function("() => location.search.includes('model=qwen2.5-0.5b')")
    type_model(page, "Qwen/Qwen2.5-1.5B")
    page.wait_for_function("() => location.search.includes('Qwen2.5-1.5B')")
    expect(page.locator(".tm-error")).to_have_count(0)


@pytest.mark.parametrize("key", ["Enter", "Tab"])
def test_an_emptied_model_is_said_to_be_missing_and_none_is_picked(visit, key):
    page = opened(visit)
    before = sentence(page).inner_text()
    number(page, "model").click()
    number(page, "model").fill("")
    number(page, "model").press(key)
    expect(page.locator(".tm-error")).to_contain_text("Model: missing; choose one from the list")
    expect(page.locator("#verdict")).to_have_css("opacity", "0.4")
    expect(number(page, "model")).to_have_value("")
    assert address(page)["model"] == "gpt2-774m"
    assert sentence(page).inner_text() == before


def test_enter_takes_the_model_of_that_name_and_not_one_whose_name_begins_with_it(visit):
    page = opened(visit)
    type_model(page, "mistral-7b")  # the list has mistral-7b-v0.1 before it
    page.wait_for_function("() => new URLSearchParams(location.search).get('model') === 'mistral-7b'")
    expect(number(page, "model")).to_have_value("mistral-7b")


@pytest.mark.parametrize("leave", ["Escape", "Escape Tab"])
def test_escape_takes_back_what_was_typed_for_a_model(visit, leave):
    page = opened(visit)
    field, said = page.locator("#lever-model input"), sentence(page).inner_text()
    field.click()
    field.fill("qwen")
    for key in leave.split():
        page.keyboard.press(key)
    expect(field).to_have_value("gpt2-774m")
    expect(page.locator(".tm-error")).to_have_count(0)
    type_model(page, "gpt2-124m")
    expect(sentence(page)).not_to_have_text(said)
    field.click()
    field.fill("qwen")
    page.keyboard.press("Escape")
    expect(field).to_have_value("gpt2-124m")
    assert address(page)["model"] == "gpt2-124m"


def test_an_emptied_device_stays_the_one_it_was(visit):
    page = opened(visit, SMALL.replace("spark", "h200"))
    number(page, "device").click()
    number(page, "device").fill("")
    number(page, "device").press("Enter")
    expect(number(page, "device")).to_have_value("H200 (SXM)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nope", 'Model: "nope" is not in the catalogue'),
        ("someone/something", "Model: someone/something was not fetched because HF_HUB_OFFLINE is set"),
    ],
)
def test_a_model_that_cannot_be_had_is_one_line(visit, text, said):
    page = opened(visit)
    before = sentence(page).inner_text()
    type_model(page, text)
    expect(page.locator(".tm-error")).to_contain_text(said)
    expect(page.locator("#lever-model.tm-wrong")).to_have_count(1)
    assert sentence(page).inner_text() == before


def test_a_config_is_pasted_and_dropped_again(visit):
    page = opened(visit)
    page.get_by_role("button", name="Paste a config.json").click()
    field = page.locator("#lever-config textarea")
    field.click()
    page.keyboard.insert_text('{"model_type": "llama", "hidden_size"')
    expect(page.locator(".tm-error")).to_contain_text("config.json: not JSON")
    expect(number(page, "model")).to_have_value("gpt2-774m")
    config = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "vocab_size": 1000}
    field.fill("")
    field.click()
    page.keyboard.insert_text(json.dumps(config))
    expect(number(page, "model")).to_have_value("pasted config.json")
    expect(page.locator(".tm-error")).to_have_count(0)
    page.wait_for_function("() => location.search.includes('config=')")
    again = ready(visit(f"?{urlsplit(page.url).query}"))
    expect(sentence(again)).to_have_text(sentence(page).inner_text())
    type_model(page, "gpt2-355m")
    page.wait_for_function("() => location.search.includes('model=gpt2-355m')")
    expect(field).to_have_value("")


def test_a_link_opens_the_same_scenario(visit):
    page = opened(visit)
    choose(page, "checkpointing", "full")
    press(page, "attention", "eager")
    page.wait_for_function("() => location.search.includes('eager')")
    expect(page.locator("#link a")).to_have_attribute("href", re.compile("eager"))
    link = page.locator("#link a").get_attribute("href")
    other = opened(visit, link)
    expect(sentence(other)).to_have_text(sentence(page).inner_text())
    expect(number(other, "checkpointing")).to_have_value("full")
    expect(other.locator("#lever-attention label.selected")).to_have_text("eager")
    expect(other.locator(".ghost")).to_have_count(0)


@pytest.mark.parametrize(
    "query",
    [
        "?model=nope",
        "?micro_batch=8",
        "?micro_batch=8&device=foo",
        "?model=gpt2-774m&micro_batch=x",
        "?spam=1",
    ],
)
def test_a_wrong_address_is_one_line_over_the_first_scenario(visit, query):
    page = visit(query)
    expect(page.locator(".tm-error")).to_contain_text("In the address, ")
    expect(page.locator("#verdict")).to_have_css("opacity", "0.4")
    expect(page.locator(".tm-wrong")).to_have_count(0)


@pytest.mark.parametrize("tab", ["calculator", "clock", "fit"])
def test_an_unknown_device_is_named_and_the_job_shown_on_the_default_one(visit, tab):
    page = visit(f"?model=gpt2-774m&device=foo&tab={tab}")
    line = page.locator(".tm-error").filter(visible=True)
    expect(line).to_contain_text('In the address, Device: "foo" is not a known device')
    page.get_by_role("tab", name="Calculator").click()
    expect(number(page, "device")).to_have_value("DGX Spark (GB10)")
    expect(number(page, "model")).to_have_value("gpt2-774m")
    expect(page.locator("#verdict")).to_have_css("opacity", "1")


def test_each_bucket_opens_to_its_equation_and_stays_open(visit):
    page = opened(visit)
    row = page.locator("details[data-key=weights]")
    row.locator("summary").click()
    expect(row.locator("code").nth(1)).to_contain_text("=")
    number(page, "micro_batch").fill("2")
    page.wait_for_function("() => location.search.includes('micro_batch=2')")
    expect(row).to_have_attribute("open", "")


def test_the_table_downloads_with_exact_bytes(visit):
    page = opened(visit)
    with page.expect_download() as download:
        page.get_by_text("Download as CSV").click()
    with open(download.value.path(), newline="", encoding="utf-8") as file:
        rows = {row["bucket"]: row for row in csv.DictReader(file)}
    parts = [int(row["tape_bytes"]) for bucket, row in rows.items() if bucket != "total"]
    assert sum(parts) == int(rows["total"]["tape_bytes"]) > 0
    shown = page.locator("#breakdown .tm-total .tm-num").first.get_attribute("title")
    assert shown == f"{int(rows['total']['tape_bytes']):,} bytes"


def test_the_hint_follows_the_focus(visit):
    page = opened(visit)
    number(page, "sequence_length").focus()
    expect(page.locator("#hint")).to_contain_text("scores with its square")
    number(page, "precision").focus()
    expect(page.locator("#hint")).to_contain_text("Bytes per parameter")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen_and_the_verdict_is_on_it(visit, width, dark):
    page = opened(visit, LARGE, width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    box = sentence(page).bounding_box()
    assert box["y"] + box["height"] < page.viewport_size["height"] / 2
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 22, 26)" if dark else "rgb(255, 255, 255)")
    for label in page.locator(".tm-label").all():
        edges = label.bounding_box()
        assert edges["x"] >= 0
        assert edges["x"] + edges["width"] <= width


def test_on_a_phone_the_levers_fold_under_the_verdict(visit):
    page = opened(visit, width=390)
    expect(page.locator("#form")).to_be_hidden()
    fold = page.get_by_role("button", name="Change the job")
    fold.click()
    expect(page.locator("#form")).to_be_visible()
    number(page, "micro_batch").fill("2")
    page.wait_for_function("() => location.search.includes('micro_batch=2')")
    page.locator("#lever-task").scroll_into_view_if_needed()
    expect(sentence(page)).to_be_in_viewport()
    page.get_by_role("button", name="Done").click()
    expect(page.locator("#form")).to_be_hidden()


def test_text_of_a_config_is_only_ever_text(visit):
    page = opened(visit)
    evil = "<img src=x onerror=window.hit=1>"
    type_model(page, evil)
    expect(page.locator(".tm-error")).to_contain_text("<img")
    page.get_by_role("button", name="Paste a config.json").click()
    page.locator("#lever-config textarea").click()
    page.keyboard.insert_text(json.dumps({"model_type": evil}))
    expect(page.locator(".tm-error")).to_contain_text("<img")
    assert page.evaluate("window.hit") is None


def test_two_visitors_do_not_see_each_other(visit):
    one, other = opened(visit), opened(visit)
    one.locator("[data-action=pin]").click()
    expect(one.locator("[data-action=unpin]")).to_have_count(1)
    number(other, "micro_batch").fill("2")
    other.wait_for_function("() => location.search.includes('micro_batch=2')")
    expect(other.locator("[data-action=unpin]")).to_have_count(0)
    expect(number(one, "micro_batch")).to_have_value("8")


def test_on_a_phone_every_figure_is_inside_its_column(visit):
    page = opened(visit, width=390)
    wide = (
        "[...document.querySelectorAll('.tm-cells > span')].filter((c) => c.scrollWidth > c.clientWidth + 1)"
    )
    assert page.evaluate(f"{wide}.map((c) => c.textContent)") == []
