"""What stands in for functions and methods of libraries that may not be loaded, or lack them in this release."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

__all__ = ["stand_ins"]


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
