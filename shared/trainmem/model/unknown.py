"""A config of a model_type that nobody wrote down here, read by the keys that most configs share.

It is good for the whiteboard's sum only: how many parameters, how wide, how deep. What the blocks really keep is
the trace's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainmem.job import MOST_COUNT, Task, _count, _shown
from trainmem.model.architecture import Architecture
from trainmem.model.config import UnknownFamily
from trainmem.model.families import architecture_of

__all__ = ["TRACE", "UNKNOWN", "architecture_of_unknown"]

UNKNOWN = "unknown"

_SHARED_KEYS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "hidden_dim"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "vocab_size": ("vocab_size",),
}
_MAY_LACK: dict[str, tuple[str, ...]] = {
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff"),
    "num_key_value_heads": ("num_key_value_heads", "n_head_kv", "multi_query_group_num"),
    "head_dim": ("head_dim",),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "tie_word_embeddings": ("tie_word_embeddings",),
}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
TRACE = "`trainmem trace` reads every type that transformers has, from the same config.json"
_GATED = ("silu", "swish", "swiglu", "geglu")


def _key(config: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if config.get(name) is not None), None)


def _found(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    key = _key(config, names)
    return None if key is None else config[key]


def _type_of(config: Mapping[str, Any]) -> str:
    return _shown(config.get("model_type"))


def _refuse_other_shapes(config: Mapping[str, Any]) -> None:
    """A sum as of a plain decoder would be wrong by the number of experts, or by a whole encoder."""
    telling = [key for key in _EXPERTS if config.get(key) not in (None, 0, 1)]
    if config.get("is_encoder_decoder") is True:
        telling.append("is_encoder_decoder")
    if telling:
        key = telling[0]
        raise UnknownFamily(
            f"config.{key}: {_shown(config[key])} makes {_type_of(config)}, a model_type that is unknown here, "
            f"more than a plain decoder, which is all that the whiteboard can assume; {TRACE}"
        )


def architecture_of_unknown(config: Mapping[str, Any], task: Task, refusal: UnknownFamily) -> Architecture:
    """A decoder of the same width and depth, its family called "unknown".

    Raises `UnknownFamily` naming the shared keys that are not there or a key that says that the blocks are not a
    plain decoder's, and `trainmem.job.JobError` where a shared key is wrong.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}
    _refuse_other_shapes(config)
    keys_of = {name: _key(config, aliases) for name, aliases in _SHARED_KEYS.items()}
    missing = [name for name, key in keys_of.items() if key is None]
    if missing:
        keys = ", ".join(f"config.{name}" for name in missing)
        raise UnknownFamily(
            f"{keys}: missing, and without {'it' if len(missing) == 1 else 'them'} there is no sum for "
            f"{_type_of(config)}, a model_type that is unknown here; {TRACE}"
        )
    values: dict[str, Any] = {
        name: _count(f"config.{key}", config[key], most=MOST_COUNT << 7)
        for name, key in keys_of.items()
        if key is not None
    }
    for name, aliases in _MAY_LACK.items():
        value = _found(config, aliases)
        if value is not None:
            values[name] = value
    activation = str(_found(config, ("hidden_act", "activation_function", "hidden_activation")) or "silu")
    assumed = "" if "intermediate_size" in values else "; its MLP is taken as 4 x the hidden size wide"
    values.setdefault("intermediate_size", 4 * values["hidden_size"])
    values.setdefault("max_position_embeddings", 2048)
    gated = any(part in activation.lower() for part in _GATED)
    try:
        if gated:
            found = architecture_of({"model_type": "llama", "hidden_act": "silu", **values}, task)
        else:
            plain: dict[str, Any] = {
                key: values[key] for key in ("vocab_size", "tie_word_embeddings") if key in values
            }
            found = architecture_of(
                {
                    "model_type": "gpt2",
                    "n_embd": values["hidden_size"],
                    "n_layer": values["num_hidden_layers"],
                    "n_head": values["num_attention_heads"],
                    "n_inner": values["intermediate_size"],
                    "n_positions": values["max_position_embeddings"],
                    **plain,
                },
                task,
            )
    except UnknownFamily:
        raise refusal from None
    note = (
        f"model_type {_type_of(config)} is unknown here: its size is read from the keys that most configs share, "
        f"as a plain decoder{assumed}"
    )
    extra = {key: value for key, value in found.extra.items() if key != "position_table"}
    return replace(found, family=UNKNOWN, extra=extra, notes=(*found.notes, note))
