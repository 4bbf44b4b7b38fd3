"""Small jobs that go through the tape's kinds one by one: linear layers, levers and config keys of each family.

Where `random_jobs` mixes everything, each job here differs from its family's plain one in little, so that a
difference names its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, get_args

from trainmem.job import Precision, TrainingJob
from trainmem.model import Parameter, resolve
from trainmem.tape.activations import ACTIVATIONS

__all__ = ["PLAIN", "SWEEPS", "swept"]

Config = dict[str, Any]

_SIZES: Config = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
_GROUPED: Config = {**_SIZES, "num_key_value_heads": 2}
_WIDE_HEADS: Config = {**_GROUPED, "head_dim": 32}
_NO_DROPOUT: Config = {
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "dropout": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
_TOKENS = {f"{kind}_token_id": number for number, kind in enumerate(("pad", "bos", "eos", "cls", "sep"))}

PLAIN: dict[str, Config] = {
    "gpt2": {"vocab_size": 512, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, **_NO_DROPOUT},
    "gpt_neox": {**_SIZES, **_NO_DROPOUT},
    "opt": {**_SIZES, "ffn_dim": 96, "word_embed_proj_dim": 64, **_NO_DROPOUT},
    "llama": _GROUPED,
    "mistral": {**_GROUPED, "sliding_window": None},
    "qwen2": _GROUPED,
    "qwen3": _WIDE_HEADS,
    "gemma2": {**_WIDE_HEADS, "sliding_window": 16},
    "gemma3_text": {**_WIDE_HEADS, "sliding_window": 16, "sliding_window_pattern": 2},
    "phi3": {**_GROUPED, "pad_token_id": 0, **_NO_DROPOUT},
    "olmo2": _GROUPED,
    "mixtral": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {
        **_WIDE_HEADS,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "gpt_oss": {**_WIDE_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "bert": {**_SIZES, **_NO_DROPOUT},
    "modernbert": {**_SIZES, **_TOKENS, "local_attention": 16, "global_attn_every_n_layers": 2},
}
"""A config of two blocks of each family."""

_BIAS = [{"attention_bias": True}]
_HEADS: list[Config] = [{"num_key_value_heads": 4}, {"num_key_value_heads": 1}]
_OWN_HEADS: list[Config] = [*_HEADS, {"head_dim": 32}, {"head_dim": 24}, {"head_dim": 20}, {"head_dim": 256}]
_TIED: list[Config] = [{"tie_word_embeddings": True}, {"tie_word_embeddings": False}]
_CAPS: list[Config] = [
    {"attn_logit_softcapping": cap, "final_logit_softcapping": final}
    for cap, final in ((None, None), (50.0, None), (None, 30.0), (50.0, 30.0))
]
_WINDOWS: list[Config] = [{"sliding_window": 8}, {"sliding_window": 4096}]
_CHOSEN_WINDOWS: list[Config] = [
    {"use_sliding_window": True, "sliding_window": window, "max_window_layers": first}
    for window, first in product((8, 4096), (0, 1, 2))
]
_MIXED_WINDOW: Config = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
_DROPS: list[Config] = [{"attention_dropout": 0.1}]
_ROPES: list[Config] = [
    {"rope_parameters": {"rope_theta": 10000.0, **rope}}
    for rope in (
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    )
]
_ROUTED: list[Config] = [
    {"num_experts_per_tok": 1},
    {"num_experts_per_tok": 4},
]
_ANY: list[Config] = [
    {"num_hidden_layers": 1},
    {"num_attention_heads": 1, "num_key_value_heads": 1},
    {"use_cache": True},
]
_DECODER: list[Config] = [*_ANY, *_HEADS, *_TIED, *_DROPS, *_ROPES]

OPTIONS: dict[str, list[Config]] = {
    "gpt2": [
        *({**option, "n_head": 1} if "num_key_value_heads" in option else option for option in _ANY),
        *_TIED,
        {"n_inner": 160},
        {"attn_pdrop": 0.1},
        {"resid_pdrop": 0.1},
        {"embd_pdrop": 0.1},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
    ],
    "gpt_neox": [
        *_ANY,
        *_TIED,
        *_DROPS,
        {"hidden_dropout": 0.1},
        {"attention_bias": False},
        {"use_parallel_residual": False},
        *({"rotary_pct": share} for share in (0.5, 1.0)),
        {"is_decoder": True},
    ],
    "opt": [
        *_ANY,
        *_TIED,
        *_DROPS,
        {"dropout": 0.1},
        {"do_layer_norm_before": False},
        {"_remove_final_layer_norm": True},
        {"word_embed_proj_dim": 48},
        {"enable_bias": False},
        {"layer_norm_elementwise_affine": False},
    ],
    "llama": [*_DECODER, *_OWN_HEADS, *_BIAS, {"mlp_bias": True}, {"pretraining_tp": 2}],
    "mistral": [*_DECODER, *_OWN_HEADS, *_WINDOWS],
    "qwen2": [*_DECODER, *_CHOSEN_WINDOWS, {**_MIXED_WINDOW, "use_sliding_window": True}],
    "qwen3": [*_DECODER, *_OWN_HEADS, *_BIAS, *_CHOSEN_WINDOWS, {**_MIXED_WINDOW, "use_sliding_window": True}],
    "gemma2": [*_ANY, *_TIED, *_DROPS, *_OWN_HEADS, *_BIAS, *_CAPS, *_WINDOWS, _MIXED_WINDOW],
    "gemma3_text": [
        *_ANY, *_TIED, *_DROPS, *_OWN_HEADS, *_BIAS, *_CAPS, *_WINDOWS, _MIXED_WINDOW,
    ],
    "phi3": [
        *_ANY, *_HEADS, *_TIED, *_DROPS, *_WINDOWS,
        {"partial_rotary_factor": 0.5}, {"resid_pdrop": 0.1}, {"embd_pdrop": 0.1},
    ],
    "olmo2": [*_DECODER, *_BIAS],
    "mixtral": [
        *_ANY, *_HEADS, *_TIED, *_DROPS, *_ROUTED, *_WINDOWS,
        {"router_jitter_noise": 0.1}, {"head_dim": 32}, {"num_local_experts": 5},
    ],
    "qwen3_moe": [
        *_DECODER, *_OWN_HEADS, *_BIAS, *_ROUTED,
        {"use_sliding_window": True, "sliding_window": 8},
        {"norm_topk_prob": True}, {"decoder_sparse_step": 2}, {"mlp_only_layers": [0]}, {"mlp_only_layers": [0, 1]},
    ],
    "gpt_oss": [*_ANY, *_OWN_HEADS, *_TIED, *_DROPS, *_ROUTED, *_WINDOWS, _MIXED_WINDOW, {"attention_bias": False}],
    "bert": [
        *_ANY,
        *_TIED,
        {"hidden_dropout_prob": 0.1},
        {"attention_probs_dropout_prob": 0.1},
        {"classifier_dropout": 0.1},
        {"is_decoder": True},
        {"type_vocab_size": 3},
    ],
    "modernbert": [
        *_ANY, *_DROPS, *_BIAS,
        {"mlp_bias": True}, {"norm_bias": True}, {"mlp_dropout": 0.1}, {"embedding_dropout": 0.1},
        {"classifier_dropout": 0.1}, {"classifier_pooling": "mean"}, {"classifier_bias": True},
        {"classifier_activation": "relu"}, {"global_attn_every_n_layers": 1}, {"local_attention": 128},
    ],
}  # fmt: skip
"""What each family's config may say beside its sizes, a few keys at a time."""

_ACTIVATION_KEYS = {
    "gpt2": "activation_function",
    "opt": "activation_function",
    "gemma2": "hidden_activation",
    "gemma3_text": "hidden_activation",
    "modernbert": "hidden_activation",
}

_OPTIMIZERS = (
    "adamw",
    "adamw_fused",
    "adamw_loop",
    "sgd",
    "sgd_momentum",
    "adafactor",
    "muon",
    "adamw8bit",
    "paged_adamw8bit",
    "lion8bit",
)
_ROUNDABLE = _OPTIMIZERS[:5]
_MAIN_PRECISIONS = ("fp32", "amp_bf16", "amp_fp16", "bf16")


def job(family: str, options: Config | None = None, **levers: Any) -> TrainingJob:
    """Two sequences of 24 tokens through the family's plain config with ``options``."""
    task = "sequence_classification" if family == "modernbert" else "causal_lm"
    config = {"model_type": family, **PLAIN[family], **(options or {})}
    plain = {"task": task, "micro_batch": 2, "sequence_length": 24, "optimizer": "sgd", "device": "h200"}
    return TrainingJob.from_json({"config": config, **plain, **levers})


def _attentions(family: str) -> tuple[str, ...]:
    return ("eager",) if family == "gpt_oss" else ("sdpa", "eager")


def _linears(family: str, task: str, options: Config) -> list[str]:
    """Names of the linear layers, in the words of transformers' modules."""
    found = resolve(job(family, options, task=task)).architecture
    groups = (found.embeddings, *found.blocks.values(), found.final, found.head)
    parameters: list[Parameter] = [p for parts in groups for p in parts]
    names = (p.name.removesuffix(".weight") for p in parameters if p.kind == "linear")
    return list(dict.fromkeys(names))


_ADAPTED: list[tuple[str, str, Config]] = [
    *((family, "causal_lm", {}) for family in PLAIN if family != "modernbert"),
    ("opt", "causal_lm", {"word_embed_proj_dim": 48}),
    ("bert", "sequence_classification", {}),
    ("modernbert", "sequence_classification", {}),
]
"""Families with the tasks and options that give them linear layers of their own."""


def adapters() -> Iterator[TrainingJob]:
    """LoRA on every linear layer alone and on all, over every base, precision and kind of attention."""
    for family, task, options in _ADAPTED:
        for name in ("all-linear", *_linears(family, task, options)):
            targets = name if name == "all-linear" else [name]
            for base, precision in product(("none", "nf4", "int8"), _MAIN_PRECISIONS):
                for attention in _attentions(family):
                    yield job(
                        family,
                        options,
                        task=task,
                        lora={"rank": 4, "targets": targets},
                        base_quantization=base,
                        precision=precision,
                        attention=attention,
                    )


def checkpointed_adapters() -> Iterator[TrainingJob]:
    """LoRA on all linear layers under every checkpointing, over every base and precision; every biased layer."""
    biased = {"llama": {"attention_bias": True, "mlp_bias": True}, "olmo2": {"attention_bias": True}}
    for family, base in product(PLAIN, ("none", "nf4", "int8")):
        for precision, checkpointing in product(_MAIN_PRECISIONS, ("full", "selective", "sqrt")):
            for attention in _attentions(family):
                yield job(
                    family,
                    biased.get(family),
                    lora={"rank": 4, "targets": "all-linear"},
                    base_quantization=base,
                    precision=precision,
                    checkpointing=checkpointing,
                    attention=attention,
                )


def shapes() -> Iterator[TrainingJob]:
    """Batches of one, single heads, and heads that kernels pad, on devices with different attention kernels."""
    for family, device in product(PLAIN, ("h200", "a100-80gb", "rtx-3090", "spark", "t4")):
        heads = {"gpt2": "n_head"}.get(family, "num_attention_heads")
        one = {heads: 1} if family in ("gpt2", "gpt_neox", "opt", "bert", "modernbert") else {
            heads: 1, "num_key_value_heads": 1
        }  # fmt: skip
        narrow = {"n_embd" if family == "gpt2" else "hidden_size": 48}
        for option, precision in product(({}, one, narrow), _MAIN_PRECISIONS):
            for batch, attention in ((1, "eager"), (1, "sdpa"), (2, "sdpa")):
                if attention in _attentions(family):
                    yield job(
                        family,
                        option,
                        precision=precision,
                        micro_batch=batch,
                        attention=attention,
                        device=device,
                    )


def levers() -> Iterator[TrainingJob]:
    """Every precision with every checkpointing, optimizers in turn."""
    turn = 0
    for family, precision, checkpointing in product(
        PLAIN, get_args(Precision), ("none", "full", "selective", "sqrt")
    ):
        if precision == "fsdp_mp_bf16" and checkpointing == "sqrt":
            continue
        few = precision in ("bf16_kahan", "bf16_stochastic", "fsdp_mp_bf16")
        optimizers = _ROUNDABLE if few else _OPTIMIZERS
        for attention in _attentions(family):
            turn += 1
            yield job(
                family,
                precision=precision,
                checkpointing=checkpointing,
                attention=attention,
                optimizer=optimizers[turn % len(optimizers)],
            )


def options() -> Iterator[TrainingJob]:
    """Every key of each family's config, and every activation function."""
    for family, choices in OPTIONS.items():
        key = _ACTIVATION_KEYS.get(family, "hidden_act")
        if family != "gpt_oss":
            choices = [*choices, *({key: name} for name in ACTIVATIONS)]
        for option in choices:
            for precision, attention in product(("fp32", "amp_bf16", "bf16"), _attentions(family)):
                if key in option and (precision == "fp32") == (attention == "sdpa"):
                    continue
                yield job(family, option, precision=precision, attention=attention)


def classifiers() -> Iterator[TrainingJob]:
    """Every family with a head over labels."""
    for family, precision in product(PLAIN, _MAIN_PRECISIONS):
        for attention, checkpointing in product(_attentions(family), ("none", "full")):
            yield job(
                family,
                task="sequence_classification",
                precision=precision,
                attention=attention,
                checkpointing=checkpointing,
            )


SWEEPS: dict[str, Callable[[], Iterator[TrainingJob]]] = {
    "adapters": adapters,
    "checkpointed_adapters": checkpointed_adapters,
    "shapes": shapes,
    "levers": levers,
    "options": options,
    "classifiers": classifiers,
}


def swept(name: str, one_in: int) -> Iterator[tuple[int, TrainingJob]]:
    """The jobs of a sweep with their numbers, or one in so many of them."""
    for number, each in enumerate(SWEEPS[name]()):
        if number % one_in == 0:
            yield number, each
