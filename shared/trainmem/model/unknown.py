"""A config of a model_type that nobody wrote down here, read by the keys that most configs share.

It is good for the whiteboard's sum only: how many parameters, how wide, how deep. What the blocks really keep is
the trace's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture
from trainmem.model.config import UnknownFamily
from trainmem.model.families import architecture_of

__all__ = ["UNKNOWN", "architecture_of_unknown"]

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
_GATED = ("silu", "swish", "swiglu", "geglu")


def _found(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def architecture_of_unknown(config: Mapping[str, Any], task: Task, refusal: UnknownFamily) -> Architecture:
    """A decoder of the same width and depth, its family called "unknown".

    Raises ``refusal`` where the shared keys are not there, and `trainmem.job.JobError` where one
    of them is wrong.
    """
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = {**config, **text}
    values: dict[str, Any] = {}
    for name, aliases in _SHARED_KEYS.items():
        value = _found(config, aliases)
        if value is None:
            raise refusal
        values[name] = value
    for name, aliases in _MAY_LACK.items():
        value = _found(config, aliases)
        if value is not None:
            values[name] = value
    if not isinstance(values["hidden_size"], int) or isinstance(values["hidden_size"], bool):
        raise refusal
    activation = str(_found(config, ("hidden_act", "activation_function", "hidden_activation")) or "silu")
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
        f"model_type {config.get('model_type')!r} is unknown here: its size is read from the keys that most "
        "configs share, as a plain decoder"
    )
    extra = {key: value for key, value in found.extra.items() if key != "position_table"}
    return replace(found, family=UNKNOWN, extra=extra, notes=(*found.notes, note))
