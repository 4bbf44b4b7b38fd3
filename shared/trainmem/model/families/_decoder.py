"""Decoders in Llama's shape: token embedding, equal blocks, one RMSNorm, a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture, Buffer, Parameter
from trainmem.model.config import ConfigReader
from trainmem.model.families._parts import output_head, rms_norm, rotary_buffers
from trainmem.model.families._rope import rope_type

__all__ = ["DecoderSizes", "build_decoder", "interleaved", "read_sizes", "sliding_after", "uniform"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderSizes:
    """The sizes that every such decoder reads from the same keys."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int


def read_sizes(config: ConfigReader, *, explicit_head_dim: bool) -> DecoderSizes:
    """The sizes from Llama's keys; with ``explicit_head_dim`` a ``head_dim`` wins over hidden / heads."""
    hidden_size = config.size("hidden_size")
    layers = config.layers()
    heads = config.size("num_attention_heads")
    head_dim = config.optional_size("head_dim") if explicit_head_dim else None
    if head_dim is None:
        head_dim = hidden_size // config.divisor("num_attention_heads", hidden_size, "hidden_size")
    if head_dim % 2:
        key = "head_dim" if explicit_head_dim and config.raw("head_dim") else "num_attention_heads"
        raise config.refuse(
            key, f"gives heads of {head_dim:,} elements; rotary positions need an even number"
        )
    return DecoderSizes(
        hidden_size=hidden_size,
        layers=layers,
        heads=heads,
        kv_heads=config.kv_heads(heads),
        head_dim=head_dim,
        intermediate_size=config.size("intermediate_size"),
        vocab_size=config.vocab_size(),
    )


def sliding_after(config: ConfigReader, layers: int) -> tuple[tuple[str, ...], int | None]:
    """Qwen's rule: with use_sliding_window, blocks from max_window_layers on see a window.

    Returns each block's attention type, and the window (None where no block has one).
    """
    types = config.attention_types(layers)
    window = config.sliding_window() if config.flag("use_sliding_window") else None
    if types is None:
        first = config.count("max_window_layers") if window is not None else layers
        types = tuple("full_attention" if index < first else "sliding_attention" for index in range(layers))
    if "sliding_attention" in types and window is None:
        raise config.refuse(
            "layer_types", "has sliding_attention, which needs use_sliding_window and sliding_window"
        )
    return types, window


def interleaved(
    config: ConfigReader, layers: int, sliding: Callable[[int], bool]
) -> tuple[tuple[str, ...], int | None]:
    """The attention type of each block, from ``layer_types`` or the family's rule, and the window."""
    types = config.attention_types(layers)
    if types is None:
        types = tuple("sliding_attention" if sliding(i) else "full_attention" for i in range(layers))
    if "sliding_attention" not in types:
        return types, None
    return types, config.count("sliding_window", least=1)


def uniform(config: ConfigReader, layers: int) -> tuple[tuple[str, ...], int | None]:
    """One attention type for every block: sliding with a ``sliding_window``, full where it is null."""
    window = config.sliding_window()
    return ("full_attention" if window is None else "sliding_attention",) * layers, window


def build_decoder(
    family: str,
    config: ConfigReader,
    task: Task,
    sizes: DecoderSizes,
    *,
    layer_kinds: tuple[str, ...],
    blocks: Mapping[str, tuple[Parameter, ...]],
    extra: Mapping[str, Any],
    dropout: Mapping[str, float] | None = None,
    buffers: tuple[Buffer, ...] | None = None,
) -> Architecture:
    """The architecture around ``blocks``, which only the kinds in ``layer_kinds`` keep."""
    return Architecture(
        family=family,
        hidden_size=sizes.hidden_size,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        intermediate_size=sizes.intermediate_size,
        vocab_size=sizes.vocab_size,
        max_positions=config.positions(),
        tied=task == "causal_lm" and config.flag("tie_word_embeddings"),
        layer_kinds=layer_kinds,
        embeddings=(Parameter("embed_tokens.weight", (sizes.vocab_size, sizes.hidden_size), "embedding"),),
        blocks={kind: blocks[kind] for kind in dict.fromkeys(layer_kinds)},
        final=rms_norm("norm", sizes.hidden_size),
        head=output_head(task, sizes.hidden_size, sizes.vocab_size),
        buffers=rotary_buffers(sizes.head_dim, rope_type(config)) if buffers is None else buffers,
        dropout={"attention": config.fraction("attention_dropout")} if dropout is None else dict(dropout),
        extra={"norm": "rms_norm", "gated": True, "rotary_dim": sizes.head_dim, **extra},
    )
