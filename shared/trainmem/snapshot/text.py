"""Text out of a stranger's file, made harmless before anything else sees it."""

from __future__ import annotations

import re

__all__ = ["clean", "csv_cell"]

# Control characters (NUL, ANSI's escape and line ends among them), marks that reorder or hide text, and
# halves of surrogate pairs, which cannot be encoded.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_REPLACEMENT = "\ufffd"
_FORMULA_STARTS = ("=", "+", "-", "@")


def clean(text: str, *, most_characters: int = 400) -> str:
    """One line of visible characters in reading order; what is not becomes U+FFFD, what is too long is cut."""
    text = _HARMFUL.sub(_REPLACEMENT, text)
    return text if len(text) <= most_characters else text[: most_characters - 1] + "…"


def csv_cell(value: str | int) -> str:
    """A CSV cell that a spreadsheet shows and does not compute: text that looks like a formula gets a quote."""
    if isinstance(value, int):
        return str(value)
    if value.lstrip().startswith(_FORMULA_STARTS):
        value = "'" + value
    return '"' + value.replace('"', '""') + '"'
