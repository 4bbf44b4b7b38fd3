"""Reading one Hugging Face ``config.json`` key by key, with transformers' defaults and one-line refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmem.job import JobError, _count, _shown

__all__ = ["ConfigReader", "UnknownFamily"]

_MAX_WIDTH = 1 << 24
_MAX_LAYERS = 1_000
"""Of the deepest Transformer published, DeepNet (arXiv 2203.00555). Replaying ten times as many takes a minute and
gigabytes."""

_MAX_EXPERTS = 65_536
_MAX_VOCABULARY = 1 << 27
_MAX_POSITIONS = 1 << 31

# Those of transformers.activations.ACT2CLS (5.17) that have no parameters of their own.
# fmt: off
_ACTIVATIONS = (
    "gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh",
    "gelu_pytorch_tanh", "hardswish", "laplace", "leaky_relu", "linear", "mish", "quick_gelu", "relu",
    "relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "swish", "tanh",
)
# fmt: on
_ATTENTION_TYPES = ("full_attention", "sliding_attention")


class UnknownFamily(JobError):
    """A config whose ``model_type`` has no parameter list here; ``trainmem trace`` handles it exactly."""


class ConfigReader:
    """One ``config.json`` over the defaults of its transformers class.

    A key that is absent takes its default; a key that is there must be right. Every refusal is a `JobError`
    that starts with ``config.<key>``. ``aliases`` are the other names that the class accepts for a key
    (``attribute_map`` in transformers), and win over the key itself as they do there.
    """

    def __init__(
        self, config: Mapping[str, Any], defaults: Mapping[str, Any], aliases: Mapping[str, str] | None = None
    ) -> None:
        named = {aliases[key]: value for key, value in config.items() if key in aliases} if aliases else {}
        self._given = {**config, **named}
        self._values = {**defaults, **self._given}
        self._sizes: dict[str, bool] = {}
        self._dropped_nulls: list[str] = []

    @property
    def sizes(self) -> tuple[str, ...]:
        """The keys that decide the model's size, in the order they were read."""
        return tuple(self._sizes)

    @property
    def sizes_by_default(self) -> tuple[str, ...]:
        """Those of `sizes` that the config leaves to the class's default."""
        return tuple(key for key, is_given in self._sizes.items() if not is_given)

    @property
    def dropped_nulls(self) -> tuple[str, ...]:
        """The keys taken as null because the writer of the config left nulls out; see `sliding_window`."""
        return tuple(self._dropped_nulls)

    def refuse(self, key: str, allowed: str) -> JobError:
        """The error for ``key``: its value and what is allowed, for example ``"is not true or false"``."""
        value = self._values.get(key)
        origin = "" if key in self._given else " (the default)"
        return JobError(f"config.{key}: {'null' if value is None else _shown(value)}{origin} {allowed}")

    def raw(self, key: str) -> Any:
        """The value as it stands, unchecked; None when neither the config nor the defaults have the key."""
        return self._values.get(key)

    def size(self, key: str, *, least: int = 1, most: int = _MAX_WIDTH) -> int:
        """A whole number that decides the model's size."""
        self._note_size(key)
        return self.count(key, least=least, most=most)

    def optional_size(self, key: str) -> int | None:
        """The same, or None where null means that it follows from the others."""
        if self._values.get(key) is None:
            return None
        self._note_size(key)
        return self.count(key, least=1, most=_MAX_WIDTH)

    def _note_size(self, key: str) -> None:
        self._sizes[key] = key in self._given

    def vocab_size(self) -> int:
        """The tokens of the vocabulary."""
        return self.size("vocab_size", most=_MAX_VOCABULARY)

    def layers(self, key: str = "num_hidden_layers") -> int:
        """The number of blocks."""
        return self.size(key, most=_MAX_LAYERS)

    def positions(self, key: str = "max_position_embeddings") -> int:
        """The longest sequence the model is made for."""
        return self.count(key, most=_MAX_POSITIONS)

    def count(self, key: str, *, least: int = 0, most: int = _MAX_POSITIONS) -> int:
        """A whole number; null and text are refused."""
        value = self._values.get(key)
        if value is None or isinstance(value, str):
            raise self.refuse(key, f"is not a whole number from {least:,} to {most:,}")
        return _count(f"config.{key}", value, least=least, most=most)

    def optional_count(self, key: str, *, least: int = 1, most: int = _MAX_WIDTH) -> int | None:
        """A whole number, or None where the config says null."""
        return None if self._values.get(key) is None else self.count(key, least=least, most=most)

    def sliding_window(self) -> int | None:
        """``sliding_window``, None for full attention.

        transformers 5 writes every key, defaults and nulls included; ``rope_parameters`` and
        ``initializer_range`` together mark its files. Where such a file has no ``sliding_window``, a null was
        dropped on the way and is null again, not the default.
        """
        key = "sliding_window"
        complete = "rope_parameters" in self._given and "initializer_range" in self._given
        if complete and key not in self._given and self._values.get(key) is not None:
            self._dropped_nulls.append(key)
            return None
        return self.optional_count(key, most=_MAX_POSITIONS)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._values.get(key)
        if not isinstance(value, bool):
            raise self.refuse(key, "is not true or false")
        return value

    def optional_flag(self, key: str) -> bool:
        """True, false, or null for false."""
        return self._values.get(key) is not None and self.flag(key)

    def fraction(self, key: str) -> float:
        """A number from 0 to 1; null counts as 0 (LlamaConfig allows it for its dropout)."""
        value = self._values.get(key)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.refuse(key, "is not a number from 0 to 1")
        return float(value)

    def soft_cap(self, key: str) -> bool:
        """Whether a soft cap is set: a positive number, or null for none."""
        value = self._values.get(key)
        if value is None:
            return False
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.refuse(key, "is neither a positive number nor null")
        return True

    def activation(self, key: str) -> str:
        """The name of an activation function."""
        value = self._values.get(key)
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            raise self.refuse(key, f"is not one of {', '.join(_ACTIVATIONS)}")
        return value

    def attention_types(self, layers: int) -> tuple[str, ...] | None:
        """``layer_types``: full_attention or sliding_attention for each block; None when not given."""
        value = self._values.get("layer_types")
        if value is None:
            return None
        if (
            not isinstance(value, list | tuple)
            or len(value) != layers
            or any(part not in _ATTENTION_TYPES for part in value)
        ):
            raise self.refuse(
                "layer_types",
                f"is not a list of {layers} values (one a layer) from {', '.join(_ATTENTION_TYPES)}",
            )
        return tuple(value)

    def divisor(self, key: str, whole: int, whole_name: str) -> int:
        """A size that must divide ``whole``, for example the heads that share the hidden size."""
        value = self.size(key)
        if whole % value:
            raise self.refuse(key, f"does not divide {whole_name} ({whole:,})")
        return value

    def kv_heads(self, heads: int, key: str = "num_key_value_heads") -> int:
        """Key/value heads: null means as many as heads; otherwise a divisor of them."""
        value = self.optional_size(key)
        if value is None:
            return heads
        if heads % value:
            raise self.refuse(key, f"does not divide num_attention_heads ({heads:,})")
        return value

    def rotary_dim(self, head_dim: int, key: str) -> int:
        """Elements of a head that are rotated; the share is in rope_parameters, in old configs at ``key``."""
        nested = self._values.get("rope_parameters")
        if isinstance(nested, Mapping) and "partial_rotary_factor" in nested:
            share = nested["partial_rotary_factor"]
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
                raise self.refuse("rope_parameters", "has a partial_rotary_factor that is not from 0 to 1")
        else:
            share = self.fraction(key)
        rotated = int(head_dim * share)
        if rotated < 2:
            raise self.refuse(
                key, f"rotates {rotated} of a head's {head_dim} elements; at least 2 are needed"
            )
        # the table has two entries a frequency, and frequencies for every second element
        return rotated + rotated % 2 if rotated < head_dim else rotated

    def experts(self, key: str) -> int:
        """The experts of a sparse block."""
        return self.size(key, most=_MAX_EXPERTS)

    def experts_per_token(self, experts: int) -> int:
        """How many experts a token goes to."""
        return self.count("num_experts_per_tok", least=1, most=experts)
