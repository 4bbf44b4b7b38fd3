"""The tape: fast and exact estimates by depth, and a file of jobs through the command line.

The baseline beside each figure is the time that a page or a reader has for it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time

from trainmem.estimate import estimate
from trainmem.job import TrainingJob

JOBS = (("gpt2-124m", 12), ("gpt2-774m", 36), ("gpt2-1558m", 48), ("llama3.1-70b", 80))


def best(function, repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    from trainmem.estimate import _recorded

    for model, layers in JOBS:
        precision = "bf16" if layers == 80 else "amp_bf16"
        job = TrainingJob(model=model, micro_batch=2, sequence_length=512, precision=precision, device="h200")
        start = time.perf_counter()
        estimate(job, detail="fast")
        cold = time.perf_counter() - start
        fast = best(lambda job=job: estimate(job, detail="fast"), 20)

        def exact(job: TrainingJob = job) -> None:
            _recorded.cache_clear()
            estimate(job)

        seconds, limit = best(exact), 0.25 if layers > 48 else 0.1
        print(
            f"{model:14} {layers:3} blocks  fast {1e3 * fast:6.2f} ms"
            f" ({fast / 0.002:4.0%} of 2 ms, first {1e3 * cold:5.1f})"
            f"  exact {1e3 * seconds:6.1f} ms ({seconds / limit:4.0%} of {1e3 * limit:.0f} ms)"
        )
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        models = ("gpt2-124m", "llama3.2-1b", "qwen2.5-0.5b", "mistral-7b", "llama3.1-70b")
        for number in range(1000):
            job = {
                "model": models[number % 5],
                "micro_batch": 1 + number % 16,
                "sequence_length": 128 * (1 + number % 8),
            }
            file.write(json.dumps(job) + "\n")
        file.flush()
        command = [sys.executable, "-m", "trainmem", "estimate", "--jobs", file.name, "--detail", "fast"]
        seconds = best(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), 3)
    print(
        f"1,000 jobs through --jobs --detail fast: {seconds:.2f} s with start-up ({seconds / 3:4.0%} of 3 s)"
    )


if __name__ == "__main__":
    main()
