"""How the tape makes a model on the device: rotary frequencies, and tensors in the order of their constructors."""

from __future__ import annotations

from typing import Any

import pytest

from trainmem.job import JobError, TrainingJob
from trainmem.model import resolve
from trainmem.model.families._rope import ROPE_TYPES
from trainmem.recording import Recording
from trainmem.tape.frequencies import inverse_frequencies
from trainmem.tape.loading import load

LLAMA: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": 1}


def loaded(config: dict[str, Any], **levers: Any) -> Recording:
    job = TrainingJob(config=config, **levers)
    recording = Recording()
    load(recording, job, resolve(job).architecture)
    return recording


def test_plain_frequencies() -> None:
    """1 / base ** (arange / dim): arange, the quotient, the power and its base, the reciprocal, its product."""
    assert inverse_frequencies("default", 64) == (256, 256, ~0, 256, 8, ~3, ~1, 256, 256, ~4, ~2)


@pytest.mark.parametrize("rope_type", ROPE_TYPES)
def test_every_scaling_leaves_the_frequencies_alone(rope_type: str) -> None:
    events = inverse_frequencies(rope_type, 64)
    sizes = [event for event in events if event > 0]
    kept = set(range(len(sizes))) - {~event for event in events if event < 0}
    assert [sizes[number] for number in kept] == [256]


@pytest.mark.parametrize(
    ("config", "types"),
    [
        (LLAMA, ["default"]),
        ({**LLAMA, "rope_parameters": {"rope_type": "llama3"}}, ["llama3"]),
        ({**LLAMA, "rope_scaling": {"type": "linear"}}, ["linear"]),
        ({**LLAMA, "rope_scaling": {"rope_type": "yarn"}, "rope_parameters": {}}, ["yarn"]),
        ({**LLAMA, "rope_scaling": {}, "rope_parameters": {"rope_type": "dynamic"}}, ["dynamic"]),
        ({"model_type": "phi3", "rope_scaling": {"type": "su"}}, ["longrope"]),
        ({"model_type": "gpt_oss"}, ["yarn"]),
        ({"model_type": "gpt_oss", "rope_parameters": {}}, ["default"]),
        ({"model_type": "gemma3_text"}, ["default", "default"]),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear"}}, ["linear", "default"]),
        ({"model_type": "modernbert", "rope_scaling": {"rope_type": "yarn"}}, ["yarn", "yarn"]),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}},
            ["default", "yarn"],
        ),
    ],
)
def test_rope_type_of_a_config(config: dict[str, Any], types: list[str]) -> None:
    task = "sequence_classification" if config["model_type"] == "modernbert" else "causal_lm"
    buffers = resolve(TrainingJob(config=config, task=task)).architecture.buffers
    found = [b.rope_type for b in buffers if b.rope_type and not b.name.endswith("original_inv_freq")]
    assert found == types


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rope_scaling": "linear"}, 'config.rope_scaling: "?linear"? is neither an object nor null'),
        (
            {"rope_parameters": {"rope_type": "ntk"}},
            "config.rope_parameters: .* rope_type that is not one of",
        ),
        ({"rope_scaling": {"type": ["yarn"]}}, "config.rope_scaling: .* rope_type that is not one of"),
    ],
)
def test_rope_type_that_there_is_not(given: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        resolve(TrainingJob(config={**LLAMA, **given}))


def test_what_a_module_makes_itself_comes_after_its_submodules() -> None:
    names = loaded({"model_type": "gpt_oss", "num_hidden_layers": 1, "num_local_experts": 4}).module_of
    assert names[names.index("layers.0.self_attn.o_proj.bias") + 1] == "layers.0.self_attn.sinks"
    names = loaded({"model_type": "gemma2", "num_hidden_layers": 1}).module_of
    assert names[:2] == ["embed_tokens.weight", "embed_tokens.embed_scale"]


@pytest.mark.parametrize(("precision", "size_bytes"), [("fp32", 4), ("bf16", 2)])
def test_a_number_becomes_a_tensor_of_the_weights_dtype(precision: Any, size_bytes: int) -> None:
    recording = loaded({"model_type": "gemma2", "num_hidden_layers": 1}, precision=precision)
    assert [event for event in recording.events if event > 0][1] == size_bytes


def test_a_narrow_embedding_is_tied_to_a_narrow_head() -> None:
    config = {"model_type": "opt", "word_embed_proj_dim": 512, "hidden_size": 1536, "num_hidden_layers": 1}
    recording = loaded(config, precision="bf16")
    number = recording.op_of.index("head before tying")
    sizes = [event for event in recording.events if event > 0]
    assert sizes[number] == 2 * 50272 * 512
    assert ~number in recording.events
