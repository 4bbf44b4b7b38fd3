"""Largest micro batch, longest sequence, largest model: the border is where it is said to be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem.fit.frontier import what_fits
from trainmem.fit.limits import configurations, largest_micro_batch, longest_sequence
from trainmem.fit.methods import METHODS, method_of
from trainmem.fit.outcome import outcome
from trainmem.fit.room import room
from trainmem.job import JobError, Lora, TrainingJob
from trainmem.results import published_rows

SMALL = TrainingJob(model="qwen2.5-0.5b", micro_batch=2, sequence_length=512, device="rtx-4090")
PAGE = TrainingJob(model="gpt2-124m", micro_batch=1, sequence_length=1024, checkpointing="full")


@pytest.mark.parametrize("budget", ["12GiB", "20GiB"])
@pytest.mark.parametrize("changes", [{}, {"checkpointing": "full"}], ids=["none", "full"])
def test_the_next_batch_does_not_fit(budget, changes):
    job, at = SMALL.with_(**changes), room("rtx-4090", budget)
    found = largest_micro_batch(job, at)
    assert outcome(job.with_(micro_batch=found.value), at).fits
    assert not outcome(job.with_(micro_batch=found.value + 1), at).fits
    assert found.estimate.peak_allocated_bytes <= at.limit_bytes


def test_the_next_token_does_not_fit():
    at = room("rtx-4090", "12GiB")
    found = longest_sequence(SMALL, at)
    assert not found.is_model_end
    assert outcome(SMALL.with_(sequence_length=found.value), at).fits
    assert not outcome(SMALL.with_(sequence_length=found.value + 1), at).fits


def test_where_the_model_ends_before_the_memory():
    job = TrainingJob(model="gpt2-124m", micro_batch=1, sequence_length=128, device="rtx-4090")
    found = longest_sequence(job, room("rtx-4090"))
    assert (found.value, found.is_model_end) == (1024, True)


def test_where_not_even_one_fits():
    job = TrainingJob(model="llama3.1-8b", sequence_length=2048, device="rtx-4090")
    for found in (largest_micro_batch(job, room("rtx-4090")), longest_sequence(job, room("rtx-4090"))):
        assert (found.value, found.estimate, found.tight) == (0, None, False)


LARGEST = [row for row in published_rows() if row.kind == "largest_batch" and row.measured.get("proved")]


@pytest.mark.parametrize("row", LARGEST, ids=lambda row: row.label)
def test_the_largest_batch_is_the_measured_one(row):
    assert row.job.device == "h200"
    found = largest_micro_batch(row.job, room("h200"))
    assert found.value == row.measured["largest_micro_batch"] == found.measured
    assert largest_micro_batch(row.job, room("h200", "60GiB")).measured is None


@settings(max_examples=20, deadline=None)
@given(
    model=st.sampled_from(["gpt2-124m", "qwen2.5-0.5b", "pythia-410m"]),
    method=st.sampled_from(METHODS),
    gib=st.integers(4, 30),
    more=st.integers(1, 30),
)
def test_more_memory_never_takes_a_smaller_batch(model, method, gib, more):
    job = method.apply(TrainingJob(model=model, sequence_length=512, device="l40s"))
    less, much = (
        largest_micro_batch(job, room("l40s", f"{size}GiB"), "fast").value for size in (gib, gib + more)
    )
    assert less <= much


@pytest.mark.parametrize(("name", "budget"), [("spark", None), ("rtx-4090", None), ("h100-80gb", "20GiB")])
@pytest.mark.parametrize("family", ["llama3", "gpt2", "qwen2.5"])
def test_adapters_take_larger_models_and_packed_bases_larger_ones_still(name, budget, family):
    at = room(name, budget)
    rows = {row.method.key: row for row in what_fits(at, PAGE, family=family, detail="fast").rows}
    curve = {key: row.curve.largest.parameters if row.curve.largest else 0 for key, row in rows.items()}
    assert (
        curve["qlora"] >= curve["lora"] >= max(curve[key] for key in rows if rows[key].method.kind == "full")
    )
    assert curve["bf16_8bit"] >= curve["bf16"] >= curve["amp"]
    assert curve["amp_fused"] >= curve["amp"]


@settings(max_examples=6, deadline=None)
@given(gib=st.integers(6, 200), more=st.integers(1, 60))
def test_more_memory_never_fits_a_smaller_model(gib, more):
    pages = [what_fits(room("b200", f"{size}GiB"), PAGE, detail="fast") for size in (gib, gib + more)]
    for less, much in zip(*(page.rows for page in pages), strict=True):
        for border in ("curve", "catalogue"):
            small, large = getattr(less, border).largest, getattr(much, border).largest
            assert (small.parameters if small else 0) <= (large.parameters if large else 0)


@pytest.fixture(scope="module")
def spark():
    like = TrainingJob(model="gpt2-124m", micro_batch=1, sequence_length=2048, checkpointing="full")
    return what_fits(room("spark", "118GiB"), like)


def test_the_border_is_a_border(spark):
    for row in spark.rows:
        for border in (row.catalogue, row.curve):
            assert outcome(border.largest.job, spark.room).fits
            assert border.beyond is None or not outcome(border.beyond.job, spark.room).fits
            assert border.beyond is None or border.beyond.parameters > border.largest.parameters


def test_the_lessons_7b(spark):
    # Measured: 125.6 GiB under AMP with AdamW, 63.2 with 8-bit state, 62.8 in pure bf16.
    examples = {row.method.key: row.example for row in spark.rows if row.example}
    gib = {key: size.peak_allocated_bytes / 2**30 for key, size in examples.items()}
    assert gib["amp"] == pytest.approx(125.6, abs=0.1)
    assert gib["amp_8bit"] == pytest.approx(63.2, abs=0.3)
    assert gib["bf16"] == pytest.approx(62.8, abs=0.1)
    assert not examples["amp"].fits
    assert examples["amp_fused"].fits
    assert examples["amp_8bit"].fits
    assert examples["bf16"].fits


def test_the_lessons_answer_stands_beside(spark):
    assert [limit.answer for limit in spark.lesson] == ["about 7B", "40 to 50B", "about 70B"]
    own = what_fits(room("spark"), PAGE, detail="fast")
    assert [limit.answer for limit in own.lesson] == ["about 7B", "40 to 50B", "about 70B"]


def test_measured_rows_stand_beside_their_predictions(spark):
    found = [size for row in spark.rows for size in (row.example, *row.members) if size and size.measured]
    assert len(found) >= 6
    for size in found:
        measured = size.measured.peak_allocated_bytes
        if size.estimate.engine == "tape" and measured:
            assert size.predicted_bytes == pytest.approx(measured, rel=0.005)
            assert size.peak_allocated_bytes == pytest.approx(measured, rel=0.01)


def test_the_page_does_not_depend_on_the_recipe_it_is_like():
    at = room("rtx-4090")
    pages = [
        what_fits(at, job, detail="fast")
        for job in (PAGE, PAGE.with_(model="llama3.1-8b", precision="bf16", lora=Lora(rank=4)))
    ]
    assert [row.curve for row in pages[0].rows] == [row.curve for row in pages[1].rows]


def test_a_length_that_a_family_does_not_take_is_one_line():
    with pytest.raises(
        JobError, match="sequence_length: 2,048 is longer than the position table of gpt2-124m"
    ):
        what_fits(
            room("spark"), PAGE.with_(model="llama3.2-1b", sequence_length=2048), family="gpt2", detail="fast"
        )


def test_configurations_are_told_apart():
    titles = [found.title for found in configurations(SMALL)]
    assert titles == [
        "as set",
        "with checkpointing",
        "with checkpointing, fused loss",
        "with AdamW 8-bit",
        "with AdamW 8-bit, checkpointing",
        "in pure bf16, checkpointing",
        "LoRA in bf16, checkpointing",
        "LoRA in bf16, checkpointing, fused loss",
        "QLoRA in bf16, checkpointing",
        "QLoRA in bf16, checkpointing, fused loss",
    ]
    done = SMALL.with_(checkpointing="full", optimizer="adamw8bit")
    assert [found.title for found in configurations(done)] == [
        "as set",
        "with checkpointing, fused loss",
        "in pure bf16, checkpointing",
        "LoRA in bf16, checkpointing",
        "LoRA in bf16, checkpointing, fused loss",
        "QLoRA in bf16, checkpointing",
        "QLoRA in bf16, checkpointing, fused loss",
    ]
    narrow = [found.title for found in configurations(SMALL.with_(precision="bf16"))]
    assert "in pure bf16, checkpointing" not in narrow
    classes = TrainingJob(model="bert-base", task="sequence_classification")
    assert not any("fused" in found.title or "LoRA" in found.title for found in configurations(classes))
    jobs = [found.job for found in configurations(SMALL.with_(lora=Lora(rank=8), precision="bf16"))]
    assert len(jobs) == len(set(jobs))
    assert all(job.lora == Lora(rank=8) for job in jobs)
    packed = SMALL.with_(lora=Lora(rank=8), base_quantization="nf4")
    bases = {found.title: found.job.base_quantization for found in configurations(packed)}
    assert bases["LoRA in bf16, checkpointing"] == "none"
    assert bases["QLoRA in bf16, checkpointing"] == "nf4"


def test_the_fused_loss_takes_longer_sequences_where_logits_are_the_limit():
    job = TrainingJob(model="qwen2.5-7b", sequence_length=1024, lora=Lora(), device="rtx-4090")
    longest = {
        found.title: longest_sequence(found.job, room("rtx-4090"), "fast").value
        for found in configurations(job)
    }
    for title in ("LoRA in bf16, checkpointing", "QLoRA in bf16, checkpointing"):
        assert longest[f"{title}, fused loss"] > 2 * longest[title]


def test_a_method_knows_its_jobs():
    for method in METHODS:
        assert method_of(method.apply(SMALL)) is method
    assert method_of(SMALL.with_(optimizer="sgd")) is None
