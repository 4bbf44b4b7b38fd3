"""LoRA and QLoRA: what trains, what is packed, and what stays."""

from __future__ import annotations

from typing import Final

from trainmem.job import Lora
from trainmem.quiz.cases import GATED, LARGE, count_in_words
from trainmem.quiz.draw import Draw, Template, template
from trainmem.quiz.question import Option, Question, Slip, Step
from trainmem.units import MIB, format_gib
from trainmem.whiteboard.adapters import NF4_BYTES_PER_PARAMETER, frozen_base, lora_parameters

__all__ = ["TEMPLATES"]

_TOPIC: Final = "adapters"
_ALL_LINEAR = "on every linear layer of the blocks"


@template("adapters.one-layer", _TOPIC, 1)
def one_layer(draw: Draw) -> Question:
    """Parameters of one adapter."""
    rank = draw.choice([4, 8, 16, 32, 64])
    case = draw.case(GATED, precision="bf16", lora=Lora(rank=rank), checkpointing="full")
    a = case.architecture
    inputs, outputs = a.hidden_size, a.intermediate_size
    value = rank * (inputs + outputs)
    return draw.number(
        case.job,
        setting=[f"a linear layer from {inputs:,} to {outputs:,}", f"LoRA of rank {rank}"],
        prompt="How many parameters does its adapter train?",
        value=value,
        unit="parameters",
        tolerance=0.02,
        slips=[
            Slip(rank * inputs, "counted A only", "B maps from the rank back to the outputs."),
            Slip(rank * outputs, "counted B only", "A maps the inputs to the rank."),
            Slip(inputs * outputs, "counted the layer", "The layer itself is frozen."),
            Slip(2 * value, "counted twice", "One A and one B."),
        ],
        steps=[Step("A and B", f"{rank} × ({inputs:,} + {outputs:,}) = {value:,}")],
        mistake="r (inputs + outputs), against inputs × outputs of the layer.",
    )


@template("adapters.model", _TOPIC, 2)
def whole_model(draw: Draw) -> Question:
    """Adapters of a whole model."""
    rank = draw.choice([8, 16, 32, 64])
    case = draw.case([GATED[0], *GATED[2:5]], precision="bf16", lora=Lora(rank=rank), checkpointing="full")
    a, lora = case.architecture, Lora(rank=rank)
    value = lora_parameters(a, lora)
    q, k = a.heads * a.head_dim, a.kv_heads * a.head_dim
    h, f = a.hidden_size, a.intermediate_size
    attention_only = a.layers * rank * ((h + q) + 2 * (h + k) + (q + h))
    return draw.number(
        case.job,
        setting=[case.shape_line, f"LoRA of rank {rank} {_ALL_LINEAR}"],
        prompt="How many parameters train?",
        value=value,
        unit="parameters",
        slips=[
            Slip(attention_only, "forgot the MLP", "Gate, up and down projections have the larger adapters."),
            Slip(value / a.layers, "counted one block", "Every block has its own adapters."),
            Slip(value / 2, "counted A or B only", "Each layer has both."),
        ],
        steps=[
            Step("attention", f"(h + {q:,}) + 2 (h + {k:,}) + ({q:,} + h), with h = {h:,}"),
            Step("MLP", f"3 × ({h:,} + {f:,})"),
            Step("all", f"{a.layers} × {rank} × {value // a.layers // rank:,} = {value:,}"),
        ],
        mistake="About 42 million for rank 16 on Llama 3.1 8B: half a percent of the model.",
    )


@template("adapters.base", _TOPIC, 2)
def base(draw: Draw) -> Question:
    """LoRA's weights, gradients and optimizer state."""
    case = draw.case(LARGE[:5], precision="bf16", lora=Lora(rank=16), checkpointing="full")
    value = case.bytes("weights", "gradients", "optimizer_state")
    count = case.parameters
    trained = lora_parameters(case.architecture, Lora(rank=16))
    return draw.number(
        case.job,
        setting=[
            case.size_line,
            f"bf16 base, LoRA of rank 16 {_ALL_LINEAR}: {count_in_words(trained)} adapter parameters in "
            "fp32, AdamW",
        ],
        prompt="How much do weights, gradients and optimizer state take?",
        value=value,
        unit="GiB",
        slips=[
            Slip(count * 8, "gave the base gradients and moments", "Frozen weights have neither."),
            Slip(count * 16, "trained everything in fp32", "Only the adapters train."),
            Slip(count * 4, "took the base for fp32", "The base is bf16."),
        ],
        steps=case.terms("weights", "gradients", "optimizer_state"),
        mistake="2 bytes a parameter for the base; the adapters' 16 bytes hardly show.",
    )


@template("adapters.nf4", _TOPIC, 2)
def nf4(draw: Draw) -> Question:
    """A packed base."""
    case = draw.case(
        [*LARGE, GATED[4]],
        precision="bf16",
        lora=Lora(rank=16),
        base_quantization="nf4",
        checkpointing="full",
    )
    found = frozen_base(case.architecture, "nf4", 2)
    value = found.packed_bytes + found.plain_bytes
    count = case.parameters
    return draw.number(
        case.job,
        setting=[
            f"{case.model.title}: {count_in_words(found.packed_parameters)} weights in linear layers, "
            f"{count_in_words(found.plain_parameters)} parameters in embedding, head and norms",
            "QLoRA: NF4 with double quantisation, everything else bf16",
        ],
        prompt="How much does the frozen base take?",
        value=value,
        unit="GiB",
        slips=[
            Slip(
                count * NF4_BYTES_PER_PARAMETER, "packed everything", "Embeddings and head stay at 16 bits."
            ),
            Slip(
                count * 2, "took it for 16-bit", "The linear layers are packed to about half a byte a weight."
            ),
            Slip(found.packed_bytes, "forgot embeddings and head", "They are there too, 2 bytes each."),
            Slip(
                found.packed_parameters + found.plain_bytes,
                "took it for 8-bit",
                "NF4 is four bits and a little for scales.",
            ),
        ],
        steps=[
            Step(
                "linear layers", f"{found.packed_parameters:,} × 0.516 B = {format_gib(found.packed_bytes)}"
            ),
            Step("the rest", f"{found.plain_parameters:,} × 2 B = {format_gib(found.plain_bytes)}"),
            Step(
                "base",
                f"{format_gib(found.packed_bytes)} + {format_gib(found.plain_bytes)} = {format_gib(value)}",
            ),
        ],
        mistake="With a vocabulary of 128,000 the unpacked embedding and head weigh about as much as "
        "billions of packed weights.",
    )


@template("adapters.bits", _TOPIC, 1)
def bits(draw: Draw) -> Question:
    """NF4's real width."""
    case = draw.case(
        LARGE, precision="bf16", lora=Lora(rank=16), base_quantization="nf4", checkpointing="full"
    )
    value = 8 * NF4_BYTES_PER_PARAMETER
    return draw.number(
        case.job,
        setting=[
            "NF4: 4 bits a weight, an 8-bit scale for each 64 weights,",
            "and an fp32 scale for each 256 of those scales (double quantisation)",
        ],
        prompt="How many bits does a weight take in all?",
        value=value,
        unit="bits",
        tolerance=0.01,
        slips=[
            Slip(4, "forgot the scales", "The scales are stored as well."),
            Slip(
                4 + 32 / 64,
                "forgot double quantisation",
                "That is with fp32 scales; here the scales are 8-bit.",
            ),
            Slip(NF4_BYTES_PER_PARAMETER, "gave bytes", "The question asks for bits."),
        ],
        steps=[Step("bits", f"4 + 8/64 + 32/(64 × 256) = {value:.3f}")],
        mistake="0.516 bytes: close to half a byte, far from free for what is not packed.",
    )


@template("adapters.activations", _TOPIC, 2)
def activations(draw: Draw) -> Question:
    """What LoRA does not save."""
    case = draw.case(GATED[2:5], precision="bf16", micro_batch=4, sequence_length=2048, lora=Lora(rank=16))
    state = case.bytes("weights", "gradients", "optimizer_state")
    tokens = case.bytes("activations", "logits")
    return draw.options(
        case.job,
        setting=[case.size_line, case.batch_line, "LoRA of rank 16, bf16 base", case.levers_line],
        prompt=f"Weights, gradients and optimizer state take {format_gib(state)}, the job far more. What is the rest?",
        right=Option(
            "activations: gradients flow through frozen blocks to every adapter",
            f"Blocks and logits take {format_gib(tokens)} on the whiteboard, and more in real code.",
        ),
        wrong=[
            Option("gradients of the frozen weights", "They are not computed; frozen weights have no .grad."),
            Option("optimizer state of the frozen weights", "AdamW gets only the adapters."),
            Option(
                "merged copies of the weights",
                "Adapters are added on the fly; nothing is merged in training.",
            ),
        ],
        steps=[
            *case.terms("weights", "activations", "logits"),
            Step(
                "full fine-tuning",
                f"the same activations: {format_gib(case.bytes('activations', lora=None))}",
            ),
        ],
        mistake="LoRA removes gradients and optimizer state. Activations need checkpointing, as ever.",
    )


@template("adapters.share", _TOPIC, 1)
def share(draw: Draw) -> Question:
    """The share of parameters that train."""
    rank = draw.choice([8, 16, 64])
    case = draw.case(GATED[2:5], precision="bf16", lora=Lora(rank=rank), checkpointing="full")
    trained = lora_parameters(case.architecture, Lora(rank=rank))
    value = 100 * trained / case.parameters
    return draw.number(
        case.job,
        setting=[case.size_line, f"LoRA of rank {rank} {_ALL_LINEAR}: {count_in_words(trained)} parameters"],
        prompt="What percentage of the base does that make?",
        value=value,
        unit="%",
        slips=[
            Slip(value / 100, "gave a fraction", "As a percentage it is 100 times that."),
            Slip(value * 10, "lost a decimal", "Check with 1%: a hundredth of the base."),
        ],
        steps=[Step("share", f"{trained:,} / {case.parameters:,} = {value:.2f}%")],
        mistake="Half a percent trains; that is why gradients and moments shrink and activations do not.",
    )


@template("adapters.saves", _TOPIC, 2)
def saves(draw: Draw) -> Question:
    """Full fine-tuning against LoRA, without activations."""
    case = draw.case(LARGE[:4], precision="bf16", checkpointing="full")
    lora = Lora(rank=16)
    before = case.bytes("weights", "gradients", "optimizer_state")
    after = case.bytes("weights", "gradients", "optimizer_state", lora=lora)
    return draw.number(
        case.job.with_(lora=lora),
        setting=[case.size_line, f"from pure bf16 AdamW to LoRA of rank 16 {_ALL_LINEAR}, bf16 base"],
        prompt="How much of the weights, gradients and optimizer state does LoRA save?",
        value=before - after,
        unit="GiB",
        slips=[
            Slip(before, "thought the base goes too", "The frozen weights are still there: 2 bytes each."),
            Slip(case.parameters * 4, "kept the gradients", "Frozen weights have no gradients either."),
            Slip(after, "gave what stays", "That is what LoRA needs."),
        ],
        steps=[
            Step("full", f"{case.parameters:,} × 8 B = {format_gib(before)}"),
            *case.terms("weights", "gradients", "optimizer_state", lora=lora),
            Step("saved", f"{format_gib(before)} − {format_gib(after)} = {format_gib(before - after)}"),
        ],
        mistake="Six of the eight bytes go: gradients and two moments.",
    )


@template("adapters.rank", _TOPIC, 2)
def rank_matters(draw: Draw) -> Question:
    """What a larger rank costs."""
    case = draw.case(GATED[2:5], precision="bf16", lora=Lora(rank=16), checkpointing="full")
    small = case.bytes("weights", "gradients", "optimizer_state")
    large = case.bytes("weights", "gradients", "optimizer_state", lora=Lora(rank=32))
    return draw.options(
        case.job.with_(lora=Lora(rank=32)),
        setting=[case.size_line, f"LoRA {_ALL_LINEAR}, bf16 base, fp32 adapters, AdamW"],
        prompt="The rank doubles from 16 to 32. What happens to weights, gradients and optimizer state together?",
        right=Option(
            f"they grow by {100 * (large - small) / small:.0f}%",
            f"From {format_gib(small)} to {format_gib(large)}: 16 bytes for each new adapter parameter.",
        ),
        wrong=[
            Option("they double", "Only the adapters double, and they are half a percent of the base."),
            Option("they grow by half", "The base weighs far more than the adapters."),
            Option(
                "they stay exactly the same", "New adapter parameters need weights, gradients and moments."
            ),
        ],
        steps=case.terms("weights", "gradients", "optimizer_state", lora=Lora(rank=32)),
        mistake="Choose the rank for quality; memory hardly notices.",
    )


@template("adapters.states", _TOPIC, 2)
def states(draw: Draw) -> Question:
    """What the adapters alone take."""
    rank = draw.choice([8, 16, 64])
    case = draw.case(GATED[2:5], precision="bf16", lora=Lora(rank=rank), checkpointing="full")
    trained = lora_parameters(case.architecture, Lora(rank=rank))
    value = 16 * trained
    return draw.number(
        case.job,
        setting=[f"{count_in_words(trained)} adapter parameters, kept in fp32", "AdamW"],
        prompt="How much do the adapters take, with their gradients and moments?",
        value=value,
        unit="MiB",
        slips=[
            Slip(value / 2, "took them for bf16", "PEFT keeps adapters in fp32."),
            Slip(trained * 8, "counted moments only", "Weights and gradients are 4 bytes each."),
            Slip(trained * 12, "forgot gradients", "Each adapter parameter has an fp32 gradient."),
        ],
        steps=[Step("adapters", f"{trained:,} × (4 + 4 + 8) B = {value / MIB:,.0f} MiB")],
        mistake="16 bytes as ever, but of millions, not billions.",
    )


TEMPLATES: tuple[Template, ...] = (
    one_layer,
    whole_model,
    base,
    nf4,
    bits,
    activations,
    share,
    saves,
    rank_matters,
    states,
)
