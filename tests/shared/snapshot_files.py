"""Building small snapshots for the tests of `trainmem.snapshot`."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from trainmem.snapshot.analysis import Analysis, DeviceAnalysis, analyse
from trainmem.snapshot.examples import example_path
from trainmem.snapshot.reader import read_snapshot

MIB = 1 << 20
BASE = 0x7F0000000000


def frame(name: str, filename: str, line: int = 1) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}


MAIN = frame("<module>", "/home/alice/run/train.py", 3)
CALL = frame("_call_impl", "/env/site-packages/torch/nn/modules/module.py", 1790)
BUILD = [frame("__init__", "/env/site-packages/torch/nn/modules/linear.py", 109), MAIN]
FORWARD = [frame("forward", "/home/alice/run/model.py", 40), CALL, MAIN]
LOSS = [frame("cross_entropy", "/env/site-packages/torch/nn/functional.py", 3504), MAIN]
BACKWARD = [frame("backward", "/env/site-packages/torch/_tensor.py", 631), MAIN]
ENGINE: list[dict[str, Any]] = []
"""The autograd engine's own thread: no Python frames."""
STEP = [
    frame("_multi_tensor_adam", "/env/site-packages/torch/optim/adam.py", 791),
    frame("step", "/env/site-packages/torch/optim/adam.py", 248),
    MAIN,
]
STATE = [
    frame("_init_group", "/env/site-packages/torch/optim/adam.py", 178),
    frame("step", "/env/site-packages/torch/optim/adam.py", 238),
    MAIN,
]
ZERO_GRAD = [frame("zero_grad", "/env/site-packages/torch/optim/optimizer.py", 1066), MAIN]
USER = [MAIN]


class Tape:
    """Events of one device, placed one after another in one segment."""

    def __init__(self, *, base: int = BASE, segment: int = 1 << 40) -> None:
        self.base = base
        self.top = base
        self.time_us = 1_000_000
        self.events: list[dict[str, Any]] = []
        self.sizes: dict[int, int] = {}
        if segment:
            self.add("segment_alloc", base, segment)

    def add(self, action: str, addr: int, size: int, frames: Any = None, **more: Any) -> None:
        self.time_us += 1
        event = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": self.time_us, **more}
        if frames is not None:
            event["frames"] = frames
        self.events.append(event)

    def alloc(self, size: int, frames: Any = USER) -> int:
        addr = self.top
        self.top += -(-size // 512) * 512
        self.sizes[addr] = size
        self.add("alloc", addr, size, frames)
        return addr

    def free(self, addr: int, frames: Any = USER) -> None:
        self.add("free_requested", addr, self.sizes[addr], frames)
        self.add("free_completed", addr, self.sizes[addr], frames)


def snap(*traces: Any, segments: Iterable[Any] = (), **more: Any) -> dict[str, Any]:
    """A snapshot of `Tape`s or lists of events, one a device."""
    lists = [trace.events if isinstance(trace, Tape) else trace for trace in traces]
    return {"segments": list(segments), "device_traces": lists, **more}


def segment(address: int, blocks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    total = sum(block["size"] for block in blocks)
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": blocks,
        **more,
    }


def block(size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    return {"size": size, "requested_size": size, "state": state, **more}


def understood(content: Any, protocol: int = 4) -> Analysis:
    data = content if isinstance(content, bytes) else pickle.dumps(content, protocol)
    return analyse(read_snapshot(data))


def device(content: Any) -> DeviceAnalysis:
    """The first device, with the sums that must hold of any."""
    first = understood(content).devices[0]
    check(first)
    return first


def check(device: DeviceAnalysis) -> None:
    """What must hold of every device of every file."""
    assert sum(device.buckets_at_peak.values()) == device.peak_allocated_bytes
    assert sum(site.bytes for site in device.call_sites_at_peak) == device.peak_allocated_bytes
    assert all(size >= 0 for size in device.buckets_at_peak.values())
    assert min(device.curves.allocated) >= 0
    spans = device.timetable.spans
    if spans:
        assert spans[0].start == 0
        assert spans[-1].end == len(device.trace)
        assert all(a.end == b.start for a, b in pairwise(spans))


def example_bytes(name: str) -> bytes:
    return gzip.decompress(example_path(name).read_bytes())


def training_step(tape: Tape, weights: list[int], state: list[int], *, sizes: list[int]) -> None:
    """A plain step over `weights`: three saved tensors a weight, a loss, gradients, Adam's state at first."""
    saved = [tape.alloc(3 * MIB, FORWARD) for _ in weights for _ in range(3)]
    loss = tape.alloc(40 * MIB, LOSS)
    tape.add("alloc", tape.top, 4, BACKWARD)
    one = tape.top
    tape.sizes[one] = 4
    tape.top += 512
    gradients = []
    for size in sizes:
        scratch = tape.alloc(5 * MIB, ENGINE)
        gradients.append(tape.alloc(size, ENGINE))
        tape.free(scratch, ENGINE)
        for _ in range(3):
            tape.free(saved.pop(), ENGINE)
    tape.free(loss, ENGINE)
    tape.free(one, BACKWARD)
    if not state:
        state.extend(tape.alloc(size, STATE) for size in sizes for _ in range(2))
    roots = [tape.alloc(size, STEP) for size in sizes]
    for root in roots:
        tape.free(root, STEP)
    for gradient in gradients:
        tape.free(gradient, ZERO_GRAD)


def training(steps: int = 3, *, sizes: tuple[int, ...] = (8 * MIB, 12 * MIB)) -> Tape:
    tape = Tape()
    weights = [tape.alloc(size, BUILD) for size in sizes]
    state: list[int] = []
    for _ in range(steps):
        training_step(tape, weights, state, sizes=list(sizes))
    return tape
