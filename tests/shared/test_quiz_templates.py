"""Every template over many seeds: its key passes its own grader, its slips are told apart, its link opens."""

from __future__ import annotations

import re
from functools import cache

import pytest

from trainmem.capacity import capacity_report
from trainmem.job import TrainingJob
from trainmem.model.resolve import resolve
from trainmem.permalink import decode
from trainmem.quiz import TEMPLATES, TOPICS, ChoiceKey, NumericKey, Question, Rubric, grade, grade_spoken
from trainmem.quiz.as_json import question_json
from trainmem.quiz.chains import CHAINS
from trainmem.quiz.chart_text import chart_text
from trainmem.quiz.draw import Template
from trainmem.quiz.grade import key_text, skipped, tolerance_text
from trainmem.quiz.quantity import in_unit, parse, scale_of
from trainmem.quiz.templates import by_name
from trainmem.units import parse_bytes
from trainmem.whiteboard import whiteboard

SEEDS = range(25)
ONE_FACT = {
    "activations.fp32",
    "adapters.bits",
    "buckets.outside",
    "levers.price",
    "measuring.spark-smi",
    "spoken.fragmentation",
    "spoken.lora-or-full",
}
every_template = pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.name)


@cache
def questions(template: Template) -> tuple[Question, ...]:
    return tuple(template.question(seed) for seed in SEEDS)


def test_there_are_at_least_sixty_and_every_topic_has_several():
    assert len(TEMPLATES) >= 60
    assert len({t.name for t in TEMPLATES}) == len(TEMPLATES)
    for topic in TOPICS:
        assert sum(t.topic == topic for t in TEMPLATES) >= 6
    assert {t.level for t in TEMPLATES} == {1, 2, 3}


def test_the_common_misconceptions_are_all_there():
    names = {t.name for t in TEMPLATES}
    for name in ("mixed-precision", "global-batch", "nvidia-smi", "checkpointing-time", "inference"):
        assert f"mistakes.{name}" in names


@every_template
def test_a_seed_always_gives_the_same_question(template):
    assert template.question(7) == template.question(7)


@every_template
def test_the_key_passes_its_own_grader(template):
    for question in questions(template):
        key = question.key
        if isinstance(key, NumericKey):
            for answer in (repr(in_unit(key.value, key.unit)), key_text(question)):
                # three digits are enough for everyone, so they must be for the key
                assert grade(question, answer).correct, (question.id, answer)
            if key.unit in ("GiB", "GB"):
                assert grade(question, f"{key.value:.6e}").correct
                assert grade(question, f"{key.value / 1e9:.6f} GB").correct
                assert grade(question, f"{key.value / 2**30:.6f} GiB").correct
        elif isinstance(key, ChoiceKey):
            assert grade(question, str(key.right + 1)).correct
            assert grade(question, "ABCDEF"[key.right]).correct
        else:
            everything = grade_spoken(key, range(len(key.must)), range(len(key.senior)), True)
            assert everything.correct
            assert everything.quality == 5
            assert not grade_spoken(key, [], [], False).correct


@every_template
def test_slips_differ_from_the_key_and_are_recognised(template):
    for question in questions(template):
        key = question.key
        if not isinstance(key, NumericKey):
            continue
        for slip in key.slips:
            assert not key.accepts(slip.value), (question.id, slip.name)
            found = grade(question, repr(in_unit(slip.value, key.unit)))
            assert (found.verdict, found.slip) == ("slip", slip.name), question.id
            assert slip.why in found.message
            assert key_text(question) in found.message


@every_template
def test_wrong_options_are_wrong_and_say_why(template):
    for question in questions(template):
        key = question.key
        if not isinstance(key, ChoiceKey):
            continue
        texts = [option.text for option in key.options]
        assert 2 <= len(texts) <= 6
        assert len(set(texts)) == len(texts), question.id
        assert all(option.why.endswith((".", ")")) for option in key.options), question.id
        for index in range(len(texts)):
            assert grade(question, str(index + 1)).correct == (index == key.right)


@every_template
def test_numbers_are_of_whiteboard_size(template):
    for question in questions(template):
        key = question.key
        if isinstance(key, NumericKey):
            value = in_unit(key.value, key.unit)
            most = {"parameters": 1e12, "elements": 1e6, "MiB": 50_000}.get(key.unit, 10_000)
            assert 0.01 <= value <= most, question.id
            assert 0 <= key.tolerance <= 0.12
            assert tolerance_text(key)


@every_template
def test_every_link_opens_the_case(template):
    for question in questions(template):
        job = decode(question.link)
        assert job == question.job
        resolved = resolve(job)
        assert whiteboard(job, resolved.architecture).peak_bytes > 0


@every_template
def test_everything_is_said(template):
    for question in questions(template):
        assert question.topic == template.topic
        assert question.id == f"{template.name}~{question.seed}"
        assert question.prompt.endswith(("?", ".")), question.id
        assert question.mistake.endswith((".", ")", ":")), question.id
        assert question.steps
        assert all(step.name and step.substituted for step in question.steps), question.id
        assert all(line and not line.startswith(" ") for line in question.setting)
        if isinstance(question.key, Rubric):
            assert len(question.key.must) >= 3
            assert question.key.senior
            assert question.key.avoid
        assert key_text(question).rstrip(".") in skipped(question).message
        assert question_json(question)["answer"]["text"] == key_text(question)
        if question.chart is not None:
            assert question.chart.alt
            assert len(chart_text(question.chart).splitlines()) >= 12


@every_template
def test_numbers_change_with_the_seed(template):
    fixed = {
        "buckets.outside",
        "sharding.activations",
        "activations.fp32",
        "measuring.counter",
        "adapters.bits",
    }
    fixed |= {"levers.price", "spoken.fragmentation", "spoken.lora-or-full", "measuring.spark-smi"}
    if template.name not in fixed:
        shown = {(q.setting, q.prompt, key_text(q)) for q in questions(template)}
        assert len(shown) >= 2


def test_timelines_have_charts():
    assert all(t.question(1).chart is not None for t in TEMPLATES if t.topic == "timelines")


def test_a_job_dies_in_the_quiz_when_the_capacity_replay_says_so():
    """One draw for every job and outcome; the size is the one that the question shows."""
    places = {}
    for question in questions(by_name("timelines.dies-when")):
        assert isinstance(question.key, ChoiceKey)
        places[question.job, question.key.options[question.key.right].text] = question
    assert len({text for _, text in places}) == 3
    for (job, text), question in places.items():
        shown = parse_bytes(question.setting[-1].removeprefix("the device has ").replace(" ", ""))
        report = capacity_report(job, shown)
        if report.death is None:
            assert (report.answer, text) == ("fits", "it does not die")
        else:
            assert report.answer == "out_of_memory", question.id
            assert text == f"in step {report.death.step}, in forward or backward"
            assert report.death.phase in ("forward", "backward")


@pytest.mark.parametrize("chain", CHAINS, ids=lambda c: c.name)
def test_a_chain_stays_with_its_case(chain):
    for seed in range(6):
        job = chain.job(seed)
        for name in chain.templates:
            question = by_name(name).question(seed, job)
            assert question.job.model == job.model or name == "spoken.lora-or-full"
            assert question.job.sequence_length == job.sequence_length
            resolve(decode(question.link))
            key = question.key
            if isinstance(key, NumericKey):
                assert grade(question, repr(in_unit(key.value, key.unit))).correct
                assert all(not key.accepts(slip.value) for slip in key.slips)


def test_a_named_slip_gets_exactly_its_explanation():
    job = TrainingJob(model="gpt2-774m", precision="bf16_master")
    question = by_name("states.per-parameter").question(0, job)
    assert key_text(question) == "16 B per parameter"
    found = grade(question, "12")
    assert found.slip == "forgot the master copy"
    why = "That leaves out the fp32 master weights that the optimizer updates."
    assert found.message == f"Wrong. {why} The answer is 16 B per parameter."


def test_gb_for_gib_is_told_apart():
    question = by_name("states.total").question(0)
    assert isinstance(question.key, NumericKey)
    gigabytes = question.key.value / 1e9
    assert grade(question, f"{gigabytes:.1f}").slip == "GB for GiB"
    assert grade(question, f"{gigabytes:.1f} GB").correct
    assert parse(f"{gigabytes:.1f} GB", "GiB") == pytest.approx(gigabytes * 1e9, rel=0.01)
    assert scale_of("GiB") == 2**30


@every_template
def test_state_is_the_optimizers_alone(template):
    """Weights, gradients and moments together are called by their names; Adam's moments are the optimizer state."""
    for question in questions(template):
        options = (
            [option.text for option in question.key.options] if isinstance(question.key, ChoiceKey) else []
        )
        for text in (question.prompt, *question.setting, *options):
            owners = re.findall(r"([\w']+) states?\b", text)
            assert set(owners) <= {"optimizer", "optimizer's", "Adam's", "driver"}, text
            assert not re.search(r"^states?\b", text, re.IGNORECASE)
