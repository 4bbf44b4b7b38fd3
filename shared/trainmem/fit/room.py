"""How much memory a job may take: a device's own, or a budget that stands in for it."""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.device import ASSUMED_CONTEXT_BYTES, Device, device
from trainmem.job import JobError
from trainmem.units import format_gib, parse_bytes

__all__ = ["Room", "room"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """A device and what a job's process may take of it.

    ``usable_bytes`` is the device's `Device.usable_bytes`, or the budget. The CUDA context is part of it and
    lies outside the caching allocator, which may hold ``limit_bytes``. ``is_device_assumed``: a budget was named
    without a device, which then stands for kernels and rates alone.
    """

    device: Device
    usable_bytes: int
    is_budget: bool = False
    is_device_assumed: bool = False

    @property
    def context_bytes(self) -> int:
        """The CUDA context, measured or assumed."""
        measured = self.device.context_bytes
        return ASSUMED_CONTEXT_BYTES if measured is None else measured

    @property
    def limit_bytes(self) -> int:
        """What the caching allocator may reserve."""
        return max(0, self.usable_bytes - self.context_bytes)

    @property
    def place(self) -> str:
        """To follow a verb: "on the DGX Spark (GB10)", or "in a budget of ..." where no device was named."""
        if not self.is_device_assumed:
            return f"on {self.name}"
        return f"in a budget of {format_gib(self.usable_bytes)}, {self.rates} (say --device for another)"

    @property
    def rates(self) -> str:
        """Whose rates a step's time is of."""
        return f"with the rates of the {self.device.title.removeprefix('NVIDIA ').partition(' (')[0]}"

    @property
    def name(self) -> str:
        """For sentences: "the DGX Spark (GB10)", or "24.0 GiB of ..."."""
        title = f"the {self.device.title.removeprefix('NVIDIA ')}"
        return f"{format_gib(self.usable_bytes)} of {title}" if self.is_budget else title


def room(name: str, budget: str | int | None = None, *, is_device_assumed: bool = False) -> Room:
    """The room on the device called ``name``, or ``budget`` (bytes or "118GiB") with that device's kernels.

    ``is_device_assumed`` matters to a budget alone.

    Raises `JobError` for an unknown device, one without CUDA, and a budget that is no size above the CUDA
    context.
    """
    found = device(name)
    if not found.cuda:
        raise JobError(
            f"device: {found.name} has no CUDA, so these jobs do not run there; choose one of `trainmem devices`"
        )
    if budget is None or budget == "":
        return Room(device=found, usable_bytes=found.usable_bytes)
    size = parse_bytes(budget, field="budget")
    answer = Room(device=found, usable_bytes=size, is_budget=True, is_device_assumed=is_device_assumed)
    if answer.limit_bytes == 0:
        raise JobError(
            f"budget: {budget} is below the CUDA context alone, {format_gib(answer.context_bytes)}; "
            "allowed is anything larger"
        )
    return answer
