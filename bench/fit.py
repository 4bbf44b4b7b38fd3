"""How long the What fits page takes, first in a fresh process and then again, and what a job's part costs.

Usage: python bench/fit.py [DEVICE ...]

"cold" is a process that has answered nothing yet, imports apart; "again" is the same page once more. The page is
written out as the app shows it, exact at once, and is to take 300 ms at most, cold or not. At its own settings its
borders are published; at others the allocator is asked about every border. "tab" is all that the tab shows: the page,
then the plan and the limits of a job. Times of the processor count where other work shares the machine.
"""

from __future__ import annotations

import subprocess
import sys
import time

DEVICES = ("spark", "h100-80gb", "rtx-4090")

PAGE = """
import sys, time
from trainmem.fit import plans, room, what_fits
from trainmem.fit.published import PAGE
from trainmem.fit.report import limits_of
from trainmem.job import TrainingJob
from trainmem_space.views.fit import page_view
part, name = sys.argv[1:]
at, other = room(name), PAGE.with_(micro_batch=2)
job = TrainingJob(model="llama2-7b", micro_batch=4, sequence_length=4096, device=name)
def page(like, detail, family="llama3"):
    page_view(what_fits(at, like, family=family, detail=detail))
work = {
    "page": lambda: page(PAGE, "exact"),
    "other": lambda: page(other, "exact"),
    "none": lambda: page(PAGE.with_(micro_batch=8, checkpointing="none"), "exact"),
    "sqrt": lambda: page(other.with_(checkpointing="sqrt"), "exact"),
    "qwen2.5": lambda: page(other, "exact", "qwen2.5"),
    "gemma3": lambda: page(other, "exact", "gemma3"),
    "fast": lambda: page(other, "fast"),
    "plan fast": lambda: plans(job, at, "fast"),
    "plan": lambda: plans(job, at, "exact"),
    "limits": lambda: limits_of(job, at, "exact"),
    "tab": lambda: (page(other, "exact"), plans(job, at, "exact"), limits_of(job, at, "exact")),
}[part]
for _ in range(2):
    start, cpu = time.perf_counter(), time.process_time()
    work()
    print(f"{1000 * (time.perf_counter() - start):.0f} {1000 * (time.process_time() - cpu):.0f}")
"""
PARTS = {
    "page": "page",
    "other": "page at batch 2",
    "none": "page at batch 8 without checkpoints",
    "sqrt": "page at batch 2 with sqrt checkpointing",
    "qwen2.5": "page of Qwen2.5 at batch 2",
    "gemma3": "page of Gemma 3 at batch 2",
    "fast": "page at batch 2 before the allocator",
    "plan fast": "plan before the allocator",
    "plan": "plan",
    "limits": "limits",
    "tab": "tab at batch 2",
}
RUNS = 3


def main() -> None:
    for name in sys.argv[1:] or DEVICES:
        for part, title in PARTS.items():
            runs = []
            for _ in range(RUNS):
                command = [sys.executable, "-c", PAGE, part, name]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                runs.append([tuple(map(int, line.split())) for line in done.stdout.splitlines()])
            (wall, cpu), (again, _) = (min(run[index] for run in runs) for index in range(2))
            print(f"{name:10} {title:42} cold {wall:6,} ms ({cpu:,} ms of processor), again {again:,} ms")
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "trainmem", "fit"], capture_output=True, check=True)
    print(f"trainmem fit, start-up and all: {1000 * (time.perf_counter() - start):,.0f} ms")


if __name__ == "__main__":
    main()
