"""What trainmem says, in the words of the page: labels for names of levers, controls for commands.

Errors and notes name a lever as a job's JSON and the command line write it. Here, and nowhere else, they get the
labels that a reader sees. What is quoted, and what stands between backticks, stays as it is.
"""

from __future__ import annotations

import re

from trainmem_space.levers import FORM, VALUE_WORDS

__all__ = ["in_words", "of_address"]

_A_MODEL = "choose one from the list, type a Hugging Face id (owner/name), or paste a config.json"
_ADVICE = {
    "give a catalogue name (`trainmem models`) or a config": _A_MODEL,
    "allowed are the names that `trainmem models` lists, or a config": _A_MODEL,
    "is not a catalogue name; run `trainmem models`": f"is not a name; {_A_MODEL}",
    "is not a device name; run `trainmem devices`": "is not a device; choose one from the list",
    "give its config.json itself": "paste its config.json",
    'set lora (--lora-rank), for example {"rank": 16, "targets": "all-linear"}': "set LoRA to on",
    "needs a mode: ": "needs Sharding: ",
    "choose one of `trainmem devices`": "choose another one",
    "say base_quantization": "set Base weights",
}
"""What to do about it: on the command line, and here."""

_LABELS = {lever.field: lever.label for lever in FORM.values()} | {
    "sharding": "Sharding",
    "budget": "Budget",
    "family": "Family",
}
# Names and values that no sentence has as words of its own; other names are labels only where they come first.
_UNMISTAKABLE = {name: label for name, label in _LABELS.items() if re.search(r"[_.]", name)} | {
    value: said for value, said in VALUE_WORDS.items() if re.search(r"[_\d]", value) and value != "bf16"
}
_NAME = re.compile(rf"\b(?:{'|'.join(sorted(map(re.escape, _UNMISTAKABLE), key=len, reverse=True))})\b")
_KEY_OF_CONFIG = re.compile(r"\bconfig\.(?!json\b)(\w+)")
_KEPT = re.compile(r'("(?:[^"\\]|\\.)*"|`[^`]*`)')


def in_words(message: str) -> str:
    """An error, a warning or a note as the page says it: ``"micro_batch: 0 is not"`` is "Micro batch: 0 is not"."""
    head, colon, rest = _with_advice(message).partition(":")
    return _outside_quotes(f"{_LABELS.get(head, head)}{colon}{rest}")


def of_address(message: str) -> str:
    """An error in the page's address: what is allowed there stays in the address's own words."""
    head, colon, rest = _with_advice(message).partition(":")
    return f"In the address, {_LABELS.get(head) or _outside_quotes(head)}{colon}{rest}"


def _with_advice(message: str) -> str:
    for said, here in _ADVICE.items():
        message = message.replace(said, here)
    return message


def _outside_quotes(text: str) -> str:
    parts = _KEPT.split(text)
    parts[::2] = [
        _NAME.sub(lambda name: _UNMISTAKABLE[name[0]], _KEY_OF_CONFIG.sub(r"\1 in config.json", part))
        for part in parts[::2]
    ]
    return "".join(parts)
