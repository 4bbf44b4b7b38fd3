"""The families whose parameters are known: one file each, one line each in `FAMILIES`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from trainmem.job import JobError, Task, _choice, _shown
from trainmem.model.architecture import Architecture
from trainmem.model.config import ConfigReader, UnknownFamily
from trainmem.model.families import (
    bert,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    gpt_oss,
    llama,
    mistral,
    mixtral,
    modernbert,
    olmo2,
    opt,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
)
from trainmem.model.families._family import Family

__all__ = ["FAMILIES", "architecture_of"]

FAMILIES: dict[str, Family] = {
    "gpt2": gpt2.FAMILY,
    "gpt_neox": gpt_neox.FAMILY,
    "opt": opt.FAMILY,
    "llama": llama.FAMILY,
    "mistral": mistral.FAMILY,
    "mixtral": mixtral.FAMILY,
    "qwen2": qwen2.FAMILY,
    "qwen3": qwen3.FAMILY,
    "qwen3_moe": qwen3_moe.FAMILY,
    "gemma2": gemma2.FAMILY,
    "gemma3_text": gemma3.FAMILY,
    "phi3": phi3.FAMILY,
    "olmo2": olmo2.FAMILY,
    "gpt_oss": gpt_oss.FAMILY,
    "bert": bert.FAMILY,
    "modernbert": modernbert.FAMILY,
}
"""Hugging Face ``model_type`` to the family that reads such a config."""


def architecture_of(config: Mapping[str, Any], task: Task = "causal_lm") -> Architecture:
    """The architecture that transformers would build from ``config`` for ``task``.

    Missing keys take the defaults of the transformers config class, and a note says which sizes did. Raises
    `UnknownFamily` for a ``model_type`` that is not in `FAMILIES`, `JobError` for a wrong value.
    """
    _choice("task", task, get_args(Task))
    if not isinstance(config, Mapping):
        raise JobError(f"config: {_shown(config)} is not an object like a Hugging Face config.json")
    if config.get("model_type") == "gemma3":
        return _text_part_of_gemma3(config, task)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        shown = "missing" if model_type is None else _shown(model_type)
        raise JobError(
            f"config.model_type: {shown}; give the model's Hugging Face type, one of {', '.join(FAMILIES)}"
        )
    if model_type not in FAMILIES:
        raise UnknownFamily(
            f"config.model_type: {_shown(model_type)} is not one of {', '.join(FAMILIES)}; "
            "`trainmem trace` runs the model's own code and handles any type exactly"
        )
    family = FAMILIES[model_type]
    if task not in family.tasks:
        raise JobError(
            f"task: {_shown(task)} is not one of {', '.join(family.tasks)}, which {model_type} has"
        )
    reader = ConfigReader(config, family.defaults, family.aliases)
    architecture = family.build(reader, task)
    notes = list(architecture.notes)
    if reader.sizes_by_default:
        taken = ", ".join(f"{key} = {family.defaults[key]:,}" for key in reader.sizes_by_default)
        notes.append(
            f"the config does not say; transformers' {family.config_class} defaults are used: {taken}"
        )
    if reader.dropped_nulls:
        keys = ", ".join(reader.dropped_nulls)
        notes.append(f"the config was written without its null keys; taken as null: {keys}")
    return replace(
        architecture, notes=tuple(notes), sizes=reader.sizes, sizes_by_default=reader.sizes_by_default
    )


def _text_part_of_gemma3(config: Mapping[str, Any], task: Task) -> Architecture:
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise JobError(
            f"config.text_config: {_shown(text)} is not an object; a gemma3 config keeps its sizes there"
        )
    architecture = architecture_of({**text, "model_type": "gemma3_text"}, task)
    note = "only the text model of this multimodal config (text_config) is counted, without its vision tower"
    return replace(architecture, notes=(note, *architecture.notes))
