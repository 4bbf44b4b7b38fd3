"""What fits as HTML: every method and its border, prices with their source, text that is only text."""

import re

import pytest

from trainmem.fit import METHODS, plans, rent_or_own, room, step_floor, what_fits
from trainmem.fit.report import limits_of
from trainmem.fit.words import billions, in_short, step_time
from trainmem.job import Lora, TrainingJob

pytest.importorskip("gradio")

from trainmem_space.charts.frontier import FrontierRow, Mark, frontier
from trainmem_space.tabs import fit as tab
from trainmem_space.views.fit import page_view
from trainmem_space.views.plan import floor_view, limits_view, offers_view, plans_view

LIKE = TrainingJob(model="llama3.2-1b", micro_batch=1, sequence_length=2048, checkpointing="full")
LESSON = TrainingJob(model="gpt2-774m", micro_batch=8, sequence_length=1024, device="rtx-4090")
SETTINGS = ("rtx-4090", "", 1, 2048, "full", "llama3")


@pytest.fixture(scope="module")
def page():
    return what_fits(room("spark"), LIKE, detail="fast")


@pytest.fixture(scope="module")
def html(page):
    return page_view(page)


def test_every_method_has_a_row_with_its_size_and_its_model(page, html):
    for row in page.rows:
        assert f'data-key="{row.method.key}"' in html
        assert f"<strong>{billions(row.curve.largest.parameters)}</strong>" in html
        assert row.catalogue.largest.title in html
    assert html.count("<details") == len(METHODS)


def test_what_it_is_made_of_is_said(page, html):
    assert "most of that is optimizer state" in html
    assert "square roots join gradients and state" in html
    assert "Rule of thumb: about 7B. 118 GiB / 16 B" in html
    assert "Rule of thumb: 40 to 50B" in html
    assert "llama3.1-8b: " in html
    assert "measured on NVIDIA H200" in html
    assert "<td>measured, H200</td>" in html
    assert in_short(page) in html


def test_the_7b_stands_recipe_by_recipe(page, html):
    table = html.partition("A 7B, recipe by recipe")[2]
    assert table.count("<tr class=") == sum(method.kind == "full" for method in METHODS)
    assert "126 GiB" in table
    assert "62.8 GiB" in table
    assert "too much" in table


def test_every_link_opens_a_job_in_the_calculator(html):
    links = re.findall(r'href="(\?[^"]+)"', html)
    assert len(links) == len(METHODS)
    assert all("model=" in link for link in links)


def test_one_sentence_tells_the_kinds_apart(page):
    said = in_short(page)
    assert re.fullmatch(
        r"Full fine-tuning to [\d.]+B by the recipe that needs least, [\d.]+B by the one that needs most; "
        r"LoRA to [\d.]+B; QLoRA to [\d.]+B\.",
        said,
    )
    small = what_fits(room("rtx-4090"), LIKE)
    assert re.match(
        r"Full fine-tuning to [\d.]+B by the recipe that needs least, not at all by the one that needs most; ",
        in_short(small),
    )
    assert "<strong>no Llama 3 fits</strong>, but tinyllama-1.1b does" in page_view(small)
    tiny = what_fits(room("l4", "1GiB"), LIKE, detail="fast")
    assert in_short(tiny).startswith("No full fine-tuning at all")
    assert "Not even the smallest size" in page_view(tiny)
    assert "No model of the catalogue fits" in page_view(tiny)


def test_a_family_that_ends_before_the_memory_says_so():
    like = LIKE.with_(sequence_length=1024)
    html = page_view(what_fits(room("b200"), like, family="smollm2", detail="fast"))
    assert "All of SmolLM2&#x27;s curve fits" in html or "All of SmolLM2's curve fits" in html
    assert "riser open" in html


def test_counts_and_prices_in_words():
    assert [billions(n) for n in (774_030_080, 1_235_814_400, 70_553_706_496)] == ["774M", "1.24B", "70.6B"]
    assert [step_time(share) for share in (0.25, -0.134, 0.001, 2.5)] == [
        "+25% step time",
        "-13% step time",
        "same step time",
        "3.5 times the step time",
    ]


def row(**changes):
    values = {
        "key": "k",
        "title": "<b>",
        "end": 7 * 10**9,
        "ends_with_the_family": False,
        "label": "7B",
        "marks": [Mark(parameters=10**9, title='"><img>', fits=True, measured=True)],
        "thumb": (4 * 10**10, 5 * 10**10),
        "about": "",
    }
    return FrontierRow(**values | changes)


def test_the_axis_is_logarithmic_and_text_is_text():
    html = frontier([row(), row(end=0, marks=[], thumb=None)], {"<i>": 10**9})
    assert "<img>" not in html
    assert "&lt;b&gt;" in html
    assert "&lt;i&gt;" in html
    places = {text: float(at) for at, text in re.findall(r'left:([\d.]+)%">(\d+[MB])<', html)}
    assert places["10B"] - places["1B"] == pytest.approx(places["100B"] - places["10B"], abs=0.01)
    assert html.count('class="mark measured fits"') == 1
    assert html.count("thumb") == 1


def test_a_measured_mark_lies_on_top_of_a_predicted_neighbour():
    measured = Mark(parameters=70_553_706_496, title="measured", fits=True, measured=True)
    predicted = Mark(parameters=72_706_203_648, title="predicted", fits=True, measured=False)
    html = frontier([row(marks=[measured, predicted])], {})
    assert html.index('title="predicted"') < html.index('title="measured"')


def test_a_plan_shows_what_it_saves_and_costs():
    html = plans_view(plans(LESSON, room("rtx-4090"), "fast"), "gpt2-774m <b>", "fast")
    assert "It does not fit on the GeForce RTX 4090" in html
    assert '<b>Checkpointing</b><span class="tm-num">− 28.9 GiB</span>' in html
    assert '44.3 GiB becomes</span><span class="tm-num">15.4 GiB</span>' in html
    assert "+25% step time" in html
    assert 'title="gpt2-774m x 8 x 1,024, H200: 0.221 s to 0.277 s">measured</small>' in html
    assert "identical mathematics" in html
    assert "gpt2-774m &lt;b&gt;" in html
    assert re.search(r'class="tm-apply" href="\?[^"]*checkpointing=full', html)


@pytest.mark.parametrize("machine", ["rtx-4090", "h200"])
def test_what_the_allocator_may_yet_refuse_is_not_told_as_final(machine):
    """llama3.1-8b on 2 H100s: 75.3 GiB of tensors, which the allocator cannot hold in 78.5."""
    job = TrainingJob(model="llama3.1-8b", micro_batch=8, sequence_length=2048).to_json()
    early = tab._job_now(job, machine, *SETTINGS[1:])
    plan, _, rest = early.partition("Rent or own")
    for part in (plan, rest):
        assert part.count("Reserved memory is still being checked.</span>") == 1
    assert 'class="tm-apply" href' not in early
    assert (plan.count('aria-disabled="true"') > 0) == ("<ol" in plan)
    assert "<td>fits</td>" not in rest
    assert "<td>does not fit</td>" in rest
    settled = tab._job_settled(job, machine, *SETTINGS[1:])
    assert "still being checked" not in settled
    assert "aria-disabled" not in settled
    assert "being checked" not in settled
    assert settled.count('class="tm-apply" href') == settled.count('class="sum"')


def test_what_is_never_replayed_is_final_at_once():
    deep = {"model_type": "gpt2", "n_layer": 1000, "n_embd": 64, "n_head": 2, "n_positions": 1024}
    job = TrainingJob(config=deep, micro_batch=1024, sequence_length=1024).to_json()
    for handler in (tab._job_now, tab._job_settled):
        html = handler(job, *SETTINGS)
        assert "still being checked" not in html
        assert 'class="tm-apply" href' in html


def test_limits_of_an_unknown_model_are_the_sums():
    config = {"model_type": "granite", "hidden_size": 2048, "num_hidden_layers": 4, "vocab_size": 49155}
    config |= {"num_attention_heads": 32, "max_position_embeddings": 4096, "intermediate_size": 8192}
    job = TrainingJob(config=config, sequence_length=2048).to_json()
    assert "still being checked" not in tab._job_now(job, *SETTINGS)
    html = tab._job_settled(job, *SETTINGS)
    assert "One more does not fit, replayed" not in html
    assert "Where the whiteboard&#x27;s sum reaches the limit" in html


def test_a_job_that_fits_has_no_list():
    html = plans_view(plans(LESSON, room("h200"), "fast"), "it", "fast")
    assert "It fits on the H200 (SXM)" in html
    assert "<ol" not in html


def test_a_job_that_nothing_mends_says_so():
    job = TrainingJob(model="llama3.1-405b", micro_batch=1, sequence_length=512, checkpointing="full")
    assert "No list of levers makes it fit" in plans_view(plans(job, room("l4"), "fast"), "it", "fast")


def test_the_rest_of_a_job():
    html = limits_view(LESSON, limits_of(LESSON, room("h200"), "fast"), "fast")
    assert html.count("<tr><th scope") == 8  # GPT-2 has no linear layers to pack
    assert f"longest sequence<br>at micro batch {LESSON.micro_batch}<" in html
    assert "all it takes" in html
    assert "measured 29" in html
    assert "not even 1" in limits_view(LESSON, limits_of(LESSON, room("l4", "2GiB"), "fast"), "fast")
    floor = floor_view(step_floor(LESSON), None, "a card")
    assert "of arithmetic at the data sheet's rate" in floor
    assert "s to move the optimizer" in floor
    offers = offers_view(rent_or_own(LESSON, "fast"))
    for count in (1, 2, 4, 8):
        assert f"{count} × H100 80GB (SXM)" in offers
    assert "The smallest single device in the list that runs it as set: NVIDIA" in offers


def test_wrong_settings_change_the_error_line_alone():
    for index, value, said in (
        (1, "much", "Budget: &#x27;much&#x27; is not a size"),
        (2, None, "Micro batch: &quot;&quot; is not a whole number"),
        (3, 0, "Sequence length: 0 is not a whole number"),
        (5, "gpt2", "Sequence length: 2,048 is longer"),
    ):
        settings = [*SETTINGS]
        settings[index] = value
        error, kept = tab._page_now(LESSON.to_json(), *settings)
        assert said in error
        assert "__type__" in kept


def test_the_tab_takes_the_calculators_job_and_device():
    data, name = tab._selected(LESSON.to_json())
    assert (data["model"], name) == ("gpt2-774m", "rtx-4090")
    data, name = tab._selected(None)
    assert name == "spark"
    _, name = tab._selected(LESSON.with_(device="m3-ultra").to_json())
    assert "__type__" in name


def test_adapters_are_told_with_the_job():
    adapted = LESSON.with_(model="llama3.2-1b", precision="bf16", lora=Lora(rank=8), base_quantization="nf4")
    html = tab._job_now(adapted.to_json(), *SETTINGS)
    assert "LoRA rank 8" in html
    assert "4-bit" in html or "nf4" in html.lower()


def test_until_the_tab_is_opened_nothing_is_worked_out():
    for handler in (tab._page_now, tab._job_now, tab._job_settled):
        found = handler(None, *SETTINGS)
        assert all("__type__" in part for part in (found if isinstance(found, list) else [found]))
