"""Builds the allocator's machine code into the package; without a C compiler the package is Python alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent / "shared"))


class CompileAllocator(BuildHookInterface):
    """Runs `trainmem.allocator.compiled.build` before a wheel or an editable installation is made."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the library to a wheel, which then is for this machine's kind alone."""
        from trainmem.allocator.compiled.build import build
        from trainmem.allocator.compiled.library import LIBRARY

        trouble = build()
        if trouble is not None:
            self.app.display_warning(f"the allocator stays Python, which is slower: {trouble}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(str(LIBRARY.relative_to(self.root)))
