"""`TrainingJob`: everything that decides a training step's memory, in the words of the contract.

One frozen value describes the job on every rung (whiteboard, tape, trace, measured), on the command line
(JSON), in published rows and in the web app. Wrong input raises `JobError`: one line that names the field, the
value and what is allowed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from trainmem.special_floats import tagged, untagged
from trainmem.units import parse_number

__all__ = [
    "ACTIVATION_DTYPE_BYTES",
    "LEVERS",
    "MOST_COUNT",
    "WEIGHT_DTYPE_BYTES",
    "Attention",
    "BaseQuantization",
    "Checkpointing",
    "JobError",
    "Lora",
    "Loss",
    "Offload",
    "Optimizer",
    "Precision",
    "Sharding",
    "ShardingMode",
    "Task",
    "TrainingJob",
    "ZeroGrad",
]

Task = Literal["causal_lm", "sequence_classification"]
Precision = Literal[
    "fp32",
    "amp_bf16",
    "amp_fp16",
    "bf16",
    "bf16_kahan",
    "bf16_stochastic",
    "bf16_master",
    "bf16_master_fp32_grads",
    "fsdp_mp_bf16",
]
Optimizer = Literal[
    "adamw",
    "adamw_fused",
    "adamw_loop",
    "adamw8bit",
    "paged_adamw8bit",
    "lion8bit",
    "sgd",
    "sgd_momentum",
    "adafactor",
    "muon",
]
Attention = Literal["sdpa", "eager"]
Checkpointing = Literal["none", "full", "selective", "sqrt"]
Loss = Literal["standard", "liger_fused"]
ZeroGrad = Literal["none", "zeros"]
BaseQuantization = Literal["none", "nf4", "int8"]
ShardingMode = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp2"]
Offload = Literal["none", "cpu", "nvme"]

ACTIVATION_DTYPE_BYTES: dict[Precision, int] = {
    "fp32": 4,
    "amp_bf16": 2,
    "amp_fp16": 2,
    "bf16": 2,
    "bf16_kahan": 2,
    "bf16_stochastic": 2,
    "bf16_master": 2,
    "bf16_master_fp32_grads": 2,
    "fsdp_mp_bf16": 2,
}
"""Bytes of an element in the matrix products of a precision."""

WEIGHT_DTYPE_BYTES: dict[Precision, int] = {
    **ACTIVATION_DTYPE_BYTES,
    "amp_bf16": 4,
    "amp_fp16": 4,
    "fsdp_mp_bf16": 4,
}
"""Bytes of an element of the weights that the model holds: autocast and FSDP's policy cast copies of fp32 ones."""

_OPTIMIZER_ALIASES = {"sgdm": "sgd_momentum"}
_MAX_TOKENS = 1 << 31
MOST_COUNT = 1 << 20
_COUNTS = (("micro_batch", MOST_COUNT), ("sequence_length", 1 << 27), ("accumulation", MOST_COUNT))


class JobError(ValueError):
    """A job that cannot be: the message names the field, the value and what is allowed, in one line."""


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than thirty digits"
    value = untagged(value)
    spelt = isinstance(value, str | list | dict) or value in (math.inf, -math.inf)
    text = json.dumps(value, default=str) if spelt else str(value)
    text = _printable(text)
    return text if len(text) <= 60 else text[:57] + "..."


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> Any:
    if not isinstance(value, str) or value not in allowed:
        raise JobError(f"{name}: {_shown(value)} is not one of {', '.join(allowed)}")
    return value


def _count(name: str, value: object, *, most: int, least: int = 1) -> int:
    """A whole number from JSON or a form: 8, 8.0 and "8" are one thing; True, NaN and 1e400 are not."""
    number: object = value
    if isinstance(value, str):
        try:
            number = parse_number(value)
        except ValueError:
            number = None
    whole = (
        isinstance(number, int | float)
        and not isinstance(number, bool)
        and (isinstance(number, int) or math.isfinite(number))
        and number == int(number)
    )
    if not whole or not least <= int(number) <= most:  # type: ignore[call-overload]
        raise JobError(f"{name}: {_shown(value)} is not a whole number from {least:,} to {most:,}")
    whole_number: int = int(number)  # type: ignore[call-overload]
    return whole_number


_DEEPEST = 32


def _plain_json(name: str, value: object, depth: int = 0) -> None:
    """Refuse what no config.json has: NaN, numbers beyond 64 bits, endless nesting."""
    if depth > _DEEPEST:
        raise JobError(f"{name[:60]}: nested more than {_DEEPEST} deep")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise JobError(f"{name[:60]}: {_shown(key)} is not a key that JSON has")
            _whole_text(name, key)
            _plain_json(f"{name}.{key}" if depth == 0 else name, inner, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _plain_json(name, inner, depth + 1)
    elif isinstance(value, float):
        if math.isnan(value):
            raise JobError(f"{name[:60]}: {value} is not a number that JSON has")
    elif isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise JobError(f"{name[:60]}: {_shown(value)} is not a number of 64 bits")
    elif isinstance(value, str):
        _whole_text(name, value)
    elif value is not None:
        raise JobError(f"{name[:60]}: {type(value).__name__} is not a value that JSON has")


def _whole_text(name: str, value: str) -> None:
    """Refuse half a surrogate pair, which no link, file or terminal can carry."""
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise JobError(f"{_printable(name)[:60]}: {_shown(value)} is not text: half a character is missing")


class _Config(dict[str, Any]):
    """A config that was looked through, and its text, so that a job made of another one need not look again."""

    __slots__ = ("text",)

    def __init__(self, config: Mapping[str, Any]) -> None:
        found = dict(config)
        _plain_json("config", found)
        super().__init__(tagged(found))
        self.text = json.dumps(self, sort_keys=True, default=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """Low-rank adapters: rank, and which linear layers get one ("all-linear", or names such as "q_proj")."""

    rank: int = 16
    targets: str | tuple[str, ...] = "all-linear"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", _count("lora.rank", self.rank, most=4096))
        targets = self.targets
        if isinstance(targets, str):
            if targets != "all-linear":
                targets = tuple(part.strip() for part in targets.split(",") if part.strip())
        elif isinstance(targets, list | tuple) and all(
            isinstance(t, str) and t.strip() and "," not in t for t in targets
        ):
            targets = tuple(t.strip() for t in targets)
            targets = "all-linear" if targets == ("all-linear",) else targets
        else:
            targets = ()
        if not targets:
            raise JobError(
                f'lora.targets: {_shown(self.targets)} is neither "all-linear" nor a list of layer names'
            )
        for name in () if isinstance(targets, str) else targets:
            _whole_text("lora.targets", name)
        object.__setattr__(self, "targets", targets)

    def to_json(self) -> dict[str, Any]:
        """As the contract writes it."""
        return {
            "rank": self.rank,
            "targets": list(self.targets) if isinstance(self.targets, tuple) else self.targets,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharding:
    """How the job is spread over devices; the answer is always for one rank."""

    mode: ShardingMode = "none"
    data_parallel: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    reshard_after_forward: bool = True
    offload: Offload = "none"

    def __post_init__(self) -> None:
        _choice("sharding.mode", self.mode, get_args(ShardingMode))
        _choice("sharding.offload", self.offload, get_args(Offload))
        for name in ("data_parallel", "tensor_parallel", "pipeline_parallel"):
            object.__setattr__(self, name, _count(f"sharding.{name}", getattr(self, name), most=65536))
        if not isinstance(self.reshard_after_forward, bool):
            raise JobError(
                f"sharding.reshard_after_forward: {_shown(self.reshard_after_forward)} is not true or false"
            )
        if self.mode == "none" and self.data_parallel > 1:
            raise JobError(
                f"sharding.data_parallel: {self.data_parallel} needs a mode: ddp, zero1, zero2, zero3 or fsdp2"
            )

    def to_json(self) -> dict[str, Any]:
        """As the contract writes it."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """One training step: a model, the levers, and the device whose kernels and capacity count.

    ``config`` is a Hugging Face ``config.json`` and wins over ``model``, a catalogue name.
    """

    model: str | None = None
    config: Mapping[str, Any] | None = field(default=None, compare=False)
    task: Task = "causal_lm"
    micro_batch: int = 1
    sequence_length: int = 1024
    accumulation: int = 1
    precision: Precision = "amp_bf16"
    optimizer: Optimizer = "adamw"
    attention: Attention = "sdpa"
    checkpointing: Checkpointing = "none"
    loss: Loss = "standard"
    zero_grad: ZeroGrad = "none"
    lora: Lora | None = None
    base_quantization: BaseQuantization = "none"
    sharding: Sharding = field(default_factory=Sharding)
    device: str = "spark"
    _config_text: str | None = field(init=False, repr=False, default=None)
    """The config as JSON: what compares and hashes in its place, so that true is not 1."""

    def __post_init__(self) -> None:
        if self.model is not None and (not isinstance(self.model, str) or not self.model.strip()):
            raise JobError(f"model: {_shown(self.model)} is not a catalogue name; run `trainmem models`")
        if self.model is not None:
            _whole_text("model", self.model)
        if self.config is not None and not isinstance(self.config, Mapping):
            raise JobError(f"config: {_shown(self.config)} is not an object like a Hugging Face config.json")
        if self.config is not None:
            checked = self.config if type(self.config) is _Config else _Config(self.config)
            object.__setattr__(self, "config", checked)
            object.__setattr__(self, "_config_text", checked.text)
        if self.model is None and self.config is None:
            raise JobError("model: missing; give a catalogue name (`trainmem models`) or a config")
        if isinstance(self.optimizer, str):
            object.__setattr__(self, "optimizer", _OPTIMIZER_ALIASES.get(self.optimizer, self.optimizer))
        for name, allowed in LEVERS.items():
            value = getattr(self, name)
            if type(value) is not str or value not in allowed:
                _choice(name, value, allowed)
        for name, most in _COUNTS:
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                object.__setattr__(self, name, _count(name, value, most=most))
        if self.micro_batch * self.sequence_length > _MAX_TOKENS:
            raise JobError(
                f"micro_batch x sequence_length: {self.micro_batch:,} x {self.sequence_length:,} tokens at once; "
                f"at most {_MAX_TOKENS:,}"
            )
        if self.base_quantization != "none" and self.lora is None:
            raise JobError(
                f"base_quantization: {self.base_quantization} trains only with adapters; set lora (--lora-rank), "
                'for example {"rank": 16, "targets": "all-linear"}'
            )
        if not isinstance(self.device, str):
            raise JobError(f"device: {_shown(self.device)} is not a device name; run `trainmem devices`")
        _whole_text("device", self.device)

    @classmethod
    def from_json(cls, data: object) -> TrainingJob:
        """The job in a JSON object; missing keys take their defaults, null means the default too.

        Raises `JobError` for anything that is not such an object, an unknown key included.
        """
        if not isinstance(data, Mapping):
            raise JobError(f"job: {_shown(data)} is not a JSON object")
        known = {f.name for f in fields(cls) if f.init}
        unknown = [key for key in data if key not in known]
        if unknown:
            raise JobError(
                f"{_shown(unknown[0])}: not a field of a job; allowed are {', '.join(sorted(known))}"
            )
        values = {key: value for key, value in data.items() if value is not None}
        values["lora"] = _part(Lora, "lora", values.get("lora"))
        values["sharding"] = _part(Sharding, "sharding", values.get("sharding")) or Sharding()
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """Every field, as the contract writes it."""
        out: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        out["config"] = dict(self.config) if self.config is not None else None
        out["lora"] = self.lora.to_json() if self.lora else None
        out["sharding"] = self.sharding.to_json()
        return out

    def with_(self, **changes: Any) -> TrainingJob:
        """The same job with some fields changed, validated anew."""
        return TrainingJob(**{name: getattr(self, name) for name in _GIVEN} | changes)


def _part(kind: Any, name: str, value: object) -> Any:
    if value is None or isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise JobError(f"{name}: {_shown(value)} is not a JSON object")
    known = [f.name for f in fields(kind)]
    for key in value:
        if key not in known:
            raise JobError(f"{name}.{_shown(key)}: unknown; allowed are {', '.join(known)}")
    return kind(**{key: part for key, part in value.items() if part is not None})


_GIVEN = tuple(f.name for f in fields(TrainingJob) if f.init)

LEVERS: dict[str, tuple[str, ...]] = {
    "task": get_args(Task),
    "precision": get_args(Precision),
    "optimizer": get_args(Optimizer),
    "attention": get_args(Attention),
    "checkpointing": get_args(Checkpointing),
    "loss": get_args(Loss),
    "zero_grad": get_args(ZeroGrad),
    "base_quantization": get_args(BaseQuantization),
}
"""Every lever that is a choice, with the values allowed."""
