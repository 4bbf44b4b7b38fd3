"""The other ranks of a trial that runs on several GPUs: the same work, without an answer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["main", "rank_environment", "start_others"]


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets for one process of one machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start_others(message: Mapping[str, Any], ranks: int, kind: str) -> None:
    """Make this process rank 0 and start the rest in its process group, so that the guards end all of
    them."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    os.environ.update(rank_environment(0, ranks, port))
    for rank in range(1, ranks):
        other = subprocess.Popen(
            [sys.executable, "-m", "trainmem_backend.measure.ranks", kind],
            stdin=subprocess.PIPE,
            env={**os.environ, **rank_environment(rank, ranks, port)},
        )
        assert other.stdin is not None
        other.stdin.write(json.dumps(dict(message)).encode() + b"\n")
        other.stdin.close()


def main() -> int:
    """One rank other than the first: run as ``python -m trainmem_backend.measure.ranks KIND``."""
    import warnings

    warnings.simplefilter("ignore")
    message = json.loads(sys.stdin.readline())
    import torch

    from trainmem_backend.measure.build import build
    from trainmem_backend.measure.device import CudaDevice, PretendedDevice
    from trainmem_backend.measure.guard.cap import Cap
    from trainmem_backend.measure.tasks.step import measure_step
    from trainmem_backend.measure.trial import Trial

    kind = sys.argv[1]
    device = CudaDevice() if kind == "cuda" else PretendedDevice()
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device.open()
    if message.get("cap_bytes") is not None:
        device.hold_to(Cap(cap_bytes=message["cap_bytes"], reason=""))
    trial = Trial.from_json(message["trial"])
    measure_step(trial, device, lambda job: build(job, kind, ranks=trial.ranks))
    return 0


if __name__ == "__main__":
    os._exit(main())
