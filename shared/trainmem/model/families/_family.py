"""What one family file gives the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture
from trainmem.model.config import ConfigReader

__all__ = ["Family"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A ``model_type``: its transformers config class, that class's defaults, and how to read a config.

    ``defaults`` has every key that ``build`` reads, and no other. ``aliases`` are the class's
    ``attribute_map``. ``tasks`` are those for which transformers has a model.
    """

    config_class: str
    defaults: Mapping[str, Any]
    build: Callable[[ConfigReader, Task], Architecture]
    aliases: Mapping[str, str] = field(default_factory=dict)
    tasks: tuple[Task, ...] = ("causal_lm", "sequence_classification")
