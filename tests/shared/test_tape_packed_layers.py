"""Linear layers over a packed base: when a bias is cast, what a product takes, in which order gradients lie."""

from __future__ import annotations

from typing import Any

import pytest

from trainmem.job import Lora, TrainingJob
from trainmem.model import resolve
from trainmem.recording import Recording
from trainmem.tape import record

_SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
}
_WIDTHS = [64, 64, 64, 64, 96, 64]
"""Biases of OPT's and BERT's linear layers: query, key, value, output, and the MLP's two."""


def _recorded(family: str, **levers: Any) -> Recording:
    plain: dict[str, Any] = {"micro_batch": 2, "sequence_length": 64, "device": "h200", "optimizer": "sgd"}
    config = {"model_type": family, **_SMALL, "ffn_dim": 96, **levers.pop("config", {})}
    job = TrainingJob(config=config, **{**plain, "lora": Lora(rank=4), **levers})
    return record(job, resolve(job).architecture)


def _between(recording: Recording, step: int, phase: str) -> list[tuple[int, str]]:
    """(bytes, op) of every allocation of a phase, and (-bytes, op) of every free."""
    sizes = [event for event in recording.events if event > 0]
    ends = [mark.event for mark in recording.marks[1:]] + [len(recording.events)]
    start, end = next(
        (mark.event, end)
        for mark, end in zip(recording.marks, ends, strict=True)
        if (mark.step, mark.phase) == (step, phase)
    )
    number = sum(1 for event in recording.events[:start] if event > 0)
    out = []
    for event in recording.events[start:end]:
        if event > 0:
            out.append((event, recording.op_of[number]))
            number += 1
        else:
            out.append((-sizes[~event], recording.op_of[~event]))
    return out


@pytest.mark.parametrize("checkpointing", ["none", "full", "sqrt"])
def test_a_4_bit_layer_casts_its_bias_when_it_first_runs(checkpointing: str) -> None:
    """`Linear4bit.forward` replaces ``bias.data`` between the cast of its input and the product, once for good."""
    recording = _recorded("opt", base_quantization="nf4", precision="fp32", checkpointing=checkpointing)
    first = _between(recording, 1, "forward")
    casts = [place for place, (_, op) in enumerate(first) if op.endswith("q_proj: parameter")]
    assert len(casts) == 6
    for place in casts:
        (before, op), (bf16, _), (fp32, _) = first[place - 1], first[place], first[place + 1]
        assert (before, op.rpartition(": ")[2]) == (2 * 64 * 64 * 2, "cast")
        assert (bf16, fp32) == (2 * 64, -4 * 64)
    made = sorted(size for size, op in first if op.endswith(": parameter"))
    assert made == sorted(2 * width for width in 6 * _WIDTHS)
    assert not [op for _, op in _between(recording, 2, "forward") if op.endswith(": parameter")]


def test_an_8_bit_layer_casts_its_bias_where_its_input_is_16_bit() -> None:
    """Under autocast norms and the layers over them answer in fp32, but attention in bf16."""
    first = _between(_recorded("bert", base_quantization="int8", precision="amp_bf16"), 1, "forward")
    casts = [op for size, op in first if size > 0 and op.endswith(": parameter")]
    assert len(casts) == 6
    assert all(op.endswith(".attention.output.dense: parameter") for op in casts)


def test_quantising_an_fp16_input_to_8_bits_copies_nothing_first() -> None:
    def copies(precision: str) -> int:
        forward = _between(_recorded("llama", base_quantization="int8", precision=precision), 1, "forward")
        return sum(1 for size, op in forward if size > 0 and op.endswith("8-bit input in fp16"))

    assert copies("amp_bf16") == 6 * 7
    assert copies("amp_fp16") == 6 * 6  # attention answers in fp16


def test_gradients_of_8_bit_layers_are_views_and_are_summed_into_new_memory() -> None:
    """``grad_A.view(ctx.grad_shape)`` keeps its base alive, so that the engine does not add in place."""
    lora = Lora(rank=4, targets=("q_proj",))
    backward = _between(
        _recorded("llama", base_quantization="int8", precision="bf16", lora=lora), 1, "backward"
    )
    sums = [size for size, op in backward if size > 0 and op.endswith("sum of gradients")]
    # gate and up of six blocks, k and v of all but the first
    assert sums == [2 * 2 * 64 * 64] * 11


def test_a_4_bit_weight_read_as_it_is_packed_takes_no_workspace_of_cublaslt() -> None:
    """Few tokens run bitsandbytes' own kernel; more unpack the weight and multiply with cuBLASLt."""

    def taken(length: int) -> list[str]:
        recording = _recorded(
            "gpt_neox",
            base_quantization="nf4",
            precision="bf16",
            sequence_length=length,
            config={"intermediate_size": 128},
        )
        return [op for op in recording.op_of if op.endswith(": cublaslt")]

    assert taken(2) == []
    assert len(taken(2048)) == 1


def test_gradients_of_transposed_keys_are_copied_by_each_product_that_needs_rows() -> None:
    """Eager OPT: once by the adapter's product, once by the base layer's; not for one sequence."""
    lora = Lora(rank=4, targets=("k_proj",))

    def copies(batch: int) -> int:
        recording = _recorded(
            "opt", precision="bf16", attention="eager", lora=lora, micro_batch=batch, base_quantization="int8"
        )
        backward = _between(recording, 1, "backward")
        return sum(1 for size, op in backward if size > 0 and "k_proj" in op and op.endswith(": reshape"))

    assert copies(2) == 11  # the first block's base layer gets no gradient
    assert copies(1) == 0


def test_heads_that_a_kernel_fills_up_leave_gradients_that_are_copied() -> None:
    """Head dim 12 is filled up to 16 for flash attention: gradients cut back lie heads first."""

    def copies(width: int) -> int:
        recording = _recorded(
            "gpt2",
            precision="bf16",
            lora=None,
            config={"hidden_size": width},
        )
        backward = _between(recording, 1, "backward")
        return sum(1 for size, op in backward if size > 0 and op.endswith(": transpose backward"))

    assert copies(48) == 3 * 6
    assert copies(64) == 0


def test_the_bias_that_an_untied_bert_does_not_use_gets_no_gradient_and_no_state() -> None:
    def states(tied: bool) -> int:
        config = {"is_decoder": True, "tie_word_embeddings": tied}
        recording = _recorded("bert", precision="fp32", lora=None, optimizer="sgd_momentum", config=config)
        assert recording.parameters == recording.trainable_parameters
        return sum(1 for size, op in _between(recording, 1, "optimizer") if size > 0 and "momentum" in op)

    assert states(tied=False) == states(tied=True) + 1  # the decoder's own weight
