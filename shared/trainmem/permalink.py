"""A job as a query string that fits in a link: ``model=gpt2-774m&micro_batch=8``. Defaults are left out."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any
from urllib.parse import parse_qsl, urlencode

from trainmem.job import JobError, Lora, Sharding, TrainingJob

__all__ = ["decode", "encode"]

_LONGEST_QUERY = 64 * 1024
_LARGEST_CONFIG_BYTES = 256 * 1024
_SHARDING_NAMES = {"sharding": "mode"} | {
    name: name
    for name in ("data_parallel", "tensor_parallel", "pipeline_parallel", "reshard_after_forward", "offload")
}
"""Names in the query, and the fields of `Sharding` they stand for."""
_NAMES = frozenset(TrainingJob(model="any").to_json()) | frozenset(_SHARDING_NAMES)


def encode(job: TrainingJob) -> str:
    """The query string of ``job``, without a question mark; `decode` gives the same job back.

    ``lora=16`` is rank 16 on all linear layers, ``lora=8:q_proj,v_proj`` names them. A config is compressed
    JSON in URL-safe base64. Raises `JobError` for a job that `decode` would refuse because it is too long.
    """
    plain = TrainingJob(model="any")
    found: dict[str, str] = {}
    for name, value in job.to_json().items():
        if name == "sharding":
            defaults = Sharding().to_json()
            for key, field in _SHARDING_NAMES.items():
                if value[field] != defaults[field]:
                    found[key] = _text(value[field])
        elif name == "config" and value is not None:
            found[name] = _packed(value)
        elif name == "lora" and job.lora is not None:
            found[name] = _lora_text(job.lora)
        elif name == "model":
            if value is not None:
                found[name] = value
        elif value != getattr(plain, name):
            found[name] = _text(value)
    query = urlencode(found)
    if len(query) > _LONGEST_QUERY:
        raise JobError(
            f"link: this job makes {len(query):,} characters; at most {_LONGEST_QUERY:,} fit in a link"
        )
    return query


def decode(query: str) -> TrainingJob:
    """The job that a query string describes; a leading question mark is fine.

    Raises `JobError` with one line that names the field for everything that `encode` would not have written.
    """
    if len(query) > _LONGEST_QUERY:
        raise JobError(f"link: {len(query):,} characters; at most {_LONGEST_QUERY:,}")
    try:
        pairs = parse_qsl(query.removeprefix("?"), keep_blank_values=True, max_num_fields=64, errors="strict")
    except ValueError as error:
        raise JobError("link: not a query string in UTF-8 of at most 64 fields") from error
    data: dict[str, Any] = {}
    sharding: dict[str, Any] = {}
    for name, value in pairs:
        if name not in _NAMES:
            raise JobError(f"{_shown(name)}: not part of a link; allowed are {', '.join(sorted(_NAMES))}")
        if name in data or _SHARDING_NAMES.get(name) in sharding:
            raise JobError(f"{name}: given twice")
        if name in _SHARDING_NAMES:
            sharding[_SHARDING_NAMES[name]] = _flag(value) if name == "reshard_after_forward" else value
        elif name == "config":
            data[name] = _unpacked(value)
        elif name == "lora":
            data[name] = _lora(value)
        else:
            data[name] = value
    return TrainingJob.from_json({**data, "sharding": sharding or None})


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _flag(value: str) -> object:
    return {"0": False, "1": True}.get(value, value)


def _lora_text(lora: Lora) -> str:
    if isinstance(lora.targets, str):
        return str(lora.rank)
    return f"{lora.rank}:{','.join(lora.targets)}"


def _lora(value: str) -> dict[str, Any]:
    rank, colon, targets = value.partition(":")
    return {"rank": rank, "targets": targets} if colon else {"rank": rank}


def _packed(config: dict[str, Any]) -> str:
    text = json.dumps(config, separators=(",", ":"), sort_keys=True)
    if len(text) > _LARGEST_CONFIG_BYTES:
        raise JobError(f"config: {len(text):,} bytes; at most {_LARGEST_CONFIG_BYTES:,} fit in a link")
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def _unpacked(value: str) -> dict[str, Any]:
    try:
        packed = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(packed, _LARGEST_CONFIG_BYTES).decode()
        config = json.loads(text) if unpacker.eof else None
    except (ValueError, zlib.error, RecursionError) as error:
        raise JobError("config: not a packed config; copy the whole link") from error
    if not isinstance(config, dict):
        raise JobError(f"config: not a JSON object of at most {_LARGEST_CONFIG_BYTES:,} bytes")
    return config


def _shown(name: str) -> str:
    text = "".join(c if c.isprintable() else "?" for c in name)
    return text if len(text) <= 40 else text[:37] + "..."
