"""Numbers as people write them: "28.8 GiB", "19.8e9", "42M", "774e6 × 16", "25%"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from trainmem.units import GB, GIB, KIB, MIB

__all__ = ["UNITS", "AnswerError", "Unit", "in_unit", "parse", "scale_of", "show"]

Unit = Literal[
    "GiB",
    "GB",
    "MiB",
    "KiB",
    "B per parameter",
    "bits",
    "parameters",
    "elements",
    "tokens",
    "times",
    "%",
    "count",
]
UNITS: tuple[Unit, ...] = get_args(Unit)

_Words: TypeAlias = Mapping[str, float]
_SIZES: _Words = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": GB,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1 << 40,
}
_MAGNITUDES: _Words = {
    "k": 1e3,
    "thousand": 1e3,
    "m": 1e6,
    "million": 1e6,
    "b": 1e9,
    "bn": 1e9,
    "billion": 1e9,
    "t": 1e12,
    "trillion": 1e12,
}
_SIZE_UNITS: dict[Unit, int] = {"GiB": GIB, "GB": GB, "MiB": MIB, "KiB": KIB}
_NOUNS: dict[Unit, frozenset[str]] = {
    "B per parameter": frozenset(
        {"b", "byte", "bytes", "b/param", "bytes/param", "b/parameter", "bytes/parameter"}
    ),
    "bits": frozenset({"bit", "bits"}),
    "parameters": frozenset({"parameters", "params", "param", "p"}),
    "elements": frozenset({"elements", "numbers", "values", "floats"}),
    "tokens": frozenset({"tokens", "token"}),
    "times": frozenset({"x", "×", "times"}),
    "%": frozenset({"%", "percent"}),
    "count": frozenset({"gpus", "gpu", "sequences", "batches", "micro", "layers", "blocks"}),
}
_ALMOST_SURELY_BYTES = 1e6
_LONGEST = 100

_NUMBER = r"\d[\d,_']*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?"
# an x multiplies only before a number; alone it means "times"
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>{_NUMBER})|(?P<times>[*×·x])(?=\s*[\d.(])|(?P<sign>[-+/()]))", re.IGNORECASE
)


class AnswerError(ValueError):
    """An answer that cannot be read as a number; that is not the same as a wrong one."""


def scale_of(unit: Unit) -> float:
    """How much of the base (bytes for sizes, ones for all else) one of ``unit`` is."""
    return _SIZE_UNITS.get(unit, 1)


def in_unit(value: float, unit: Unit) -> float:
    """``value`` in the base, expressed in ``unit``."""
    return value / scale_of(unit)


def show(value: float, unit: Unit) -> str:
    """``value`` (in the base) as a key is shown: three digits for sizes, whole numbers in full."""
    number = in_unit(value, unit)
    if unit == "parameters" and abs(number) >= 1e6:
        for size, word in ((1e9, "billion"), (1e6, "million")):
            if abs(number) >= size:
                return f"{_digits(number / size)} {word}"
    text = _digits(number)
    return {"times": f"{text} times", "count": text, "%": f"{text}%"}.get(unit, f"{text} {unit}")


def _digits(number: float) -> str:
    if number == round(number) or abs(number) >= 1000:
        return f"{number:,.0f}"
    decimals = max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{number:,.{min(decimals, 6)}f}"


def parse(text: str, unit: Unit) -> float:
    """The number in ``text``, in the base of ``unit``.

    A size without a unit counts in ``unit``, but a million or more of them is read as bytes ("19.8e9"). Short
    sums are worked out ("774e6 × 16"). Raises `AnswerError` with one sentence for anything else.
    """
    if len(text) > _LONGEST:
        raise AnswerError(f"an answer of at most {_LONGEST} characters, please: a number and a unit")
    number, rest = _evaluate(
        re.sub(r"^\s*(?:about|roughly|[~≈=×x*])\s*", "", text, flags=re.IGNORECASE).strip()
    )
    words = rest.lower().replace(" per ", "/").split()
    if unit in _SIZE_UNITS:
        return _size(number, words, unit)
    return _plain(number, words, unit)


def _size(number: float, words: list[str], unit: Unit) -> float:
    if not words:
        return number * (1 if abs(number) >= _ALMOST_SURELY_BYTES else scale_of(unit))
    if len(words) == 1 and words[0] in _SIZES:
        return number * _SIZES[words[0]]
    if len(words) == 1 and words[0] in ("g", "m", "k") and words[0] == unit[0].lower():
        return number * scale_of(unit)
    raise AnswerError(f"{' '.join(words)!r} is not a size; write B, KiB, MiB, GiB, MB or GB")


def _plain(number: float, words: list[str], unit: Unit) -> float:
    nouns = _NOUNS[unit]
    if words and words[-1] in nouns and not (unit == "parameters" and words[-1] == "b"):
        words = words[:-1]
    if words and words[0] in _MAGNITUDES and unit in ("parameters", "elements", "tokens"):
        number *= _MAGNITUDES[words[0]]
        words = words[1:]
    if words and words[0] in nouns:
        words = words[1:]
    if words:
        raise AnswerError(f"{' '.join(words)!r} is not understood; the answer is a number of {_noun(unit)}")
    return number


def _noun(unit: Unit) -> str:
    return {
        "B per parameter": "bytes per parameter",
        "times": "times",
        "%": "percent",
        "count": "things",
    }.get(unit, unit)


def _number(text: str) -> float:
    digits = text.replace("_", "").replace("'", "")
    head, comma, tail = digits.partition(",")
    # one comma that does not set off three digits is a decimal comma
    if comma and "," not in tail and "." not in tail and not re.match(r"\d{3}(?:e|$)", tail, re.IGNORECASE):
        digits = f"{head}.{tail}"
    try:
        return float(digits.replace(",", ""))
    except ValueError as error:
        raise AnswerError(f"{text.strip()!r} is not a number") from error


def _evaluate(text: str) -> tuple[float, str]:
    """The value of the sum at the start of ``text``, and the words after it."""
    tokens: list[str | float] = []
    position = 0
    while match := _TOKEN.match(text, position):
        number = match["number"]
        tokens.append(_number(number) if number else "*" if match["times"] else match["sign"])
        position = match.end()
    if not any(isinstance(token, float) for token in tokens):
        said = f"{text[:40]!r} has no number" if text.strip() else "there is no number"
        raise AnswerError(f"{said}; write for example 28.8 GiB or 19.8e9")
    value, end = _sum(tokens, 0)
    if end != len(tokens):
        raise AnswerError(f"{text[:40]!r} is not a sum that can be worked out; write the number")
    if not math.isfinite(value):
        raise AnswerError(f"{text[:40]!r} is not a finite number")
    return value, text[position:].strip()


def _sum(tokens: list[str | float], at: int) -> tuple[float, int]:
    value, at = _product(tokens, at)
    while at < len(tokens) and tokens[at] in ("+", "-"):
        right, after = _product(tokens, at + 1)
        value, at = (value + right if tokens[at] == "+" else value - right), after
    return value, at


def _product(tokens: list[str | float], at: int) -> tuple[float, int]:
    value, at = _atom(tokens, at)
    while at < len(tokens) and tokens[at] in ("*", "/"):
        right, after = _atom(tokens, at + 1)
        if tokens[at] == "/" and right == 0:
            raise AnswerError("nothing can be divided by 0")
        value, at = (value * right if tokens[at] == "*" else value / right), after
    return value, at


def _atom(tokens: list[str | float], at: int) -> tuple[float, int]:
    if at >= len(tokens):
        raise AnswerError("the sum ends too early")
    token = tokens[at]
    if isinstance(token, float):
        return token, at + 1
    if token in ("-", "+"):
        value, at = _atom(tokens, at + 1)
        return (-value if token == "-" else value), at
    if token == "(":
        value, at = _sum(tokens, at + 1)
        if at < len(tokens) and tokens[at] == ")":
            return value, at + 1
    raise AnswerError("the sum cannot be worked out; write the number")
