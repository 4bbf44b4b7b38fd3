"""Which attention kernel a GPU runs, what each takes on the way, and how heads lie in memory."""

from __future__ import annotations

from typing import Any

import pytest

from trainmem.buckets import BUCKETS
from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import Recording, counters, read_step
from trainmem.tape import efficient, record
from trainmem.tape.claims import Unsupported
from trainmem.tape.fully_sharded import managed_order
from trainmem.tape.hardware import hardware, sdpa_kernel

_LLAMA = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def _recorded(config: dict[str, Any] | None = None, **levers: Any) -> Recording:
    settings = {"micro_batch": 2, "sequence_length": 100, "precision": "bf16", "device": "h200", **levers}
    job = TrainingJob(config={**_LLAMA, **(config or {})}, **settings)
    return record(job, resolve(job).architecture)


def _sizes(recording: Recording, op: str) -> list[int]:
    allocations = [event for event in recording.events if event > 0]
    return [size for size, name in zip(allocations, recording.op_of, strict=True) if name.endswith(op)]


@pytest.mark.parametrize(
    ("device", "itemsize", "head_dim", "how", "kernel"),
    [
        ("h200", 2, 64, {"grouped": True}, "cudnn"),
        ("h200", 2, 64, {"masked": True}, "cudnn"),
        ("h200", 2, 20, {}, "flash"),
        ("h200", 2, 20, {"masked": True}, "math"),
        ("b200", 2, 256, {"drops": True}, "cudnn"),
        ("spark", 2, 128, {"grouped": True}, "flash"),
        ("a100-80gb", 2, 128, {"masked": True}, "efficient"),
        ("a100-80gb", 2, 256, {"drops": True}, "flash"),
        ("rtx-4090", 2, 208, {}, "efficient"),
        ("rtx-4090", 2, 208, {"grouped": True}, "math"),
        ("rtx-4090", 2, 256, {}, "flash"),
        ("rtx-5090", 2, 256, {"drops": True}, "efficient"),
        ("t4", 2, 64, {"bf16": False}, "efficient"),
        ("t4", 2, 64, {}, "math"),
        ("h200", 4, 64, {}, "efficient"),
        ("h200", 4, 64, {"grouped": True}, "math"),
        ("h200", 4, 10, {}, "math"),
    ],
)
def test_the_first_kernel_whose_conditions_hold_runs(
    device: str, itemsize: int, head_dim: int, how: dict[str, bool], kernel: str
) -> None:
    conditions = {"bf16": itemsize == 2, "grouped": False, "masked": False, "drops": False, **how}
    assert sdpa_kernel(hardware(device), itemsize, head_dim, **conditions) == kernel


_ROW_AND_LOCK = 16


@pytest.mark.parametrize(
    ("capability", "head_dim", "itemsize", "each"),
    [
        # tiles of 64 queries by 64: 16 of them for 1,000 queries
        (80, 64, 2, 16 * (_ROW_AND_LOCK + 4 * 64 * 64)),
        (80, 64, 4, 16 * (_ROW_AND_LOCK + 4 * 64 * 64)),
        # 128 by 128 in 16 bit where shared memory is large, 128 by 64 in fp32
        (80, 128, 2, 8 * (_ROW_AND_LOCK + 4 * 128 * 128)),
        (90, 128, 4, 8 * 2 * (_ROW_AND_LOCK + 4 * 128 * 64)),
        # a kernel of its own for up to 96 elements on Ada
        (89, 96, 2, 8 * 2 * (_ROW_AND_LOCK + 4 * 128 * 64)),
        # else 64 by 64, and dk and dv of 12 splits of the keys in memory
        (120, 96, 2, 16 * 2 * (_ROW_AND_LOCK + 4 * 64 * 64) + 2 * 4 * 12 * 64 * 128),
        (89, 128, 2, 16 * 2 * (_ROW_AND_LOCK + 4 * 64 * 64) + 2 * 4 * 12 * 64 * 128),
        (80, 256, 2, 8 * 4 * (_ROW_AND_LOCK + 4 * 128 * 64) + 2 * 4 * 12 * 64 * 256),
    ],
)
def test_efficient_attention_sums_in_tiles_that_fit_the_gpu(
    capability: int, head_dim: int, itemsize: int, each: int
) -> None:
    dims = {"b": 2, "heads": 8, "s": 1000, "d": head_dim, "capability": capability}
    assert efficient.backward_workspace(dims, "b", "heads", "s", "d", itemsize, False) == 16 * each


def test_flash_attention_fills_heads_up_to_whole_eights() -> None:
    recording = _recorded({"hidden_size": 80}, device="spark")
    queries, keys = 2 * 4 * 100 * 24 * 2, 2 * 2 * 100 * 24 * 2
    assert set(_sizes(recording, "self_attn: pad")) == {queries, keys}
    assert set(_sizes(recording, "self_attn: flash attention")) == {queries}


def test_the_math_path_computes_in_fp32_and_answers_16_bit_probabilities() -> None:
    scores = 2 * 4 * 100 * 100
    recording = _recorded(device="t4")
    assert set(_sizes(recording, "safe softmax")) == {4 * scores}
    assert set(_sizes(recording, "probabilities cast")) == {2 * scores}


def test_a_selective_checkpoint_makes_the_math_path_add_its_mask_out_of_place() -> None:
    scores = 4 * 2 * 4 * 100 * 100
    plain = _sizes(_recorded(precision="fp32"), "self_attn: add").count(scores)
    selective = _recorded(precision="fp32", checkpointing="selective")
    assert plain == 0
    assert _sizes(selective, "self_attn: add").count(scores) == 2 * 2 * 3  # blocks, runs, steps


@pytest.mark.parametrize(("heads", "copies"), [(1, 0), (4, 2)])
def test_one_head_is_in_the_order_of_tokens_already(heads: int, copies: int) -> None:
    recording = _recorded(
        {"num_attention_heads": heads, "num_key_value_heads": heads}, attention="eager", micro_batch=1
    )
    assert len(_sizes(recording, "contiguous")) == copies * 3


def test_gpt2_s_upcast_attention_is_left_to_the_trace() -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "reorder_and_upcast_attn": True}
    _recorded(config)
    with pytest.raises(Unsupported, match=r"reorder_and_upcast_attn: the tape does not replay"):
        _recorded(config, attention="eager")


def test_fsdp_takes_parameters_children_first() -> None:
    names = ("self_attn.sinks", "self_attn.q_proj.weight", "mlp.experts.down_proj", "norm.weight")
    assert managed_order(names) == (names[1], names[0], names[2], names[3])


def _sharded(ranks: int) -> Recording:
    job = TrainingJob.from_json(
        {
            "config": _LLAMA,
            "precision": "fsdp_mp_bf16",
            "sharding": {"mode": "fsdp2", "data_parallel": ranks},
            "sequence_length": 64,
            "device": "h200",
        }
    )
    return record(job, resolve(job).architecture)


@pytest.mark.parametrize(("ranks", "rows"), [(1, 512), (3, 513), (64, 512), (1000, 1000)])
def test_gathered_parameters_keep_the_padding_of_shards(ranks: int, rows: int) -> None:
    recording = _sharded(ranks)
    gathered = _sizes(recording, "gathered parameter")
    assert gathered[0] == 2 * rows * 128
    assert bool(_sizes(recording, "all-gather output")) == (ranks > 1)


def test_a_recomputed_block_is_no_logits() -> None:
    """OPT without a last norm: the head's gradient flows straight into the block that is computed again."""
    config = {
        "model_type": "opt",
        "vocab_size": 512,
        "hidden_size": 64,
        "ffn_dim": 4096,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 64,
        "do_layer_norm_before": False,
        "dropout": 0.0,
    }
    job = TrainingJob(
        config=config, sequence_length=512, precision="bf16", checkpointing="full", device="h200"
    )
    recording = record(job, resolve(job).architecture)
    figures = read_step(recording, counters(recording), 2)
    widest = 512 * 4096 * 2
    blocks = zip((event for event in recording.events if event > 0), recording.bucket_of, strict=True)
    assert {BUCKETS[bucket] for size, bucket in blocks if size == widest} <= {"activations", "temporaries"}
    assert figures.buckets_at_peak["logits"] < widest


def test_modernbert_pools_the_mean_in_place_of_the_first_token() -> None:
    config = {
        "model_type": "modernbert",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "classifier_pooling": "mean",
    }
    recording = _recorded(config, task="sequence_classification")
    assert 2 * 100 * 8 in _sizes(recording, "mask in int64")
    assert _sizes(recording, "tokens")[-1] == 2 * 8


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_repeated_keys_and_values_lie_heads_first_for_the_math_kernel(kv_heads: int) -> None:
    """Under a mask grouped heads are repeated before the products, which then copy queries alone."""
    config = {
        **_LLAMA,
        "model_type": "mistral",
        "hidden_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": kv_heads,
        "head_dim": 12,
        "sliding_window": 8,
    }
    job = TrainingJob(config=config, micro_batch=2, sequence_length=24, precision="bf16", device="t4")
    recording = record(job, resolve(job).architecture)
    until = next(mark.event for mark in recording.marks if mark.phase == "backward")
    made = sum(1 for event in recording.events[:until] if event > 0)
    copies = [op for op in recording.op_of[:made] if op.endswith("self_attn: reshape")]
    assert len(copies) == int(config["num_hidden_layers"])
