"""JSON that somebody typed, pasted or saved: a job, or a model's config.json."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

__all__ = ["parse_json"]

_MOST_DIGITS = 40
"""No field takes a number of so many digits, and its message says which field that was."""


def parse_json(text: str, *, unique_keys: bool = False) -> Any:
    """The value that ``text`` writes. A whole number keeps its first 40 digits: Python refuses to read thousands.

    ``unique_keys``: refuse a key that stands twice in one object, of which JSON's readers take the last.
    Raises ValueError with a reason that follows "is".
    """
    pairs = _unique if unique_keys else None
    try:
        return json.loads(text, parse_int=_whole, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _whole(digits: str) -> int:
    return int(digits[:_MOST_DIGITS])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"not one job: {json.dumps(twice[:40])} stands in it twice")
    return found
