"""The guards, driven with real child processes: nothing here needs a GPU or torch."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainmem_backend.measure.guard.cap import DeviceFacts, cap_of, refusal
from trainmem_backend.measure.guard.dog import Watchdog
from trainmem_backend.measure.guard.gate import Gate, named_holders
from trainmem_backend.measure.nvml import Holder

GIB = 1 << 30
CARD = DeviceFacts(name="NVIDIA H200", total_bytes=140 * GIB, free_bytes=139 * GIB, integrated=False)
SPARK = DeviceFacts(name="NVIDIA GB10", total_bytes=120 * GIB, free_bytes=40 * GIB, integrated=True)


def test_an_integrated_gpu_is_capped_by_available_memory_and_not_by_what_cuda_calls_free():
    # 40 GiB "free" to CUDA with 115 available: the rest is page cache, which the kernel hands back.
    cap = cap_of(SPARK, available_bytes=115 * GIB)
    assert cap.cap_bytes == 99 * GIB
    assert "MemAvailable" in cap.reason
    assert cap.fraction(SPARK.total_bytes) == pytest.approx(99 / 120)


def test_a_card_is_capped_below_what_is_free():
    cap = cap_of(CARD, available_bytes=500 * GIB)
    assert 138 * GIB < cap.cap_bytes < 139 * GIB


def test_the_floor_is_configurable_and_never_makes_a_negative_cap():
    assert cap_of(SPARK, available_bytes=115 * GIB, floor_bytes=8 * GIB).cap_bytes == 107 * GIB
    assert cap_of(SPARK, available_bytes=10 * GIB).cap_bytes == 0


def test_a_capacity_stands_in_for_a_smaller_machine_and_never_for_a_larger():
    held = cap_of(CARD, available_bytes=None, capacity_bytes=118 * GIB)
    assert held.cap_bytes == 118 * GIB
    assert cap_of(CARD, available_bytes=None, capacity_bytes=999 * GIB).cap_bytes < 139 * GIB


def test_a_job_predicted_over_the_cap_is_refused_unless_forced_or_unknown():
    cap = cap_of(CARD, available_bytes=None, capacity_bytes=118 * GIB)
    said = refusal(125 * GIB, cap)
    assert said is not None
    assert "125 GiB" in said
    assert "118 GiB" in said
    assert refusal(125 * GIB, cap, forced=True) is None
    assert refusal(117 * GIB, cap) is None
    assert refusal(None, cap) is None


def sleeper():
    """A process that leads its own group and has a child in it, as a trial with a compiler does."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


def meminfo(path: Path, available_gib: float) -> Path:
    text = f"MemTotal: {120 << 20:>12} kB\nMemAvailable: {int(available_gib * (1 << 20)):>12} kB\n"
    if path.exists():
        with path.open("r+") as file:
            file.write(text)
    else:
        path.write_text(text)
    return path


def guarded(process, tmp_path, memory):
    return Watchdog(
        pid=process.pid,
        floor_bytes=16 * GIB,
        interval_seconds=0.02,
        rows=tmp_path / "rows.jsonl",
        row={"trial": "limits/13B", "schema": "trainmem.measured/1", "environment": {"gpu": "NVIDIA GB10"}},
        meminfo=memory,
    )


def alive_in_group(group):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(entry.name)
    return found


def test_the_watchdog_writes_the_row_and_then_kills_the_whole_group(tmp_path):
    memory = meminfo(tmp_path / "meminfo", 34.0)
    process = sleeper()
    dog = guarded(process, tmp_path, memory)
    assert process.poll() is None
    meminfo(memory, 12.7)
    assert process.wait(30) == -9
    assert dog.stopped_it()
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["outcome"] == "guard_stopped"
    assert row["trial"] == "limits/13B"
    assert row["environment"] == {"gpu": "NVIDIA GB10"}
    assert row["guard"]["available_bytes"] == int(12.7 * (1 << 20)) * 1024
    assert row["guard"]["interval_seconds"] <= 0.1
    deadline = time.monotonic() + 30
    while alive_in_group(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive_in_group(process.pid) == []


def test_the_watchdog_leaves_a_trial_alone_that_ends_by_itself(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"], start_new_session=True)
    dog = guarded(process, tmp_path, meminfo(tmp_path / "meminfo", 34.0))
    assert process.wait(30) == 0
    assert not dog.stopped_it()
    assert (tmp_path / "rows.jsonl").read_text() == ""


def test_the_watchdog_ends_when_its_trial_is_gone_before_it_looks(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    process.wait()
    dog = guarded(process, tmp_path, meminfo(tmp_path / "meminfo", 1.0))
    assert not dog.stopped_it()


def test_the_watchdog_needs_no_heavy_import():
    code = (
        "import sys; import trainmem_backend.measure.guard.watchdog; "
        "print([m for m in ('torch', 'numpy', 'rich', 'psutil') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def gate(readings, **changes):
    clock = Clock()
    values = iter(readings)
    last = readings[-1]
    found = Gate(
        used=lambda: next(values, last),
        holders=lambda: ["python3 (pid 812, 108 GiB)"],
        slack_bytes=GIB,
        timeout_seconds=60,
        sleep=clock.sleep,
        clock=clock,
        baseline_bytes=5 * GIB,
    )
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def test_the_gate_waits_until_memory_is_back():
    result = gate([100 * GIB] * 30 + [5 * GIB]).wait()
    assert result.passed
    assert result.waited_seconds == pytest.approx(3.0)


def test_the_gate_gives_up_and_names_who_holds_the_memory():
    result = gate([108 * GIB]).wait()
    assert not result.passed
    assert "python3 (pid 812, 108 GiB)" in (result.reason or "")
    assert result.waited_seconds >= 60


def test_the_gate_is_open_where_the_machine_does_not_say():
    assert gate([None]).wait().passed
    assert gate([108 * GIB], baseline_bytes=None).wait().passed


def test_a_holder_is_named_by_what_it_is():
    me, gone = named_holders(
        [Holder(pid=os.getpid(), used_bytes=GIB), Holder(pid=2**22 - 1, used_bytes=None)]
    )
    assert f"(pid {os.getpid()}, 1.00 GiB)" in me
    assert "size not told" in gone
