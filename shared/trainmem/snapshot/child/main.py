"""The whole life of the process: take the file from standard input, answer on standard output, end."""

from __future__ import annotations

import json
import os
import sys
from typing import BinaryIO

from .confine import confine, lower_memory, shut_descriptors
from .load import decompress, load
from .refusal import Refusal
from .tabulate import Budget, tabulate
from .wire import FAILED, READ, encode

__all__ = ["main"]


def main() -> None:
    """``sys.argv[1]`` holds the limits as JSON: ``most_bytes``, ``most_rows``."""
    limits = json.loads(sys.argv[1])
    confine(limits["most_bytes"])
    # Python looks names up lazily in codecs; what may be needed must be there before the door closes.
    "".encode("ascii") + "".encode("utf-8", "surrogatepass")
    b"".decode("utf-16"), b"".decode("utf-32")
    shut_descriptors()
    out = sys.stdout.buffer
    try:
        _answer(sys.stdin.buffer, out, limits["most_bytes"], limits["most_rows"])
    except Refusal as refusal:
        encode(out, FAILED, {"reason": str(refusal)})
    except MemoryError:
        encode(out, FAILED, {"reason": "it needs more memory to read than its size warrants"})
    # Freeing a million dictionaries one by one takes longer than leaving.
    os._exit(0)


def _answer(file: BinaryIO, out: BinaryIO, most_bytes: int, most_rows: int) -> None:
    size = os.fstat(file.fileno()).st_size
    if size > most_bytes:
        raise Refusal(f"it is larger than {most_bytes // 1_000_000:,} MB")
    data = file.read(size)
    compressed = data[:2] == b"\x1f\x8b"
    data = decompress(data, most_bytes)
    size = len(data)
    lower_memory(size)
    content, format_name = load(data)
    del data
    header, columns = tabulate(content, Budget(size, most_rows))
    header["source"] = {"format": format_name, "gzip": compressed, "bytes": size}
    encode(out, READ, header, columns)
