"""One step of many other architectures: the tape does not know them, the trace runs their own code.

Each is a few blocks of its transformers class, about 1,024 wide; what is not named here is the class's default.
"""

from __future__ import annotations

from typing import Any

from trainmem.job import TrainingJob
from trainmem_backend.measure.trial import Trial

__all__ = ["trials"]

_BLOCKS = {
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "vocab_size": 32000,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_DECODER = {**_BLOCKS, "num_key_value_heads": 4, "intermediate_size": 2816}
_OF_GPT = {"n_embd": 1024, "n_layer": 4, "n_head": 16, "n_positions": 2048, "vocab_size": 50400}
_ENCODER = {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16, "intermediate_size": 4096}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 512}
_LATENT = {
    "num_key_value_heads": 16,
    "q_lora_rank": 384,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "n_routed_experts": 8,
    "first_k_dense_replace": 1,
    **_EXPERTS,
}

_DENSE: dict[str, dict[str, Any]] = {
    "apertus": _DECODER,
    "arcee": _DECODER,
    "bitnet": _DECODER,
    "bloom": {"hidden_size": 1024, "n_layer": 4, "n_head": 16, "vocab_size": 50000},
    "codegen": {**_OF_GPT, "rotary_dim": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "cohere": _DECODER,
    "cohere2": _DECODER,
    "diffllama": _DECODER,
    "ernie4_5": {**_DECODER, "head_dim": 64},
    "exaone4": _DECODER,
    "falcon": {**_BLOCKS, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False},
    "gemma": {**_DECODER, "num_key_value_heads": 1, "head_dim": 256},
    "glm": {**_DECODER, "head_dim": 64},
    "glm4": {**_DECODER, "head_dim": 64},
    "gpt_bigcode": {**_OF_GPT, "multi_query": True},
    "gpt_neo": {
        "hidden_size": 1024,
        "num_layers": 4,
        "num_heads": 16,
        "attention_types": [[["global", "local"], 2]],
    },
    "gptj": {**_OF_GPT, "rotary_dim": 64},
    "granite": _DECODER,
    "helium": {**_DECODER, "head_dim": 64},
    "hunyuan_v1_dense": {**_DECODER, "head_dim": 64},
    "lfm2": {
        **_DECODER,
        "block_dim": 1024,
        "block_ff_dim": 2816,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
    },
    "mpt": {"d_model": 1024, "n_layers": 4, "n_heads": 16, "vocab_size": 50000, "max_seq_len": 2048},
    "nanochat": _DECODER,
    "nemotron": {**_DECODER, "head_dim": 64},
    "olmo": {**_BLOCKS, "intermediate_size": 2816},
    "olmo3": _DECODER,
    "persimmon": {**_BLOCKS, "intermediate_size": 4096},
    "phi": {**_BLOCKS, "intermediate_size": 4096},
    "seed_oss": {**_DECODER, "head_dim": 64},
    "smollm3": _DECODER,
    "stablelm": {**_DECODER, "num_key_value_heads": 16},
    "starcoder2": _DECODER,
    "vaultgemma": {**_DECODER, "head_dim": 64},
    "xglm": {"d_model": 1024, "num_layers": 4, "attention_heads": 16, "ffn_dim": 4096, "vocab_size": 50000},
}
_STATE_SPACES: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 1024, "num_hidden_layers": 4, "state_size": 16, "vocab_size": 32000},
    "mamba2": {
        "hidden_size": 1024,
        "num_hidden_layers": 4,
        "num_heads": 32,
        "head_dim": 64,
        "state_size": 64,
        "n_groups": 1,
        "chunk_size": 64,
        "vocab_size": 32000,
    },
    "recurrent_gemma": {**_DECODER, "num_key_value_heads": 1, "lru_width": 1024},
    "qwen3_next": {
        **_DECODER,
        **_EXPERTS,
        "num_experts": 8,
        "head_dim": 64,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "shared_expert_intermediate_size": 512,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    },
}
_MIXTURES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {**_DECODER, **_LATENT, "n_group": 2, "topk_group": 1},
    "deepseek_v3": {**_DECODER, **_LATENT, "n_group": 2, "topk_group": 1},
    "dots1": {
        **_DECODER,
        **_EXPERTS,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "head_dim": 64,
        "n_group": 1,
        "topk_group": 1,
    },
    "flex_olmo": {**_DECODER, "num_experts": 8, "num_experts_per_tok": 2},
    "glm4_moe": {
        **_DECODER,
        **_EXPERTS,
        "n_routed_experts": 8,
        "head_dim": 64,
        "n_group": 1,
        "topk_group": 1,
    },
    "granitemoe": {**_DECODER, "num_local_experts": 8, "num_experts_per_tok": 2},
    "llama4_text": {
        **_DECODER,
        "intermediate_size_mlp": 2816,
        "head_dim": 64,
        "num_local_experts": 8,
        "interleave_moe_layer_step": 2,
    },
    "olmoe": {**_DECODER, "num_experts": 8, "num_experts_per_tok": 2},
    "phimoe": {**_DECODER, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {**_DECODER, **_EXPERTS, "num_experts": 8, "shared_expert_intermediate_size": 512},
}
_ENCODERS: dict[str, dict[str, Any]] = {
    "albert": {**_ENCODER, "embedding_size": 128},
    "deberta-v2": {**_ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "distilbert": {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072},
    "electra": {**_ENCODER, "embedding_size": 1024},
    "mpnet": _ENCODER,
    "roberta": {**_ENCODER, "max_position_embeddings": 514},
    "xlm-roberta": {**_ENCODER, "max_position_embeddings": 514, "vocab_size": 250002},
}


def trials() -> list[Trial]:
    """Every other one under autocast, the rest in pure bf16."""
    found: list[Trial] = []
    for kind, sizes in {**_DENSE, **_STATE_SPACES, **_MIXTURES}.items():
        short = kind in _STATE_SPACES
        job = TrainingJob(
            config={"model_type": kind, **sizes}, micro_batch=4, sequence_length=256 if short else 1024
        )
        found.append(_trial(kind, job.with_(precision=("amp_bf16", "bf16")[len(found) % 2])))
    for kind, sizes in _ENCODERS.items():
        job = TrainingJob(
            config={"model_type": kind, **sizes},
            task="sequence_classification",
            micro_batch=12,
            sequence_length=384,
        )
        found.append(_trial(kind, job))
    return found


def _trial(label: str, job: TrainingJob) -> Trial:
    return Trial(suite="architectures", label=label, job=job, passes=("memory",))
