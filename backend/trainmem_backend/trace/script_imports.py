"""The libraries of a training script, imported before a virtual GPU is in place."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["load_what_it_names"]

_LIBRARIES = (
    "transformers",
    "accelerate",
    "peft",
    "bitsandbytes",
    "torchvision",
    "trl",
    "timm",
    "diffusers",
    "datasets",
    "triton",
    "torch.nn.attention.flex_attention",
)
"""They look for a GPU, or make tensors, when they are imported."""
_NAMES_BITSANDBYTES = re.compile(r"bitsandbytes|BitsAndBytes|load_in_[48]bit|adamw_8bit|adamw_bnb|paged_")


def load_what_it_names(script: Path) -> None:
    """Import what a script, and the files beside it that it imports, take from these libraries.

    Name by name, since transformers loads a module when a name of it is first asked for. What is not installed,
    and a file that is no Python, is left for the script to fail on.
    """
    for text in _sources(script):
        with contextlib.suppress(SyntaxError, ValueError):
            for module, names in _imports(ast.parse(text)):
                if any(module == library or module.startswith(f"{library}.") for library in _LIBRARIES):
                    _load(module, names)
        if _NAMES_BITSANDBYTES.search(text):
            _load("bitsandbytes", ())


def _load(module: str, names: tuple[str, ...]) -> None:
    with contextlib.suppress(Exception):
        found = importlib.import_module(module)
        for name in names:
            getattr(found, name, None)


def _sources(script: Path) -> Iterator[str]:
    """The script's text, and that of every file beside it that it imports, directly or not."""
    folder, waiting, seen = script.resolve().parent, [script.resolve()], set[Path]()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
            imports = list(_imports(ast.parse(text)))
        except (OSError, SyntaxError, ValueError):
            continue
        yield text
        for module, names in imports:
            for name in (module, *(f"{module}.{name}" for name in names)):
                place = folder.joinpath(*name.strip(".").split("."))
                waiting += [
                    file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()
                ]


def _imports(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every module that is imported anywhere in the code, with the names taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", tuple(alias.name for alias in node.names)
