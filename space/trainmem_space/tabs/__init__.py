"""The tabs, in the order they are shown. Adding one is one line in `TABS` and one module beside this file.

A tab's module has ``build(shell)``, called inside its ``gr.Tab``; `trainmem_space.shell.Shell` says what the
shell offers. Rules for colours and text are in ``static/style.css``; a module may add its own as ``CSS``.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType

__all__ = ["TABS", "TabEntry"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TabEntry:
    """One tab: the word in the URL (``?tab=clock``), the title, and the module that builds it."""

    key: str
    title: str

    def module(self) -> ModuleType | None:
        """The tab's module, or None while it is not written yet."""
        name = f"{__name__}.{self.key}"
        return importlib.import_module(name) if importlib.util.find_spec(name) else None


TABS = (
    TabEntry(key="calculator", title="Calculator"),
    TabEntry(key="clock", title="One step on a clock"),
    TabEntry(key="fit", title="What fits"),
    TabEntry(key="snapshot", title="Snapshot"),
    TabEntry(key="measured", title="Measured"),
    TabEntry(key="quiz", title="Quiz"),
)
