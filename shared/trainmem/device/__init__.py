"""Devices as data: what is sold, what torch shows, what a job may use, and how fast it is."""

from __future__ import annotations

from functools import cache

from trainmem.device.data import DEVICES
from trainmem.device.spec import ASSUMED_CONTEXT_BYTES, Device
from trainmem.job import JobError, _shown
from trainmem.suggest import close_matches

__all__ = ["ASSUMED_CONTEXT_BYTES", "Device", "device", "devices"]


def devices() -> tuple[Device, ...]:
    """Every device, big machines first."""
    return DEVICES


@cache
def _by_any_name() -> dict[str, Device]:
    return {name: item for item in DEVICES for name in (item.name, *item.aliases)}


def device(name: str) -> Device:
    """The device with this name or alias, whatever its case.

    Raises `JobError` that lists the closest names, and all of them, for any other.
    """
    wanted = "-".join(name.casefold().replace("_", " ").split())
    found = _by_any_name().get(wanted)
    if found is not None:
        return found
    close = dict.fromkeys(_by_any_name()[match].name for match in close_matches(wanted, _by_any_name()))
    hint = f"; close to it: {', '.join(close)}" if close else ""
    names = ", ".join(item.name for item in DEVICES)
    raise JobError(f"device: {_shown(name)} is not a known device{hint}; allowed are {names}")
