"""How the columns travel to the parent: a JSON header and flat arrays of integers behind it."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any, BinaryIO

__all__ = ["FAILED", "READ", "decode", "encode"]

READ = b"trainmem snapshot 1\n"
FAILED = b"trainmem refusal 1\n\n"
"""The first bytes of an answer; both have the same length."""

_LENGTH_BYTES = 8
_ITEM_BYTES = {"B": 1, "i": 4, "I": 4, "Q": 8}


def encode(out: BinaryIO, kind: bytes, header: dict[str, Any], columns: Iterable[array[int]] = ()) -> None:
    """Write an answer. ``header`` must not use the key ``columns``: it holds their types and lengths."""
    columns = list(columns)
    shapes = [[column.typecode, len(column)] for column in columns]
    # ASCII, so that lone surrogates survive as escapes; NaN is no JSON.
    text = json.dumps({**header, "columns": shapes}, ensure_ascii=True, allow_nan=False).encode("ascii")
    out.write(kind + len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    for column in columns:
        out.write(memoryview(column).cast("B"))
    out.flush()


def decode(answer: bytes) -> tuple[bytes, dict[str, Any], list[array[int]]]:
    """The kind, header and columns of an answer; ``ValueError`` when it is not whole."""
    kind = answer[: len(READ)]
    start = len(READ) + _LENGTH_BYTES
    end = start + int.from_bytes(answer[len(READ) : start], "little")
    if kind not in (READ, FAILED) or end > len(answer):
        raise ValueError("the answer has no header")
    header = json.loads(answer[start:end])
    if not isinstance(header, dict):
        raise ValueError("the header is not an object")
    columns: list[array[int]] = []
    view = memoryview(answer)
    for typecode, length in header.pop("columns"):
        column: array[int] = array(typecode)
        size = _ITEM_BYTES[typecode] * length
        if column.itemsize != _ITEM_BYTES[typecode] or length < 0 or end + size > len(answer):
            raise ValueError("the answer is cut off")
        column.frombytes(view[end : end + size])
        columns.append(column)
        end += size
    if end != len(answer):
        raise ValueError("more follows the end of the answer")
    return kind, header, columns
