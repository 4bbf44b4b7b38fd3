"""How fast a big snapshot is read and understood, beside PyTorch's own viewer on the same file.

    python bench/snapshot.py                     # 1M events, about 88 MB
    python bench/snapshot.py --events 3000000    # larger

Each contender runs in a process of its own; times are wall-clock, memory is the most that the process and its
children held resident at one time. PyTorch's viewer writes the page that a browser then analyses; it is
skipped where torch is not installed. Mosaic is run where `mosaic` is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from trainmem.allocator import CachingAllocator

DEPTH = 30
LAYERS = 24
MIB = 1 << 20
STREAM = 94_850_123_456_784
"""A stream is a pointer."""

DEFAULT_POOL = (0, 0)

ANALYSE = """
import sys
from trainmem.snapshot.reader import read_snapshot
from trainmem.snapshot.analysis import analyse
from trainmem.snapshot.view import view_of
analysis = analyse(read_snapshot(sys.argv[1]))
views = [view_of(analysis, device) for device in analysis.devices]
first = analysis.devices[0]
print(f"{len(first.trace):,} events, {first.timetable.steps} steps, peak {first.peak_allocated_bytes:,} bytes")
"""
MOSAIC = """
import sys
from mosaic.libmosaic.analyzer.memory_abstract import MemoryAbstract
abstract = MemoryAbstract(memory_snapshot_file=sys.argv[1])
abstract.load_memory_snapshot()
abstract.memory_snapshot.analyze_memory_snapshot(opt="memory_peak")
print("peak by stack")
"""


def contenders(file: Path, folder: Path) -> dict[str, list[str]]:
    """Commands by name, ours first; the others as their documentation calls them."""
    found = {"trainmem": [sys.executable, "-c", ANALYSE, str(file)]}
    if importlib.util.find_spec("torch"):
        viewer = [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", str(file)]
        found["torch trace_plot"] = [*viewer, "-o", str(folder / "page.html")]
    if importlib.util.find_spec("mosaic"):
        found["mosaic"] = [sys.executable, "-c", MOSAIC, str(file)]
    return found


class Program:
    """A training loop that exists only as allocator events."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.allocator = CachingAllocator()
        self.events: list[dict[str, Any]] = []
        self.time_us = 1_790_000_000_000_000
        self.segments = 0
        self.live: dict[int, tuple[int, int, list[Any]]] = {}
        self.frames: dict[tuple[str, str, int], dict[str, Any]] = {}
        self.stacks: dict[tuple[Any, ...], list[dict[str, Any]]] = {}

    def stack(self, *named: tuple[str, str, int]) -> list[dict[str, Any]]:
        """A stack of `DEPTH` frames that begins with the named ones; the same list for the same frames."""
        if named not in self.stacks:
            filler = [("run", f"/opt/trainer/loop_{n}.py", 10 + n) for n in range(DEPTH - len(named) - 1)]
            whole = [*named, *filler, ("<module>", "/opt/trainer/train.py", 7)]
            self.stacks[named] = [self._frame(*frame) for frame in whole]
        return self.stacks[named]

    def _frame(self, name: str, file: str, line: int) -> dict[str, Any]:
        key = (name, file, line)
        if key not in self.frames:
            self.frames[key] = {"name": name, "filename": file, "line": line}
        return self.frames[key]

    def event(self, action: str, address: int, size: int, frames: list[Any]) -> None:
        self.time_us += 3
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": STREAM,
                "time_us": self.time_us,
                "compile_context": "N/A",
                "user_metadata": "",
                "pool_id": DEFAULT_POOL,
                "frames": frames,
            }
        )

    def malloc(self, size: int, frames: list[Any]) -> int:
        before = self.allocator.reserved_bytes
        number = self.allocator.malloc(size)
        address = self.allocator.address(number)
        grown = self.allocator.reserved_bytes - before
        if grown:
            self.event("segment_alloc", address, grown, frames)
        self.event("alloc", address, size, frames)
        self.live[number] = (address, size, frames)
        return number

    def free(self, number: int, frames: list[Any]) -> None:
        address, size, _ = self.live.pop(number)
        self.allocator.free(number)
        self.event("free_requested", address, size, frames)
        self.event("free_completed", address, size, frames)


def record(events: int, seed: int = 0) -> dict[str, Any]:
    """A snapshot of about so many events."""
    program = Program(seed)
    module, optimizer = "site-packages/torch/nn/modules/module.py", "site-packages/torch/optim/adam.py"
    call = ("_call_impl", module, 1790)
    build = program.stack(
        ("__init__", "site-packages/torch/nn/modules/linear.py", 109),
        ("__init__", "/opt/trainer/model.py", 20),
    )
    weight_sizes = [program.random.choice((3, 9, 12, 36)) * MIB for _ in range(LAYERS * 4)]
    weights = [program.malloc(size, build) for size in weight_sizes]
    forwards = [
        program.stack(
            ("linear", "site-packages/torch/nn/functional.py", 130),
            ("forward", "/opt/trainer/model.py", 40 + n),
            call,
        )
        for n in range(40)
    ]
    engine = [
        program.stack(
            (f"at::_ops::op_{n}::call(at::Tensor const&)", "??", 0),
            ("torch::autograd::Engine::evaluate_function()", "??", 0),
        )
        for n in range(80)
    ]
    make_state = program.stack(("_init_group", optimizer, 178), ("step", optimizer, 238))
    scratch = program.stack(
        ("_multi_tensor_adam", optimizer, 791), ("adam", optimizer, 971), ("step", optimizer, 248)
    )
    drop = program.stack(("zero_grad", "site-packages/torch/optim/optimizer.py", 1066))
    state: list[int] = []
    while len(program.events) < events:
        saved: list[int] = []
        for _ in range(LAYERS):
            for site in forwards:
                kept = program.malloc(program.random.choice((1, 2, 3, 6, 12)) * MIB + 512, site)
                if program.random.random() < 0.4:
                    saved.append(kept)
                else:
                    program.free(kept, site)
        gradients: list[int] = []
        for number, size in enumerate(weight_sizes):
            for site in engine[number % 40 :: 40]:
                scratches = [program.malloc(program.random.choice((2, 6)) * MIB, site) for _ in range(2)]
                for block in scratches:
                    program.free(block, site)
            gradients.append(program.malloc(size, engine[number % 80]))
            for block in saved[-(-len(saved) * (len(weight_sizes) - number - 1) // len(weight_sizes)) :]:
                program.free(saved.pop(), engine[block % 80])
        while saved:
            program.free(saved.pop(), engine[0])
        if not state:
            state = [program.malloc(size, make_state) for size in weight_sizes for _ in range(2)]
        roots = [program.malloc(size, scratch) for size in weight_sizes]
        for block in roots:
            program.free(block, scratch)
        for block in gradients:
            program.free(block, drop)
    del weights
    return {
        "segments": segments_of(program),
        "device_traces": [program.events],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [],
    }


def segments_of(program: Program) -> list[dict[str, Any]]:
    """The segments at the end, each cut into its live blocks and the gaps between them."""
    live = sorted((address, number) for number, (address, _, _) in program.live.items())
    segments: list[dict[str, Any]] = []
    at = 0
    for segment in program.allocator.segments:
        end = segment.address + segment.size_bytes
        blocks: list[dict[str, Any]] = []
        position = segment.address
        while at < len(live) and live[at][0] < end:
            address, number = live[at]
            at += 1
            if address > position:
                blocks.append(block(position, address - position, 0, "inactive", []))
            size = program.allocator.block_bytes[number]
            _, requested, frames = program.live[number]
            blocks.append(block(address, size, requested, "active_allocated", frames))
            position = address + size
        if position < end:
            blocks.append(block(position, end - position, 0, "inactive", []))
        segments.append(
            {
                "device": 0,
                "address": segment.address,
                "total_size": segment.size_bytes,
                "allocated_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
                "stream": 0,
                "segment_type": "small" if segment.is_small else "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": blocks,
            }
        )
    return segments


def block(address: int, size: int, requested: int, state: str, frames: list[Any]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}


def resident_bytes(root: int) -> int:
    """Resident memory of a process and its children, now (Linux)."""
    total = 0
    page = os.sysconf("SC_PAGE_SIZE")
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, ValueError, IndexError):
            continue
    return total


def measure(command: list[str]) -> tuple[float, int, str]:
    """Seconds, most resident bytes and the last line printed."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        most = 0

        def watch() -> None:
            nonlocal most
            while process.poll() is None:
                most = max(most, resident_bytes(process.pid))
                time.sleep(0.01)

        watcher = threading.Thread(target=watch)
        watcher.start()
        printed, complaint = process.communicate()
        seconds = time.perf_counter() - start
        watcher.join()
    if process.returncode:
        lines = complaint.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit {process.returncode}")
    return seconds, most, (printed.strip().splitlines() or [""])[-1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keep", type=Path, help="write the snapshot here and keep it")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; the fastest counts")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = arguments.keep or Path(folder) / "snapshot.pickle"
        if not file.exists():
            with file.open("wb") as out:
                pickle.dump(record(arguments.events), out)
        print(f"{file.stat().st_size / 1e6:.1f} MB, stacks {DEPTH} deep")
        ours: tuple[float, int] | None = None
        for name, command in contenders(file, Path(folder)).items():
            try:
                runs = [measure(command) for _ in range(arguments.repeat)]
            except RuntimeError as error:
                print(f"{name:18s} did not run: {error}")
                continue
            seconds, memory = min(run[0] for run in runs), max(run[1] for run in runs)
            line = f"{name:18s} {seconds:6.2f} s {memory / 1e6:7.0f} MB   {runs[0][2]}"
            if ours:
                line += f"   ({seconds / ours[0]:.1f}x the time, {memory / ours[1]:.1f}x the memory)"
            print(line)
            ours = ours or (seconds, memory)


if __name__ == "__main__":
    main()
