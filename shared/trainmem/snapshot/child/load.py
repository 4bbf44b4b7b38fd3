"""From the bytes of a file to built-in containers, numbers and strings."""

from __future__ import annotations

import binascii
import io
import json
import pickle
import re
import zlib
from typing import Any, NoReturn

from .refusal import Refusal

__all__ = ["decompress", "load"]

_GZIP = b"\x1f\x8b"
_PICKLE_STARTS = b"\x80(]}"
_EMBEDDED = re.compile(rb'"base64"\s*:\s*"([A-Za-z0-9+/=]{8,})"')
_OTHER_FORMATS = (
    (b"PK", "a zip archive; torch.save makes those, a memory snapshot is a plain pickle"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; decompress it first"),
    (b"\xfd7zXZ", "compressed with xz; decompress it first"),
    (b"BZh", "compressed with bzip2; decompress it first"),
)


class _DataUnpickler(pickle.Unpickler):
    """Builds built-in containers, numbers and strings. Nothing is allowed by name, so nothing is called."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise Refusal("it asks for a Python object by name; a memory snapshot holds only plain data")

    def persistent_load(self, identifier: Any, /) -> NoReturn:
        raise Refusal("it refers to an object outside the file; a memory snapshot holds only plain data")


def decompress(data: bytes, most_bytes: int) -> bytes:
    """The bytes themselves, or what they hold when they are gzip; at most ``most_bytes``."""
    if not data.startswith(_GZIP):
        return data
    parts: list[bytes] = []
    room = most_bytes
    rest = data
    while rest.startswith(_GZIP):
        stream = zlib.decompressobj(wbits=31)
        try:
            part = stream.decompress(rest, room + 1)
        except zlib.error:
            raise Refusal("its gzip stream is damaged") from None
        room -= len(part)
        if room < 0 or stream.unconsumed_tail:
            raise Refusal(f"it holds more than {most_bytes // 1_000_000:,} MB when decompressed")
        if not stream.eof:
            raise Refusal("its gzip stream is cut off")
        parts.append(part)
        rest = stream.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def load(data: bytes) -> tuple[Any, str]:
    """The file's content and its format: ``pickle 4``, ``json`` or ``html``."""
    for magic, name in _OTHER_FORMATS:
        if data.startswith(magic):
            raise Refusal(f"it is {name}")
    if data.startswith(_GZIP):
        raise Refusal("it is gzip inside gzip")
    # A UTF-8 mark that editors put before text; json's own decoder for it would have to be imported in here.
    text = data.removeprefix(b"\xef\xbb\xbf")
    start = text[:64].lstrip()[:1]
    if not data.strip(b"\0"):
        raise Refusal(
            "it is empty: the process ended, or the stack unwinder failed, before the snapshot was written"
        )
    if start == b"<":
        return _load_pickle(_embedded(data)), "html"
    # "[" and "{" begin JSON and no pickle: pickle's own empty containers are "]" and "}".
    if start in (b"{", b"["):
        return _load_json(text), "json"
    if data[:1] in (bytes([byte]) for byte in _PICKLE_STARTS):
        protocol = data[1] if data[:1] == b"\x80" and len(data) > 1 else 0
        return _load_pickle(data), f"pickle {protocol}"
    raise Refusal("it is neither a pickle, nor gzip, JSON or PyTorch's HTML page")


def _load_pickle(data: bytes) -> Any:
    # In memory, so that a length that lies about the file fails as truncated before anything is allocated.
    stream = io.BytesIO(data)
    try:
        content = _DataUnpickler(stream).load()
    except (Refusal, MemoryError):
        raise
    except RecursionError:
        raise Refusal("it is nested too deeply") from None
    except Exception:
        raise Refusal("its pickle is damaged or cut off") from None
    rest = data[stream.tell() :]
    if rest.count(0) != len(rest):
        raise Refusal("more data follows the end of its pickle")
    return content


def _load_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except MemoryError:
        raise
    except RecursionError:
        raise Refusal("it is nested too deeply") from None
    except Exception:
        raise Refusal("its JSON is damaged or cut off") from None


def _embedded(page: bytes) -> bytes:
    match = _EMBEDDED.search(page)
    if match is None:
        raise Refusal("it is an HTML page without a memory snapshot in it")
    try:
        return binascii.a2b_base64(match[1])
    except binascii.Error:
        raise Refusal("the snapshot in its HTML page is damaged") from None
