"""How long the What fits page takes, first in a fresh process and then again, and what a job's part costs.

Usage: python bench/fit.py [DEVICE ...]

"cold" is a process that has answered nothing yet, imports apart; "again" is the same page once more; "exact"
asks the allocator about every border. The page is to take 300 ms at most, cold or not.
"""

from __future__ import annotations

import subprocess
import sys
import time

DEVICES = ("spark", "h100-80gb", "rtx-4090")

PAGE = """
import sys, time
from trainmem.fit import plans, room, what_fits
from trainmem.fit.report import limits_of
from trainmem.job import TrainingJob
name = sys.argv[1]
like = TrainingJob(model="llama3.2-1b", micro_batch=1, sequence_length=2048, checkpointing="full")
job = TrainingJob(model="llama2-7b", micro_batch=4, sequence_length=4096, device=name)
def timed(work):
    start, cpu = time.perf_counter(), time.process_time()
    work()
    return f"{1000 * (time.perf_counter() - start):.0f} {1000 * (time.process_time() - cpu):.0f}"
at = room(name)
print(timed(lambda: what_fits(at, like, detail="fast")))
print(timed(lambda: what_fits(at, like, detail="fast")))
print(timed(lambda: what_fits(at, like, detail="exact")))
print(timed(lambda: plans(job, at, "fast")))
print(timed(lambda: plans(job, at, "exact")))
print(timed(lambda: limits_of(job, at, "exact")))
"""
PARTS = ("page cold", "page again", "page exact", "plan, fast", "plan, exact", "limits, exact")
RUNS = 3


def main() -> None:
    for name in sys.argv[1:] or DEVICES:
        runs = []
        for _ in range(RUNS):
            done = subprocess.run(
                [sys.executable, "-c", PAGE, name], capture_output=True, text=True, check=True
            )
            runs.append([tuple(map(int, line.split())) for line in done.stdout.splitlines()])
        for index, part in enumerate(PARTS):
            wall, cpu = min(run[index] for run in runs)
            print(f"{name:10} {part:14} {wall:6,} ms ({cpu:,} ms of processor)")
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "trainmem", "fit", "--detail", "fast"], capture_output=True, check=True
    )
    print(f"trainmem fit --detail fast, start-up and all: {1000 * (time.perf_counter() - start):,.0f} ms")


if __name__ == "__main__":
    main()
