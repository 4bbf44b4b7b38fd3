"""Paths of other people's machines, shortened to what says where the code is and not whose it is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

__all__ = ["shorten_paths"]

_PACKAGES = re.compile(r"^(?:.*[/\\])?(?:site-packages|dist-packages)[/\\]")
_STANDARD_LIBRARY = re.compile(r"^.*[/\\]lib[/\\]python3\.\d+t?[/\\]", re.IGNORECASE)
_PATH = re.compile(r"^(?:[A-Za-z]:)?[/\\]")
_OWNER = re.compile(
    r"([/\\](?:home|users|mnt/c/users|scratch|data/users|nfs/users)[/\\])[^/\\\s:]+|([/\\]root)(?=[/\\])",
    re.IGNORECASE,
)


def shorten_paths(strings: Sequence[str]) -> list[str]:
    """The strings, each absolute path cut down.

    Inside an installed package or the standard library the path starts there. Other files are shown from the
    folder they have in common, and a file that shares none with another by its name alone. Owners' names in
    paths inside longer text become ``~``.
    """
    shortened = list(strings)
    families: dict[tuple[str, ...], list[tuple[int, list[str]]]] = defaultdict(list)
    for number, text in enumerate(strings):
        inside = _PACKAGES.match(text) or _STANDARD_LIBRARY.match(text)
        if inside:
            shortened[number] = text[inside.end() :].replace("\\", "/")
        elif _PATH.match(text):
            parts = re.split(r"[/\\]+", text)
            families[tuple(parts[:3])].append((number, parts))
        elif "/" in text or "\\" in text:
            shortened[number] = _OWNER.sub(r"\1\2~", text)
    for members in families.values():
        common = _common_folders([parts for _, parts in members])
        for number, parts in members:
            shortened[number] = "/".join(parts[common:]) or "/"
    return shortened


def _common_folders(paths: list[list[str]]) -> int:
    folders = [path[:-1] for path in paths]
    depth = min(map(len, folders))
    for level in range(depth):
        if len({folder[level] for folder in folders}) > 1:
            return level
    return depth
