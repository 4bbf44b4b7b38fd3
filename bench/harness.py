"""What a trial of the measurement harness costs beside its own work, on the CPU and with real worker processes.

Usage: python bench/harness.py [TRIALS]

Each trial is a fresh process that imports torch and transformers; the next one's imports run beside the trial before
it. The baseline beside it is what one such process takes to be ready when nobody started it early. The first
process's imports overlap with nothing and are told apart. `trainmem measure` prints the same figures at the end of a
run on a GPU.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trainmem.job import TrainingJob
from trainmem_backend.measure.journal import RunFolder
from trainmem_backend.measure.process import WORKER_COMMAND
from trainmem_backend.measure.progress import Progress
from trainmem_backend.measure.runner import Runner
from trainmem_backend.measure.settings import Settings
from trainmem_backend.measure.trial import Trial

CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 8000,
}
PRETENDED_BYTES = 64 << 30


def trial(number: int) -> Trial:
    """A few seconds of work for one core or two."""
    job = TrainingJob(config=CONFIG, sequence_length=192 + number)
    return Trial(suite="job", label=str(number), kind="step", job=job, passes=("memory",))


def seconds_until_ready() -> float:
    """A worker started only when it is needed."""
    start = time.perf_counter()
    command = [*WORKER_COMMAND, "--results", "1", "--pretend-bytes", str(PRETENDED_BYTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        ready = time.perf_counter() - start
        worker.kill()
    return ready


def main() -> None:
    trials = [trial(number) for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 6)]
    alone = min(seconds_until_ready() for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        progress = Progress(len(trials), out=io.StringIO())
        runner = Runner(RunFolder(Path(folder)), Settings(pretend_bytes=PRETENDED_BYTES), progress=progress)
        found = runner.run(trials)
    harness = found.harness_seconds
    work = found.worked_seconds / found.processes
    print(
        f"{found.processes} trials of {work:.1f} s: the first was ready after {found.start_seconds:.2f} s, then "
        f"{harness:.2f} s each around them; a process started when it is needed is ready after {alone:.2f} s, "
        f"{alone / harness:.1f} times as much"
    )


if __name__ == "__main__":
    main()
