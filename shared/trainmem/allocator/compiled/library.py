"""The machine code beside this file, if it was built and fits its sources."""

from __future__ import annotations

import ctypes
import zlib
from functools import cache
from pathlib import Path

__all__ = ["LIBRARY", "SOURCES", "fingerprint", "is_compiled", "library"]

_HERE = Path(__file__).parent
LIBRARY = _HERE / "caching.library"
"""Named so that Python does not take it for a module of its own."""

SOURCES = tuple(
    _HERE / name
    for name in (
        "addresses.h",
        "addresses.c",
        "pool.h",
        "allocator.h",
        "allocator.c",
        "caching.c",
        "reading.c",
        "events.c",
        "laying.c",
    )
)

_Number, _Address, _Small = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32
_FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "trainmem_new": (_Address, [_Number, _Number, _Number, _Number, _Small, _Number]),
    "trainmem_delete": (None, [_Address]),
    "trainmem_feed": (
        _Number,
        [_Address, _Address, _Number, _Number, _Address, _Address, _Number, _Address, _Address],
    ),
    "trainmem_empty_cache": (_Small, [_Address]),
    "trainmem_load_kernels": (_Small, [_Address, _Number]),
    "trainmem_counters": (None, [_Address, _Address]),
    "trainmem_block_bytes": (None, [_Address, _Address]),
    "trainmem_layout": (_Number, [_Address, _Number, _Address]),
    "trainmem_lay": (_Number, [*[_Address] * 4, _Small, _Number, *[_Address] * 5]),
    "trainmem_first_freed": (_Number, [_Address, _Number]),
    "trainmem_event_of": (_Number, [_Address, _Number, _Number]),
}


def fingerprint() -> int:
    """Of the C sources; a library built from others is not used."""
    return zlib.crc32(b"".join(path.read_bytes() for path in SOURCES))


@cache
def library() -> ctypes.CDLL | None:
    """The functions of the C sources; None where they were not built, or from other sources."""
    try:
        found = ctypes.CDLL(str(LIBRARY))
        if ctypes.c_uint32.in_dll(found, "trainmem_fingerprint").value != fingerprint():
            return None
    except (OSError, ValueError):
        return None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def is_compiled() -> bool:
    """Whether there is machine code that fits the sources."""
    return library() is not None
