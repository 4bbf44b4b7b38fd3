"""Pinned scenarios between two visits: the browser keeps their links, this server nothing."""

from __future__ import annotations

import logging

from trainmem.job import JobError, TrainingJob
from trainmem.permalink import decode, encode
from trainmem_space import answers
from trainmem_space.session import MOST_PINS

__all__ = ["STORAGE_KEY", "STORAGE_SECRET", "from_browser", "to_browser"]

STORAGE_KEY = "trainmem-pins-v1"
# Only scrambles what is stored, so that pins survive a restart of the server.
STORAGE_SECRET = "trainmem-pins"

_log = logging.getLogger(__name__)


def to_browser(pins: list[TrainingJob]) -> list[str]:
    """The links of the pins; one too large for a link lasts as long as the page."""
    links = []
    for pin in pins:
        try:
            links.append(encode(pin))
        except JobError:
            continue
    return links


def from_browser(stored: object) -> list[TrainingJob]:
    """The pins that a browser kept, without any that this version cannot read or answer.

    Every answer of the page draws them, so one that fails would take all others with it.
    """
    pins: list[TrainingJob] = []
    links = stored[:MOST_PINS] if isinstance(stored, list) else []
    for link in links:
        try:
            pin = decode(str(link))
            answers.answer(pin, "fast")
        except ValueError:
            continue
        except Exception:
            _log.exception("a pin without an answer")
            continue
        if pin not in pins:
            pins.append(pin)
    return pins
