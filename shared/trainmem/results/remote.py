"""Measured rows of a published dataset at a pinned revision, and the bundled ones where it cannot be
reached."""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from trainmem.hub import HOST, is_hub_id
from trainmem.results.published import published_rows
from trainmem.results.row import MeasuredRow, RowError, read_rows

__all__ = ["DATASET_VARIABLE", "ROWS_FILE", "RowSource", "current_rows", "rows_from"]

DATASET_VARIABLE = "TRAINMEM_DATASET"
"""Names the dataset to read: ``owner/name@revision`` with the full commit, because a branch can change."""

ROWS_FILE = "data/rows.jsonl"
TIMEOUT_SECONDS = 5.0
MOST_BYTES = 64 << 20

_PINNED = re.compile(r"(?P<repo>[^@]+)@(?P<revision>[0-9a-f]{40})")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSource:
    """The rows, where they are from, and why not from elsewhere."""

    rows: tuple[MeasuredRow, ...]
    origin: str
    note: str | None = None


def _download(repo: str, revision: str) -> bytes:
    url = f"https://{HOST}/datasets/{repo}/resolve/{revision}/{ROWS_FILE}"
    request = urllib.request.Request(url, headers={"User-Agent": "trainmem"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        body: bytes = answer.read(MOST_BYTES + 1)
    return body


def rows_from(pinned: str, download: Callable[[str, str], bytes] = _download) -> tuple[MeasuredRow, ...]:
    """The rows of ``owner/name@revision``. Raises `RowError` or `OSError`."""
    match = _PINNED.fullmatch(pinned.strip())
    if match is None or not is_hub_id(match["repo"]):
        raise RowError(
            f"{DATASET_VARIABLE}: {pinned[:80]!r} is not owner/name@ and the 40 digits of a commit"
        )
    body = download(match["repo"], match["revision"])
    if len(body) > MOST_BYTES:
        raise RowError(f"{DATASET_VARIABLE}: {ROWS_FILE} is larger than {MOST_BYTES >> 20} MiB")
    return tuple(read_rows(body.decode("utf-8", errors="replace"), source=f"{match['repo']}/{ROWS_FILE}"))


def choose_rows(
    environment: Mapping[str, str], download: Callable[[str, str], bytes] = _download
) -> RowSource:
    """The pinned rows where the environment names a dataset and it answers, else the bundled ones."""
    pinned = environment.get(DATASET_VARIABLE, "")
    bundled = RowSource(rows=published_rows(), origin="bundled with this version")
    if not pinned:
        return bundled
    if environment.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        return RowSource(rows=bundled.rows, origin=bundled.origin, note="HF_HUB_OFFLINE is set")
    try:
        return RowSource(rows=rows_from(pinned, download), origin=pinned)
    except (RowError, OSError) as error:
        return RowSource(rows=bundled.rows, origin=bundled.origin, note=f"{pinned[:80]}: {error}")


@cache
def current_rows() -> RowSource:
    """`choose_rows` for this process, asked once."""
    return choose_rows(os.environ)
