"""Errors and notes in the words of the page: labels for names of levers, controls for commands."""

import re

import pytest

from trainmem.estimate import estimate
from trainmem.hub import HubError, fetch_config
from trainmem.job import JobError, Lora, TrainingJob
from trainmem.model import resolve
from trainmem.permalink import decode
from trainmem_space.levers import FORM, VALUE_WORDS
from trainmem_space.words import in_words, of_address

INTERNAL = [
    lever.field for lever in FORM.values() if re.search(r"[_.]", lever.field) and lever.field != lever.label
]


def refusal(query):
    """What the job of a link is refused with."""
    with pytest.raises(JobError) as raised:
        estimate(decode(query), detail="fast")
    return str(raised.value)


WRONG = {
    "model=gpt2-774m&micro_batch=0": 'Micro batch: "0" is not a whole number from 1 to 1,048,576',
    "model=gpt2-774m&sequence_length=2048": "Sequence length: 2,048 is longer than the position table",
    "model=gpt2-774m&micro_batch=1000000&sequence_length=100000": "Micro batch x Sequence length: 1,000,000 x",
    "model=gpt2-774m&lora=0": 'Rank: "0" is not a whole number',
    "model=gpt2-774m&lora=8:nothing": 'Adapted layers: "nothing" names no linear layer',
    "model=gpt2-774m&base_quantization=nf4": "Base weights: nf4 trains only with adapters; set LoRA to on",
    "model=gpt2-774m&data_parallel=8": "Data parallel ranks: 8 needs Sharding: ddp, zero1",
    "model=gpt2-774m&sharding=zero3&tensor_parallel=3": "Tensor parallel ranks: 3 does not divide the 20 heads",
    "model=gpt2-774m&pipeline_parallel=999": "Pipeline stages: 999 stages are more than the 36 blocks",
    "model=gpt2-774m&sharding=zero9": 'Sharding: "zero9" is not one of none, ddp, zero1',
    "model=gpt2-774m&optimizer=x": 'Optimizer: "x" is not one of adamw, adamw_fused',
    "micro_batch=8": "Model: missing; choose one from the list, type a Hugging Face id (owner/name), or paste",
    "model=nope": 'Model: "nope" is not in the catalogue; choose one from the list',
}


@pytest.mark.parametrize(("query", "said"), WRONG.items())
def test_an_address_is_refused_in_the_words_of_the_page(query, said):
    found = of_address(refusal(query))
    assert found.startswith(f"In the address, {said}")
    assert not re.search(r"`trainmem|--\w", found)


@pytest.mark.parametrize(
    "query", [query for query in WRONG if "sharding=zero9" not in query and "mizer=x" not in query]
)
def test_no_error_of_the_form_has_an_internal_name(query):
    found = in_words(refusal(query))
    assert not [name for name in INTERNAL if name in found]
    assert not re.search(r"`trainmem|--\w", found)


def test_what_is_allowed_in_an_address_keeps_its_words():
    assert "allowed are accumulation, attention, base_quantization, " in of_address(refusal("spam=1"))


NOTED = {
    TrainingJob(
        model="llama3.2-1b", sequence_length=1 << 18
    ): "Sequence length 262,144 is beyond the 131,072 positions",
    TrainingJob.from_json({"model": "gpt2-774m", "sharding": {"mode": "zero3"}}): (
        "Data parallel ranks: ZeRO-3 over 1 device divides nothing"
    ),
    TrainingJob(model="gpt2-774m", precision="fsdp_mp_bf16"): (
        "Precision: FSDP2 mixed precision bf16 over 1 device divides nothing; set Sharding to FSDP2"
    ),
    TrainingJob(
        model="gpt2-774m", lora=Lora(targets=("c_attn", "x")), micro_batch=1
    ): 'Adapted layers: "x" names no linear layer',
    TrainingJob(config={"model_type": "gpt2", "quantization_config": {"a": 1}}): "set Base weights",
}


@pytest.mark.parametrize(("job", "said"), NOTED.items())
def test_notes_too(job, said):
    notes = [in_words(note) for note in resolve(job).warnings]
    assert [note for note in notes if said in note]
    assert not [name for name in INTERNAL for note in notes if name in note]


def test_a_model_that_is_not_fetched_asks_for_the_config_in_the_words_of_the_page(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubError) as raised:
        fetch_config("owner/name")
    assert in_words(str(raised.value)).startswith("Model: owner/name was not fetched")
    assert in_words(str(raised.value)).endswith("; paste its config.json")


def test_no_command_is_advised_for_a_name_of_spaces():
    with pytest.raises(JobError) as raised:
        TrainingJob(model=" ")
    assert in_words(str(raised.value)).startswith(
        'Model: " " is not a name; choose one from the list, type a'
    )


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("config: not JSON", "config.json: not JSON"),
        ("config.hidden_size: 5 does not divide", "hidden_size in config.json: 5 does not divide"),
        ('model: "micro_batch" is not', 'Model: "micro_batch" is not'),
        ("x: say `trainmem trace --micro_batch 8`", "x: say `trainmem trace --micro_batch 8`"),
        ("nothing of ours", "nothing of ours"),
        ("the loss: of a model", "the loss: of a model"),
    ],
)
def test_what_is_quoted_and_what_is_no_lever_stays(message, said):
    assert in_words(message) == said


def test_plain_words_are_no_values():
    assert in_words("precision bf16 makes that 16, none, full") == "precision bf16 makes that 16, none, full"
    assert VALUE_WORDS["zero3"] in in_words("the tape replays not zero3")
