"""Infinities in a model's config, which JSON has no number for.

Mamba's configs, for one, have a time step limit of ``Infinity``. transformers 5 writes it as
``{"__float__": "Infinity"}`` (PreTrainedConfig._encode_special_floats), and so it is kept here, so that a job
stays plain JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["tagged", "untagged"]

_TAG = "__float__"
_VALUES = {"Infinity": math.inf, "-Infinity": -math.inf}


def tagged(value: Any) -> Any:
    """``value`` with every infinity as a tagged object."""
    if isinstance(value, float) and math.isinf(value):
        return {_TAG: "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, Mapping):
        return {key: tagged(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [tagged(inner) for inner in value]
    return value


def untagged(value: Any) -> Any:
    """The inverse of `tagged`."""
    if isinstance(value, Mapping):
        if len(value) == 1 and value.get(_TAG) in _VALUES:
            return _VALUES[value[_TAG]]
        return {key: untagged(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [untagged(inner) for inner in value]
    return value
