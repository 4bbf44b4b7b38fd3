"""Architectures of transformers at a size at which a step of each takes a fraction of a second."""

from __future__ import annotations

from typing import Any

from trainmem.job import TrainingJob

__all__ = ["CAUSAL", "CLASSIFIERS", "small_job"]

Config = dict[str, Any]

_BASE: Config = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_GROUPED: Config = {**_BASE, "num_key_value_heads": 2}
_WITH_HEAD_DIM: Config = {**_GROUPED, "head_dim": 16}
_ONE_KIND_OF_HEAD: Config = {**_BASE, "num_key_value_heads": 4}
_EXPERTS: Config = {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
_MANY_EXPERTS: Config = {
    **_GROUPED,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}
_OPENAI: Config = {
    "vocab_size": 512,
    "n_positions": 128,
    "n_ctx": 128,
    "n_embd": 64,
    "n_layer": 1,
    "n_head": 4,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LATENT: Config = {
    **_ONE_KIND_OF_HEAD,
    "num_hidden_layers": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_SEQUENCE: Config = {
    "vocab_size": 512,
    "d_model": 64,
    "decoder_layers": 1,
    "encoder_layers": 1,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "max_position_embeddings": 128,
    "dropout": 0.0,
    "activation_dropout": 0.0,
    "decoder_layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MAMBA2: Config = {
    "mamba_d_state": 8,
    "mamba_expand": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}

CAUSAL: dict[str, Config] = {
    # what the tape knows
    "gpt2": _OPENAI,
    "gpt_neox": _BASE,
    "opt": {**_BASE, "ffn_dim": 96, "word_embed_proj_dim": 64, "dropout": 0.0},
    "llama": _GROUPED,
    "mistral": _GROUPED,
    "qwen2": _GROUPED,
    "qwen3": _WITH_HEAD_DIM,
    "gemma2": {**_WITH_HEAD_DIM, "num_hidden_layers": 2, "sliding_window": 16},
    "gemma3_text": {**_WITH_HEAD_DIM, "num_hidden_layers": 2, "sliding_window": 16},
    "phi3": {**_GROUPED, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "olmo2": _GROUPED,
    "mixtral": _EXPERTS,
    "qwen3_moe": {**_MANY_EXPERTS, "head_dim": 16},
    "gpt_oss": {**_EXPERTS, "head_dim": 16, "num_hidden_layers": 2, "sliding_window": 16},
    # what only the trace knows
    "apertus": _GROUPED,
    "arcee": _GROUPED,
    "aria_text": {**_GROUPED, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
    "bamba": {**_GROUPED, **_MAMBA2, "attn_layer_indices": [0], "num_hidden_layers": 2},
    "bart": _SEQUENCE,
    "big_bird": _BASE,
    "biogpt": {**_BASE, "activation_dropout": 0.0, "layerdrop": 0.0},
    "bitnet": _GROUPED,
    "bloom": {"vocab_size": 512, "hidden_size": 64, "n_layer": 1, "n_head": 4},
    "codegen": {**_OPENAI, "rotary_dim": 8},
    "cohere": _GROUPED,
    "cohere2": {**_WITH_HEAD_DIM, "sliding_window": 16},
    "ctrl": {**_OPENAI, "dff": 96},
    "deepseek_v3": _LATENT,
    "diffllama": _GROUPED,
    "electra": {**_BASE, "embedding_size": 32},
    "ernie4_5": _WITH_HEAD_DIM,
    "exaone4": {**_GROUPED, "sliding_window": 16, "num_hidden_layers": 2},
    "falcon": _BASE,
    "falcon_mamba": {**_BASE, "state_size": 4},
    "flex_olmo": _MANY_EXPERTS,
    "gemma": _WITH_HEAD_DIM,
    "glm": {**_WITH_HEAD_DIM, "partial_rotary_factor": 0.5},
    "glm4": {**_WITH_HEAD_DIM, "partial_rotary_factor": 0.5},
    "glm4_moe": {**_LATENT, "head_dim": 16},
    "gpt_bigcode": {**_OPENAI, "multi_query": True},
    "gpt_neo": {
        **{key: value for key, value in _BASE.items() if key != "num_hidden_layers"},
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 16,
        "embed_dropout": 0.0,
        "resid_dropout": 0.0,
    },
    "gptj": {**_OPENAI, "rotary_dim": 8},
    "granite": _GROUPED,
    "granitemoe": _EXPERTS,
    "granitemoehybrid": {
        **_EXPERTS,
        **_MAMBA2,
        "num_hidden_layers": 2,
        "layer_types": ["mamba", "attention"],
        "shared_intermediate_size": 64,
    },
    "helium": _WITH_HEAD_DIM,
    "jetmoe": {**_EXPERTS, "num_key_value_heads": 4, "kv_channels": 16},
    "lfm2": {**_GROUPED, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "llama4_text": {
        **_EXPERTS,
        "head_dim": 16,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 96,
        "num_hidden_layers": 2,
        "attention_chunk_size": 16,
        "interleave_moe_layer_step": 2,
    },
    "mamba": {**_BASE, "state_size": 4},
    "mamba2": {
        **_BASE,
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 8,
        "n_groups": 1,
        "chunk_size": 16,
    },
    "minimax": {**_EXPERTS, "head_dim": 16, "block_size": 16},
    "mpt": {"vocab_size": 512, "d_model": 64, "n_layers": 1, "n_heads": 4, "max_seq_len": 128},
    "nemotron": {**_WITH_HEAD_DIM},
    "olmo": _GROUPED,
    "olmo3": {**_GROUPED, "sliding_window": 16},
    "olmoe": _MANY_EXPERTS,
    "openai-gpt": _OPENAI,
    "persimmon": _BASE,
    "phi": {**_GROUPED, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "phimoe": _EXPERTS,
    "qwen2_moe": _MANY_EXPERTS,
    "seed_oss": {**_WITH_HEAD_DIM, "residual_dropout": 0.0},
    "smollm3": _GROUPED,
    "stablelm": _ONE_KIND_OF_HEAD,
    "starcoder2": {**_GROUPED, "embedding_dropout": 0.0, "residual_dropout": 0.0},
    "xglm": {**_BASE, "d_model": 64, "num_layers": 1, "ffn_dim": 96, "attention_heads": 4, "dropout": 0.0},
}
"""Decoders with a head over the vocabulary: all that the tape knows, then some of the others."""

CLASSIFIERS: dict[str, Config] = {
    "bert": _BASE,
    "modernbert": {
        **_BASE,
        "num_hidden_layers": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "local_attention": 16,
        "global_attn_every_n_layers": 2,
    },
    "albert": {**_BASE, "embedding_size": 32, "classifier_dropout_prob": 0.0},
    "deberta": {**_BASE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {**_BASE, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "distilbert": {
        **_BASE,
        "dim": 64,
        "n_layers": 1,
        "n_heads": 4,
        "hidden_dim": 96,
        "dropout": 0.0,
        "seq_classif_dropout": 0.0,
    },
    "electra": {**_BASE, "embedding_size": 32},
    "funnel": {
        "vocab_size": 512,
        "block_sizes": [1, 1],
        "num_decoder_layers": 1,
        "d_model": 64,
        "n_head": 4,
        "d_head": 16,
        "d_inner": 96,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "pooler_dropout": 0.0,
    },
    "longformer": {**_BASE, "attention_window": [16]},
    "mpnet": _BASE,
    "roberta": _BASE,
    "llama": _GROUPED,
    "gpt2": _OPENAI,
    "qwen3": _WITH_HEAD_DIM,
}
"""Encoders and decoders with a head over two labels."""


def small_job(family: str, task: str = "causal_lm", **levers: Any) -> TrainingJob:
    """A job of two sequences of 24 tokens."""
    config = (CAUSAL if task == "causal_lm" else CLASSIFIERS)[family]
    job = {"micro_batch": 2, "sequence_length": 24, "optimizer": "adamw", "device": "h200", **levers}
    return TrainingJob.from_json({"config": {"model_type": family, **config}, "task": task, **job})
