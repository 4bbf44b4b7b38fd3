"""Blocks that stand for others: a program of a few blocks is the same as one of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from trainmem.job import Lora, Sharding, TrainingJob
from trainmem.model import resolve
from trainmem.recording import Recording
from trainmem.tape import fast_figures, record
from trainmem.tape import structure as structures
from trainmem.tape.stand_ins import StandIns, each_for_itself, stand_ins

_SIZES = {"vocab_size": 1000, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
_MODELS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    # without rotary tables, the first block's products are the step's first
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    # without a norm before attention, the first block's input is the graph's leaf
    "olmo2": {},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8},
    "gemma3_text": {"num_key_value_heads": 1, "head_dim": 16, "sliding_window": 8},
    "modernbert": {"local_attention": 8},
    "qwen3_moe": {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 2,
    },
}
_LEVERS: tuple[dict[str, Any], ...] = (
    {"precision": "bf16"},
    {"precision": "amp_bf16", "checkpointing": "full"},
    {"precision": "amp_bf16", "zero_grad": "zeros", "checkpointing": "selective"},
    {"precision": "fp32", "checkpointing": "sqrt", "accumulation": 2},
    {"precision": "amp_bf16", "checkpointing": "sqrt"},
    {"precision": "amp_bf16", "base_quantization": "nf4", "lora": Lora(rank=4), "checkpointing": "sqrt"},
    {"precision": "bf16", "lora": Lora(rank=4), "attention": "eager", "checkpointing": "sqrt"},
    {"precision": "bf16", "attention": "eager", "optimizer": "adamw_loop"},
    {"precision": "bf16", "base_quantization": "int8", "lora": Lora(rank=4, targets="all-linear")},
    {"precision": "amp_bf16", "base_quantization": "nf4", "lora": Lora(rank=4), "checkpointing": "full"},
    {"precision": "amp_fp16", "checkpointing": "full", "optimizer": "adafactor"},
    {"precision": "bf16_master_fp32_grads", "loss": "liger_fused", "accumulation": 5},
    {"precision": "fsdp_mp_bf16", "sharding": Sharding(mode="fsdp2", data_parallel=4)},
    {
        "precision": "bf16",
        "checkpointing": "full",
        "sharding": Sharding(mode="fsdp2", data_parallel=2, reshard_after_forward=False),
    },
)


def _name(levers: dict[str, Any]) -> str:
    return "-".join(str(getattr(value, "mode", getattr(value, "rank", value))) for value in levers.values())


def _job(family: str, layers: int, levers: dict[str, Any]) -> TrainingJob:
    return TrainingJob(
        config={"model_type": family, **_SIZES, **_MODELS[family], "num_hidden_layers": layers},
        task="sequence_classification" if family == "modernbert" else "causal_lm",
        micro_batch=2,
        sequence_length=16,
        device="h200",
        **levers,
    )


def _each_for_itself(
    kinds: tuple[str, ...], segment: int = 1, reach: int = 1, *, minds_kinds: bool = False
) -> StandIns:
    return each_for_itself(len(kinds), segment)


def _with_frees_sorted(recording: Recording) -> list[int]:
    """The order of frees that follow each other changes nothing."""
    out: list[int] = []
    frees: list[int] = []
    for event in recording.events:
        if event < 0:
            frees.append(event)
        else:
            out += [*sorted(frees), event]
            frees = []
    return out + sorted(frees)


@pytest.mark.parametrize("layers", [5, 6, 8, 13, 20])
@pytest.mark.parametrize("family", _MODELS)
@pytest.mark.parametrize("levers", _LEVERS, ids=_name)
def test_blocks_that_stand_for_others_change_nothing(
    family: str, layers: int, levers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _job(family, layers, levers)
    architecture = resolve(job).architecture
    short, fast = record(job, architecture), fast_figures(job, architecture)
    monkeypatch.setattr(structures, "stand_ins", _each_for_itself)
    whole = record(job, architecture)
    assert _with_frees_sorted(short) == _with_frees_sorted(whole)
    assert short.bucket_of == whole.bucket_of
    assert short.module_of == whole.module_of
    assert short.marks == whole.marks
    # an op is named after the block that stands for its own
    assert replace(fast, peak_op="") == replace(fast_figures(job, architecture), peak_op="")


@pytest.mark.parametrize(
    ("pattern", "layers", "shown", "with_neighbours"),
    [
        ("a", 1, 1, 1),
        ("a", 2, 2, 2),
        ("a", 3, 3, 3),
        ("a", 80, 3, 3),
        ("ab", 46, 4, 4),
        ("aaaaab", 62, 4, 6),
        ("aaaaab", 26, 4, 6),
        ("aab", 22, 4, 7),
    ],
)
def test_every_sort_is_shown_once(pattern: str, layers: int, shown: int, with_neighbours: int) -> None:
    kinds = tuple((pattern * layers)[:layers])
    found = stand_ins(kinds)
    assert len(found.shown) == shown
    assert [kinds[found.shown[place]] for place in found.of] == list(kinds)
    found = stand_ins(kinds, minds_kinds=True)
    assert len(found.shown) == with_neighbours
    assert (found.shown[0], found.shown[-1]) == (0, layers - 1)
    for block, place in enumerate(found.of):
        shown_kinds = [kinds[at] for at in found.shown]
        assert _around(kinds, block) == _around(shown_kinds, place)
        assert block in found.blocks[place]


def _around(kinds: Sequence[str], at: int) -> tuple[str, ...]:
    padded = ("", *kinds, "")
    return tuple(padded[at : at + 3])


def test_kinds_that_never_repeat_are_all_shown() -> None:
    assert stand_ins(tuple("abcdefgh")).shown == tuple(range(8))
