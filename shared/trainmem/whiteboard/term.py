"""One line of the sum: a bucket, an equation, and the equation with the numbers put in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainmem.buckets import Bucket
from trainmem.units import GIB, format_bytes, format_gib

__all__ = ["Certainty", "Term", "factor", "share_term", "shown", "term"]

Certainty = Literal["exact", "approximate", "assumed"]
"""exact: counted from real shapes; approximate: a published formula; assumed: a library's default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One line of the whiteboard.

    ``equation`` has symbols ("P × 4 B"), ``substituted`` the numbers and the result
    ("774,030,080 × 4 B = 2.88 GiB"), ``source`` where the formula comes from.
    """

    bucket: Bucket
    name: str
    equation: str
    substituted: str
    bytes: int
    certainty: Certainty
    source: str


def shown(size_bytes: int) -> str:
    """A size as the board writes it: GiB to three digits, MiB or less where GiB would be all zeros."""
    return (
        format_gib(size_bytes)
        if abs(size_bytes) >= GIB // 10 or size_bytes == 0
        else format_bytes(size_bytes)
    )


def factor(value: float) -> str:
    """A coefficient without needless digits: 34, 40.5, 2.03125."""
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def term(
    bucket: Bucket, name: str, equation: str, numbers: str, size_bytes: int, certainty: Certainty, source: str
) -> Term:
    """A `Term` whose ``substituted`` is ``numbers`` and the result."""
    return Term(
        bucket=bucket,
        name=name,
        equation=equation,
        substituted=f"{numbers} = {shown(size_bytes)}",
        bytes=size_bytes,
        certainty=certainty,
        source=source,
    )


def share_term(
    bucket: Bucket,
    name: str,
    equation: str,
    numbers: str,
    size_bytes: int,
    ranks: int,
    certainty: Certainty,
    source: str,
) -> Term:
    """A `term` of which one rank holds the largest of ``ranks`` equal shares."""
    if ranks == 1:
        return term(bucket, name, equation, numbers, size_bytes, certainty, source)
    whole = f"({numbers})" if " + " in numbers else numbers
    symbols = f"({equation})" if " + " in equation else equation
    share = -(-size_bytes // ranks)
    return term(bucket, name, f"{symbols} / N", f"{whole} / {ranks:,}", share, certainty, source)
