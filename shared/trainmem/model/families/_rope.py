"""How a config scales rotary positions: the ``rope_type`` that transformers' rotary embedding reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainmem.model.config import ConfigReader

__all__ = ["ROPE_TYPES", "rope_type", "rope_types"]

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional")
"""Those of transformers.modeling_rope_utils (5.17)."""


def rope_type(
    config: ConfigReader, default: str = "default", renamed: Mapping[str, str] | None = None
) -> str:
    """The one type of all blocks; a ``rope_scaling`` that is there and not empty wins over ``rope_parameters``.

    ``default``: where there is neither. ``renamed``: the types that older configs of a family called otherwise.
    """
    key = "rope_scaling" if config.raw("rope_scaling") else "rope_parameters"
    given = _mapping(config, key)
    if given is None:
        return default
    found = given.get("rope_type", given.get("type", "default"))
    return _checked(config, key, (renamed or {}).get(found, found) if isinstance(found, str) else found)


def rope_types(config: ConfigReader, kinds: Iterable[str], scaled: tuple[str, ...]) -> dict[str, str]:
    """The type of each kind of block, where ``rope_parameters`` has an object for each.

    ``scaled``: the kinds that ``rope_scaling`` of older configs is for.
    """
    found = {}
    for kind in kinds:
        given = (_mapping(config, "rope_parameters") or {}).get(kind) or {"rope_type": "default"}
        if not isinstance(given, Mapping):
            raise config.refuse("rope_parameters", f"has a {kind} that is not an object")
        scaling = _mapping(config, "rope_scaling") if kind in scaled else None
        merged = {**given, **(scaling or {})}
        key = "rope_scaling" if scaling else "rope_parameters"
        found[kind] = _checked(config, key, merged.get("rope_type", merged.get("type", "default")))
    return found


def _mapping(config: ConfigReader, key: str) -> Mapping[str, Any] | None:
    value = config.raw(key)
    if value is not None and not isinstance(value, Mapping):
        raise config.refuse(key, "is neither an object nor null")
    return value


def _checked(config: ConfigReader, key: str, found: object) -> str:
    if found not in ROPE_TYPES:
        raise config.refuse(key, f"has a rope_type that is not one of {', '.join(ROPE_TYPES)}")
    return str(found)
