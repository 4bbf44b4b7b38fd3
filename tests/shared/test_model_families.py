"""Parameter lists are those of the real modules, in their order; wrong configs are refused in one line."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import pytest

from trainmem.job import JobError
from trainmem.model import FAMILIES, Architecture, UnknownFamily, architecture_of

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 50,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 50}
OPT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 32,
    "vocab_size": 50,
    "max_position_embeddings": 32,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
MODERNBERT_TOKENS = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}

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
    "gpt_neox": {"model_type": "gpt_neox", **SMALL, "hidden_size": 64},
    "gpt_neox, old rotary key": {
        "model_type": "gpt_neox",
        **SMALL,
        "rotary_pct": 0.5,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "use_parallel_residual": False,
    },
    "gpt_neox, new rotary key": {
        "model_type": "gpt_neox",
        **SMALL,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    },
    "opt": {"model_type": "opt", **OPT},
    "opt, as the 350M": {
        "model_type": "opt",
        **OPT,
        "word_embed_proj_dim": 8,
        "do_layer_norm_before": False,
    },
    "opt, as Galactica": {
        "model_type": "opt",
        **OPT,
        "enable_bias": False,
        "layer_norm_elementwise_affine": False,
        "_remove_final_layer_norm": True,
        "tie_word_embeddings": False,
    },
    "gemma2": {"model_type": "gemma2", **GROUPED, "head_dim": 8},
    "gemma2, all full": {
        "model_type": "gemma2",
        **GROUPED,
        "layer_types": ["full_attention"] * 2,
        "sliding_window": None,
        "final_logit_softcapping": None,
    },
    "gemma3_text": {"model_type": "gemma3_text", **GROUPED, "head_dim": 8, "num_hidden_layers": 7},
    "gemma3_text, old pattern": {
        "model_type": "gemma3_text",
        **GROUPED,
        "sliding_window_pattern": 2,
        "num_hidden_layers": 3,
        "tie_word_embeddings": False,
        "attention_bias": True,
    },
    "gemma3_text, bidirectional": {
        "model_type": "gemma3_text",
        **GROUPED,
        "use_bidirectional_attention": True,
    },
    "phi3": {"model_type": "phi3", **GROUPED, "pad_token_id": 0},
    "phi3, part rotated": {
        "model_type": "phi3",
        **GROUPED,
        "hidden_size": 64,
        "partial_rotary_factor": 0.75,
        "sliding_window": 8,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
    },
    "olmo2": {"model_type": "olmo2", **GROUPED},
    "olmo2, attention bias": {"model_type": "olmo2", **SMALL, "attention_bias": True},
    "mixtral": {"model_type": "mixtral", **GROUPED, "num_local_experts": 4},
    "mixtral, window": {
        "model_type": "mixtral",
        **GROUPED,
        "num_experts": 4,
        "head_dim": 8,
        "sliding_window": 16,
    },
    "qwen3_moe": {"model_type": "qwen3_moe", **GROUPED, **EXPERTS},
    "qwen3_moe, some dense": {
        "model_type": "qwen3_moe",
        **GROUPED,
        **EXPERTS,
        "num_hidden_layers": 6,
        "mlp_only_layers": [1],
        "decoder_sparse_step": 2,
        "head_dim": 8,
        "use_sliding_window": True,
        "attention_bias": True,
    },
    "gpt_oss": {"model_type": "gpt_oss", **GROUPED, "num_local_experts": 4, "head_dim": 8},
    "bert": {"model_type": "bert", **SMALL},
    "bert, decoder, untied": {
        "model_type": "bert",
        **SMALL,
        "is_decoder": True,
        "tie_word_embeddings": False,
        "type_vocab_size": 3,
    },
    "modernbert": {"model_type": "modernbert", **SMALL, **MODERNBERT_TOKENS, "num_hidden_layers": 4},
    "modernbert, biases": {
        "model_type": "modernbert",
        **SMALL,
        **MODERNBERT_TOKENS,
        "norm_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "classifier_bias": True,
        "global_attn_every_n_layers": 1,
    },
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
    known = {key: value for key, value in family.defaults.items() if key in fields}
    assert known == {key: fields[key] for key in known}
    # These live in rope_parameters or layer_types once transformers has read them.
    assert set(family.defaults) - set(known) <= {
        "global_attn_every_n_layers",
        "partial_rotary_factor",
        "rotary_pct",
        "sliding_window_pattern",
    }
    aliases = type(real).attribute_map.items()
    assert {frozenset(pair) for pair in family.aliases.items()} == {frozenset(pair) for pair in aliases}


@pytest.mark.torch
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_dimensions_are_those_transformers_reads(config: dict[str, Any]) -> None:
    task = FAMILIES[config["model_type"]].tasks[-1]
    ours = architecture_of(config, task)
    real = transformers_config(config)
    assert ours.hidden_size == real.hidden_size
    assert ours.heads == real.num_attention_heads
    assert ours.kv_heads == getattr(real, "num_key_value_heads", real.num_attention_heads)
    assert ours.layers == real.num_hidden_layers
    assert ours.max_positions == real.max_position_embeddings
    if getattr(real, "layer_types", None):
        sliding = [kind.startswith("sliding_attention") for kind in ours.layer_kinds]
        assert sliding == [kind == "sliding_attention" for kind in real.layer_types]
    if any(kind.startswith("sliding_attention") for kind in ours.layer_kinds):
        window = real.local_attention if ours.family == "modernbert" else real.sliding_window
        assert ours.extra["sliding_window"] == window
    for ours_key, keys in {
        "activation": ("activation_function", "hidden_act", "hidden_activation"),
        "experts": ("num_experts", "num_local_experts"),
        "experts_per_token": ("num_experts_per_tok",),
    }.items():
        values = {getattr(real, key) for key in keys if hasattr(real, key)}
        assert values <= {ours.extra.get(ours_key)}, ours_key


def test_a_null_dropped_from_a_complete_config_is_null_again() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4}
    complete = {**CONFIGS["mistral"], "initializer_range": 0.02, "rope_parameters": rope}
    assert architecture_of(CONFIGS["mistral"]).extra["sliding_window"] == 4096
    assert architecture_of({**complete, "sliding_window": 4096}).extra["sliding_window"] == 4096
    ours = architecture_of(complete)
    assert ours.extra["sliding_window"] is None
    assert set(ours.layer_kinds) == {"full_attention"}
    assert "sliding_window" in ours.notes[0]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_an_architecture_says_is_documented(config: dict[str, Any]) -> None:
    ours = architecture_of(config, FAMILIES[config["model_type"]].tasks[-1])
    documentation = Architecture.__doc__ or ""
    assert [key for key in ours.extra if f"``{key}``" not in documentation] == []
    assert [key for key in ours.dropout if f'"{key}"' not in documentation] == []


def test_the_text_part_of_a_multimodal_gemma3_is_taken_and_said() -> None:
    text = CONFIGS["gemma3_text"]
    ours = architecture_of({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert ours.parameter_count == architecture_of(text).parameter_count
    assert "text_config" in ours.notes[0]
    with pytest.raises(JobError, match=r"^config\.text_config: "):
        architecture_of({"model_type": "gemma3"})


def test_a_task_the_family_has_no_model_for_is_refused() -> None:
    with pytest.raises(JobError, match=r"causal_lm.*sequence_classification, which modernbert has"):
        architecture_of(CONFIGS["modernbert"], "causal_lm")


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


JUNK = [
    None,
    -1,
    0,
    1.5,
    10**30,
    math.nan,
    math.inf,
    True,
    "",
    "x" * 500,
    [],
    [None],
    {},
    {"partial_rotary_factor": math.nan},
]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_junk_at_any_key_is_read_or_refused_never_a_traceback(model_type: str) -> None:
    family = FAMILIES[model_type]
    refusals = []
    for key in (*family.defaults, *family.aliases):
        for junk in JUNK:
            for task in family.tasks:
                try:
                    architecture_of({"model_type": model_type, key: junk}, task)
                except JobError as error:
                    refusals.append(str(error))
    assert refusals
    for message in refusals:
        assert message.startswith("config.")
        assert len(message) < 500
        assert "\n" not in message


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
