"""Sizes between the sizes: a model family's scaling curve as a ladder of configs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from trainmem.job import JobError, TrainingJob, _shown
from trainmem.model import Architecture, architecture_of
from trainmem.model.catalogue import find

__all__ = ["DEFAULT_FAMILY", "FAMILIES", "Family", "Ladder", "Rung", "family", "ladder", "rung_of"]

DEFAULT_FAMILY = "llama3"


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Models of one lineage, small first, as catalogue names.

    ``beyond`` are published shapes larger than the last of them: title, layers, hidden size, heads.
    """

    key: str
    title: str
    members: tuple[str, ...]
    beyond: tuple[tuple[str, int, int, int], ...] = ()


FAMILIES: tuple[Family, ...] = (
    Family(
        key="llama3",
        title="Llama 3",
        members=("llama3.2-1b", "llama3.2-3b", "llama3.1-8b", "llama3.1-70b", "llama3.1-405b"),
    ),
    Family(key="llama2", title="Llama 2", members=("llama2-7b", "llama2-13b", "llama2-70b")),
    Family(
        key="qwen2.5",
        title="Qwen2.5",
        members=(
            "qwen2.5-0.5b",
            "qwen2.5-1.5b",
            "qwen2.5-3b",
            "qwen2.5-7b",
            "qwen2.5-14b",
            "qwen2.5-32b",
            "qwen2.5-72b",
        ),
    ),
    Family(
        key="qwen3",
        title="Qwen3",
        members=("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b"),
    ),
    Family(
        key="gpt2",
        title="GPT-2",
        members=("gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1558m"),
        # Brown et al. 2020, table 2.1, with 5,120 for the 13B's 5,140.
        beyond=(
            ("GPT-3 2.7B's shape", 32, 2560, 32),
            ("GPT-3 6.7B's shape", 32, 4096, 32),
            ("GPT-3 13B's shape", 40, 5120, 40),
            ("GPT-3 175B's shape", 96, 12288, 96),
        ),
    ),
    Family(
        key="pythia",
        title="Pythia",
        members=(
            "pythia-70m",
            "pythia-160m",
            "pythia-410m",
            "pythia-1b",
            "pythia-1.4b",
            "pythia-2.8b",
            "pythia-6.9b",
            "pythia-12b",
        ),
    ),
    Family(
        key="opt",
        title="OPT",
        members=("opt-125m", "opt-1.3b", "opt-2.7b", "opt-6.7b", "opt-13b", "opt-30b", "opt-66b"),
    ),
    Family(key="gemma2", title="Gemma 2", members=("gemma2-2b", "gemma2-9b", "gemma2-27b")),
    Family(
        key="gemma3",
        title="Gemma 3",
        members=("gemma3-270m", "gemma3-1b", "gemma3-4b", "gemma3-12b", "gemma3-27b"),
    ),
    Family(key="olmo2", title="OLMo 2", members=("olmo2-1b", "olmo2-7b", "olmo2-13b", "olmo2-32b")),
    Family(key="smollm2", title="SmolLM2", members=("smollm2-135m", "smollm2-360m", "smollm2-1.7b")),
)

_STEP = 0.04
"""Growth from rung to rung, in the logarithm of the parameters."""

_WIDTHS = {"gpt2": "n_inner", "opt": "ffn_dim"}
_LAYERS = {"gpt2": "n_layer"}
_HIDDEN = {"gpt2": "n_embd"}
_HEADS = {"gpt2": "n_head"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One size of a family: a catalogue model (``name``), a published shape (``title``), or one between."""

    name: str | None
    title: str
    config: Mapping[str, Any] = field(hash=False)
    parameters: int
    architecture: Architecture = field(compare=False, repr=False)

    def job(self, like: TrainingJob) -> TrainingJob:
        """``like`` with this model."""
        if self.name is not None:
            return like.with_(model=self.name, config=None, task="causal_lm")
        return like.with_(model=None, config=self.config, task="causal_lm")


def rung_of(name: str | None, title: str, config: Mapping[str, Any], architecture: Architecture) -> Rung:
    """The size that a config describes."""
    return Rung(
        name=name,
        title=title,
        config=config,
        parameters=architecture.parameter_count,
        architecture=architecture,
    )


def family(key: str) -> Family:
    """The family with this key. Raises `JobError` that lists them."""
    for found in FAMILIES:
        if found.key == key:
            return found
    raise JobError(f"family: {_shown(key)} is not one of {', '.join(known.key for known in FAMILIES)}")


class Ladder(Sequence[Rung]):
    """A family's curve from its smallest size to its largest; rungs between are made when asked for."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.anchors = _anchors(family)
        self._steps = [
            max(1, round(math.log(high.parameters / low.parameters) / _STEP))
            for low, high in zip(self.anchors, self.anchors[1:], strict=False)
        ]
        self._starts = [sum(self._steps[:index]) for index in range(len(self.anchors))]

    def __len__(self) -> int:
        return self._starts[-1] + 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        anchor = bisect_right(self._starts, index) - 1
        step = index - self._starts[anchor]
        if step == 0:
            return self.anchors[anchor]
        return _between(self.anchors[anchor], self.anchors[anchor + 1], step, self._steps[anchor])

    def near(self, parameters: float) -> int:
        """The index of the last size of about so many parameters at most, or of the smallest."""
        sizes = [anchor.parameters for anchor in self.anchors]
        anchor = bisect_right(sizes, parameters) - 1
        if not 0 <= anchor < len(self._steps):
            return 0 if anchor < 0 else len(self) - 1
        return self._starts[anchor] + int(math.log(parameters / sizes[anchor]) / _STEP)


@cache
def ladder(key: str) -> Ladder:
    """The ladder of the family with this key. Raises `JobError` for another."""
    return Ladder(family(key))


def _anchors(family: Family) -> tuple[Rung, ...]:
    found = []
    for name in family.members:
        entry = find(name)
        found.append(rung_of(name, name, entry.config, entry.architecture("causal_lm")))
    for title, layers, hidden, heads in family.beyond:
        config = {**found[-1].config, "n_layer": layers, "n_embd": hidden, "n_head": heads}
        found.append(rung_of(None, title, config, architecture_of(config)))
    return tuple(found)


@lru_cache(maxsize=1024)
def _between(low: Rung, high: Rung, step: int, steps: int) -> Rung:
    """The size ``step`` of ``steps`` on the way from one model to the next.

    Equation: log P goes from one to the other evenly; layers, hidden size and heads go evenly in their
    logarithms, rounded to whole heads that the key heads divide; the MLP's width is solved for P, in
    multiples of 64. What is not a size is the nearer model's.
    Leaves out: that real sizes between would be rounder.
    """
    share = step / steps
    near = low if share < 0.5 else high
    config = dict(near.config)
    kind = str(config["model_type"])
    width, hidden = _WIDTHS.get(kind, "intermediate_size"), _HIDDEN.get(kind, "hidden_size")
    heads, layers = _HEADS.get(kind, "num_attention_heads"), _LAYERS.get(kind, "num_hidden_layers")

    def mixed(name: str) -> float:
        start, end = float(low.config[name]), float(high.config[name])
        return start * math.exp(share * math.log(end / start))

    config[layers] = round(mixed(layers))
    groups = int(config.get("num_key_value_heads") or config[heads])
    whole = 1 if groups == config[heads] else groups
    if config.get("head_dim"):
        # Heads of a fixed size need not add up to the hidden size, but their number divides it.
        count = whole * max(1, round(mixed(heads) / whole))
        config[hidden] = 2 * count * max(1, round(mixed(hidden) / count / 2))
    else:
        size = int(config[hidden]) // int(config[heads])
        count = whole * max(1, round(mixed(hidden) / size / whole))
        config[hidden] = count * size
    config[heads] = count
    if config.get("num_key_value_heads"):
        config["num_key_value_heads"] = count if whole == 1 and groups > 1 else groups
    if config.get("word_embed_proj_dim"):
        config["word_embed_proj_dim"] = config[hidden]

    wanted = low.parameters ** (1 - share) * high.parameters**share
    one, two = (architecture_of({**config, width: rows}).parameter_count for rows in (64, 128))
    config[width] = 64 * max(1, round(1 + (wanted - one) / (two - one)))
    architecture = architecture_of(config)
    return rung_of(None, f"{architecture.parameter_count / 1e9:.3g}B", config, architecture)
