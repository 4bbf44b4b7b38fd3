"""What stands in for functions and methods of libraries that may not be loaded, or lack them in this release."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from trainmem_backend.trace.errors import TraceError

__all__ = ["attribute", "stand_in_or_note", "stand_ins"]


@contextlib.contextmanager
def stand_ins(values: Iterable[tuple[str, str, Any]]) -> Iterator[None]:
    """Inside, each value is at its place: a module's name, and a dotted path in it. What is not there stays so."""
    with contextlib.ExitStack() as stack:
        for module, path, value in values:
            owner: Any = sys.modules.get(module)
            *parents, own = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent, None)
            if hasattr(owner, own):
                stack.enter_context(mock.patch.object(owner, own, value))
        yield


def attribute(owner: object, path: str) -> Any:
    """What is at a dotted ``path`` of ``owner``; None where this release lacks it."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


def stand_in_or_note(
    stack: contextlib.ExitStack,
    stand_in: AbstractContextManager[object],
    what: str,
    note: Callable[[str], None],
) -> None:
    """Enter ``stand_in``, or leave it out where a release of a library lacks what it takes the place of.

    Most programs use none of it: one private name that moved must not end the trace of every program. ``note`` is
    told ``what`` is then not replayed as it is on a GPU.
    """
    try:
        stack.enter_context(stand_in)
    except (AttributeError, ImportError, LookupError, TypeError, TraceError) as error:
        note(f"{what} as installed here: not known to the trace, and not replayed as on a GPU ({error})")
