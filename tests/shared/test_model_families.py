"""Parameter lists are those of the real modules, in their order; wrong configs are refused in one line."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import pytest

from trainmem.job import JobError
from trainmem.model import FAMILIES, UnknownFamily, architecture_of

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 50,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 50}

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", **GPT2},
    "gpt2, odd MLP, untied": {"model_type": "gpt2", **GPT2, "n_inner": 40, "tie_word_embeddings": False},
    "gpt2 by the common names": {
        "model_type": "gpt2",
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
    },
    "llama": {"model_type": "llama", **GROUPED},
    "llama, tied, biases": {
        "model_type": "llama",
        **GROUPED,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "llama, own head_dim": {"model_type": "llama", **GROUPED, "head_dim": 6},
    "llama, kv null": {"model_type": "llama", **SMALL, "num_key_value_heads": None},
    "mistral": {"model_type": "mistral", **GROUPED},
    "mistral, full attention": {"model_type": "mistral", **GROUPED, "sliding_window": None, "head_dim": 8},
    "qwen2": {"model_type": "qwen2", **GROUPED, "tie_word_embeddings": True},
    "qwen2, own head_dim": {"model_type": "qwen2", **GROUPED, "head_dim": 8},
    "qwen2, late window": {
        "model_type": "qwen2",
        **GROUPED,
        "use_sliding_window": True,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", **GROUPED, "head_dim": 8},
    "qwen3, attention bias": {"model_type": "qwen3", **GROUPED, "attention_bias": True},
}


def transformers_config(config: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    values = {key: value for key, value in config.items() if key != "model_type"}
    return AutoConfig.for_model(config["model_type"], **values)


def meta_model(config: dict[str, Any], task: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    auto = AutoModelForCausalLM if task == "causal_lm" else AutoModelForSequenceClassification
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return auto.from_config(transformers_config(config))


def plain(name: str, prefix: str) -> str:
    """A module's path as trainmem writes it: no base model, blocks under ``layers.<index>``."""
    name = name.removeprefix(f"{prefix}.").removeprefix("decoder.").removeprefix("encoder.")
    return re.sub(r"^(?:h|layer|layers)\.(\d+)\.", r"layers.\1.", name)


CASES = [
    pytest.param(config, task, id=f"{name}-{task}")
    for name, config in CONFIGS.items()
    for task in FAMILIES[config["model_type"]].tasks
]


@pytest.mark.torch
@pytest.mark.parametrize(("config", "task"), CASES)
def test_parameters_and_buffers_are_those_of_the_real_model(config: dict[str, Any], task: Any) -> None:
    model = meta_model(config, task)
    prefix = model.base_model_prefix
    ours = architecture_of(config, task)
    assert [(prefix + p.name, p.shape) for prefix, p in ours.parameters()] == [
        (plain(name, prefix), tuple(p.shape)) for name, p in model.named_parameters()
    ]
    assert ours.parameter_count == sum(p.numel() for p in model.parameters())
    saved = set(model.state_dict())
    assert sorted(
        (b.name, b.shape, b.itemsize_bytes, b.floating, b.persistent) for b in ours.buffers
    ) == sorted(
        (plain(name, prefix), tuple(b.shape), b.element_size(), b.is_floating_point(), name in saved)
        for name, b in model.named_buffers()
    )


@pytest.mark.torch
@pytest.mark.parametrize(("config", "task"), CASES)
def test_linear_marks_what_lora_may_adapt(config: dict[str, Any], task: Any) -> None:
    import torch
    from transformers.pytorch_utils import Conv1D

    model = meta_model(config, task)
    ours = architecture_of(config, task)
    head = {p.name for p in ours.head if p.kind == "head"}
    assert head
    real = {
        plain(f"{name}.weight", model.base_model_prefix)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D)
    }
    assert {prefix + p.name for prefix, p in ours.parameters() if p.kind == "linear"} == real - head


@pytest.mark.torch
@pytest.mark.parametrize("model_type", FAMILIES)
def test_defaults_are_those_of_transformers(model_type: str) -> None:
    from transformers import AutoConfig

    family = FAMILIES[model_type]
    real = AutoConfig.for_model(model_type)
    assert type(real).__name__ == family.config_class
    fields = {name: f.default for name, f in type(real).__dataclass_fields__.items()}
    assert {key: fields[key] for key in family.defaults if key in fields} == {
        key: value for key, value in family.defaults.items() if key in fields
    }
    assert dict(family.aliases) == dict(type(real).attribute_map)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": -16}, "config.hidden_size: -16 is not a whole number from 1 to 16,777,216"),
        ({"hidden_size": None}, "config.hidden_size: null is not a whole number from 1 to 16,777,216"),
        ({"hidden_size": "16"}, 'config.hidden_size: "16" is not a whole number from 1 to 16,777,216'),
        ({"hidden_size": math.nan}, "config.hidden_size: nan is not a whole number from 1 to 16,777,216"),
        ({"hidden_size": True}, "config.hidden_size: True is not a whole number from 1 to 16,777,216"),
        ({"hidden_size": 10**12}, "config.hidden_size: 1000000000000 is not a whole number"),
        ({"num_hidden_layers": 10**9}, "config.num_hidden_layers: 1000000000 is not a whole number"),
        ({"num_attention_heads": 3}, "config.num_attention_heads: 3 does not divide hidden_size (16)"),
        ({"num_key_value_heads": 3}, "config.num_key_value_heads: 3 does not divide num_attention_heads (4)"),
        ({"num_key_value_heads": 0}, "config.num_key_value_heads: 0 is not a whole number"),
        ({"hidden_act": "silly"}, 'config.hidden_act: "silly" is not one of gelu'),
        ({"attention_bias": "no"}, 'config.attention_bias: "no" is not true or false'),
        ({"attention_dropout": 2}, "config.attention_dropout: 2 is not a number from 0 to 1"),
        ({"attention_dropout": math.nan}, "config.attention_dropout: nan is not a number from 0 to 1"),
        ({"vocab_size": [1]}, "config.vocab_size: [1] is not a whole number"),
        ({"head_dim": 5}, "config.head_dim: 5 gives heads of 5 elements"),
        ({"model_type": None}, "config.model_type: missing"),
        ({"model_type": 7}, "config.model_type: 7"),
    ],
)
def test_wrong_values_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError) as error:
        architecture_of({**CONFIGS["llama"], **changes})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_an_unknown_type_names_the_command_that_knows_it() -> None:
    with pytest.raises(UnknownFamily, match=r'config\.model_type: "mamba" .*`trainmem trace`'):
        architecture_of({"model_type": "mamba"})


@pytest.mark.parametrize("config", [{}, None, [], "llama", {"hidden_size": 8}])
def test_a_config_without_a_type_is_refused(config: Any) -> None:
    with pytest.raises(JobError, match=r"^config"):
        architecture_of(config)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(JobError, match=r'^task: "translation" is not one of'):
        architecture_of(CONFIGS["llama"], "translation")  # type: ignore[arg-type]


def test_sizes_taken_from_defaults_are_said() -> None:
    (note,) = architecture_of({"model_type": "llama", "hidden_size": 64}).notes
    assert "LlamaConfig" in note
    assert "num_hidden_layers = 32" in note
    assert "hidden_size =" not in note.replace("intermediate_size =", "")
    assert architecture_of(CONFIGS["llama"]).notes == ()
