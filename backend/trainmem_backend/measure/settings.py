"""What a run of the harness may be told, and the environment its workers start in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from trainmem_backend.measure.guard.cap import DEFAULT_FLOOR_BYTES

__all__ = ["Settings", "worker_environment", "workers_ready"]

_THROWS_BEFORE_CUDAMALLOC = (2, 13)
_RENAMED_VARIABLE = (2, 10)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How trials are run.

    ``capacity_text`` is ``"118GiB"`` where the machine stands in for a smaller one: rows then carry
    memory figures only and say so. ``overlap`` above 1 lets trials that only ask for memory run beside
    each other, as many as are predicted to fit. ``deadline_seconds``: no trial starts after it; the next
    run goes on from there. ``pretend_bytes`` exercises everything on the CPU with made-up counters.
    """

    floor_bytes: int = DEFAULT_FLOOR_BYTES
    interval_seconds: float = 0.05
    capacity_bytes: int | None = None
    capacity_text: str | None = None
    force: bool = False
    overlap: int = 1
    deadline_seconds: float | None = None
    trial_seconds: float = 900.0
    allocator_settings: str = ""
    command: str = ""
    commit: str = ""
    pretend_bytes: int | None = None


def workers_ready(overlap: int, cores: int) -> tuple[int, int]:
    """How many workers wait beside those at work, at first and at most: as many as run at once, and
    where there are cores for it four, then up to eight."""
    return max(overlap, min(4, cores // 4), 1), max(overlap, min(8, cores // 2), 1)


def _torch_version() -> tuple[int, int]:
    try:
        major, minor, *_ = metadata.version("torch").split(".")
        return int(major), int(minor)
    except (metadata.PackageNotFoundError, ValueError):
        return (0, 0)


def worker_environment(
    settings: Settings,
    base: Mapping[str, str] | None = None,
    torch_version: tuple[int, int] | None = None,
) -> dict[str, str]:
    """The worker's environment: the allocator's settings where torch reads them, nothing fetched,
    nothing sent.

    From torch 2.13 on the allocator is also told to fail before it asks the driver for more than there
    is: on an integrated GPU the asking alone can hang the host. Earlier versions refuse the word, and
    rely on the cap.
    """
    version = torch_version if torch_version is not None else _torch_version()
    environment = dict(os.environ if base is None else base)
    variable = "PYTORCH_ALLOC_CONF" if version >= _RENAMED_VARIABLE else "PYTORCH_CUDA_ALLOC_CONF"
    words = [
        word
        for word in (
            environment.get("PYTORCH_ALLOC_CONF") or environment.get("PYTORCH_CUDA_ALLOC_CONF"),
            settings.allocator_settings,
        )
        if word
    ]
    if version >= _THROWS_BEFORE_CUDAMALLOC and not any("throw_on_cudamalloc_oom" in word for word in words):
        words.append("throw_on_cudamalloc_oom:True")
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        environment.pop(name, None)
    if words:
        environment[variable] = ",".join(words)
    environment.update(
        HF_HUB_OFFLINE="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        DO_NOT_TRACK="1",
        TOKENIZERS_PARALLELISM="false",
        PYTHONUNBUFFERED="1",
    )
    environment.setdefault("OMP_NUM_THREADS", "2")
    return environment
