"""Adapters sit where PEFT puts them, with the shapes PEFT gives them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from trainmem.job import JobError, Lora
from trainmem.model import architecture_of
from trainmem.model.architecture import Architecture
from trainmem.model.catalogue import find
from trainmem.model.lora import adapters

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
}
ENCODER = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50},
    "gpt_neox": {"model_type": "gpt_neox", **ENCODER, "hidden_size": 64},
    "opt": {
        "model_type": "opt",
        "hidden_size": 16,
        "ffn_dim": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 50,
        "word_embed_proj_dim": 8,
    },
    "llama": {"model_type": "llama", **SMALL},
    "gemma3_text": {"model_type": "gemma3_text", **SMALL, "head_dim": 8},
    "phi3": {"model_type": "phi3", **SMALL, "pad_token_id": 0},
    "mixtral": {"model_type": "mixtral", **SMALL, "num_local_experts": 4},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **SMALL,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "mlp_only_layers": [1],
    },
    "gpt_oss": {"model_type": "gpt_oss", **SMALL, "num_local_experts": 4, "head_dim": 8},
    "bert": {"model_type": "bert", **ENCODER},
    "modernbert": {
        "model_type": "modernbert",
        **ENCODER,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
}
CASES = [
    *(("causal_lm", name, "all-linear") for name in CONFIGS if name != "modernbert"),
    *(("sequence_classification", name, "all-linear") for name in CONFIGS),
    ("causal_lm", "llama", ("q_proj", "self_attn.v_proj")),
    ("causal_lm", "gpt2", ("c_attn",)),
    ("causal_lm", "gpt2", ("c_proj", "nothing")),
    ("causal_lm", "phi3", ("qkv_proj", "gate_up_proj")),
    ("causal_lm", "mixtral", ("q_proj", "w1", "w2", "w3")),
    ("causal_lm", "mixtral", ("q_proj", "gate")),
    ("causal_lm", "qwen3_moe", ("q_proj", "down_proj")),
    ("causal_lm", "qwen3_moe", ("gate_proj", "up_proj", "down_proj")),
    ("causal_lm", "gpt_oss", ("q_proj", "o_proj")),
]


def our_shapes(architecture: Architecture, lora: Lora) -> list[tuple[int, ...]]:
    found = adapters(architecture, lora)
    inside = [a for kind in found.layer_kinds for a in found.blocks[kind]]
    return sorted(
        shape for a in (*found.embeddings, *inside, *found.final, *found.head) for shape in a.shapes
    )


@pytest.mark.torch
@pytest.mark.parametrize(("task", "name", "targets"), CASES)
def test_adapters_are_those_of_peft(task: Any, name: str, targets: Any) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    config = CONFIGS[name]
    auto = AutoModelForCausalLM if task == "causal_lm" else AutoModelForSequenceClassification
    values = {key: value for key, value in config.items() if key != "model_type"}
    lora = Lora(rank=3, targets=targets)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = auto.from_config(AutoConfig.for_model(config["model_type"], **values))
        peft_model = get_peft_model(
            model,
            LoraConfig(
                r=3,
                target_modules=targets if isinstance(targets, str) else list(targets),
                task_type="CAUSAL_LM" if task == "causal_lm" else "SEQ_CLS",
            ),
        )
    real = sorted(tuple(p.shape) for key, p in peft_model.named_parameters() if ".lora_" in key)
    architecture = architecture_of(config, task)
    assert our_shapes(architecture, lora) == real
    assert adapters(architecture, lora).parameter_count == sum(a * b for a, b in real)


def test_rank_16_on_every_linear_layer_of_llama_8b_is_42_million() -> None:
    found = adapters(find("llama3.1-8b").architecture(), Lora(rank=16))
    assert found.parameter_count == 41_943_040


def test_half_of_a_fused_pair_is_refused() -> None:
    with pytest.raises(JobError, match=r"^lora.targets: w1 needs w3 too"):
        adapters(architecture_of(CONFIGS["mixtral"]), Lora(targets=("w1",)))


def test_targets_that_name_nothing_are_refused_or_said() -> None:
    architecture = architecture_of(CONFIGS["llama"])
    assert adapters(architecture, Lora(targets=("q_proj", "c_attn"))).unmatched == ("c_attn",)
    with pytest.raises(JobError, match=r"^lora.targets: .* allowed are all-linear or some of q_proj, "):
        adapters(architecture, Lora(targets=("c_attn",)))
