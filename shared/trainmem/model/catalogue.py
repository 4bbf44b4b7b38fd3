"""The models trainmem knows by name; their data is in catalogue.json, one entry a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from trainmem.job import JobError, Task, _shown
from trainmem.model.architecture import Architecture
from trainmem.model.families import architecture_of
from trainmem.suggest import close_matches

__all__ = ["Entry", "entries", "find", "is_known"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One model: the keys of its published ``config.json`` that decide its architecture, and where from.

    ``hub_id`` is the Hugging Face id whose config this is, or None where a value was changed (``note`` says
    which). ``same`` are further names and ids of the same architecture, such as instruction-tuned releases.
    ``task`` is what it is usually trained for.
    """

    name: str
    hub_id: str | None
    config: Mapping[str, Any] = field(hash=False)
    source: str
    same: tuple[str, ...] = ()
    task: Task = "causal_lm"
    note: str | None = None

    @property
    def family(self) -> str:
        """The config's ``model_type``."""
        return str(self.config["model_type"])

    def architecture(self, task: Task | None = None) -> Architecture:
        """The architecture for ``task``, or for the entry's own."""
        return architecture_of(self.config, task or self.task)


@cache
def entries() -> tuple[Entry, ...]:
    """Every entry, in the order of the file: families together, small models first."""
    text = resources.files("trainmem.model").joinpath("catalogue.json").read_text(encoding="utf-8")
    return tuple(
        Entry(
            name=item["name"],
            hub_id=item["id"],
            config=item["config"],
            source=item["source"],
            same=tuple(item.get("same", ())),
            task=item.get("task", "causal_lm"),
            note=item.get("note"),
        )
        for item in json.loads(text)
    )


@cache
def _by_any_name() -> dict[str, Entry]:
    return {
        name.casefold(): entry
        for entry in entries()
        for full in (entry.name, entry.hub_id, *entry.same)
        if full is not None
        for name in (full, full.rpartition("/")[2])
    }


def is_known(name: str) -> bool:
    """Whether the catalogue has this name or Hugging Face id, whatever its case."""
    return name.strip().casefold() in _by_any_name()


def find(name: str) -> Entry:
    """The entry with this name or Hugging Face id, whatever its case.

    Raises `JobError` that lists the closest names for any other.
    """
    found = _by_any_name().get(name.strip().casefold())
    if found is not None:
        return found
    close = dict.fromkeys(_by_any_name()[match].name for match in close_matches(name, _by_any_name()))
    hint = f"; close to it: {', '.join(close)}" if close else ""
    raise JobError(
        f"model: {_shown(name)} is not in the catalogue{hint}; "
        "allowed are the names that `trainmem models` lists, or a config"
    )
