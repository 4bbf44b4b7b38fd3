"""The harness with stub workers: rows, refusals, resumption, overlap and the search, all with real
processes."""

import json
import sys
import threading
from pathlib import Path

import pytest

from trainmem.job import TrainingJob
from trainmem.results import read_row
from trainmem_backend.measure.bench import WorkerGone
from trainmem_backend.measure.crew import GateClosed
from trainmem_backend.measure.journal import RunFolder
from trainmem_backend.measure.nvml import Nvml
from trainmem_backend.measure.predict import Predictor
from trainmem_backend.measure.runner import Runner
from trainmem_backend.measure.settings import Settings
from trainmem_backend.measure.trial import Trial

GIB = 1 << 30
STUB = (sys.executable, str(Path(__file__).with_name("stub_worker.py")))
JOB = TrainingJob(model="gpt2-124m", micro_batch=1, sequence_length=64)


class FakeLibrary:
    """NVML of a card whose memory in use is ``used``, in answers of its own kind of struct."""

    NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 0

    def __init__(self, used=0):
        self.used = used

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetMemoryInfo(self, handle):
        return type("Memory", (), {"used": self.used})

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [type("Process", (), {"pid": 1, "usedGpuMemory": None})]


def trial(label, kind="step", job=JOB, **options):
    return Trial(suite="tests", label=label, kind=kind, job=job, passes=("memory",), options=options)


@pytest.fixture
def harness(tmp_path):
    def make(*, predicted=GIB, meminfo=None, nvml=None, folder="run", boot="boot-1", **settings):
        ask = predicted if callable(predicted) else lambda job: predicted
        runner = Runner(
            RunFolder(tmp_path / folder, boot=boot),
            Settings(**settings),
            predictor=Predictor(
                ask=lambda job: (ask(job), ask(job) is not None),
                ask_fits=lambda job, capacity: ask(job) <= capacity,
            ),
            nvml=Nvml(nvml or FakeLibrary()),
            worker_command=STUB,
            **({"meminfo": meminfo} if meminfo else {}),
        )
        return runner, tmp_path / folder

    return make


def rows_of(folder):
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_every_way_to_end_becomes_a_row(harness):
    runner, folder = harness(trial_seconds=3)
    kinds = ("ok", "oom", "crash", "killed", "silent", "hang")
    summary = runner.run([trial(kind, stub=kind) for kind in kinds])
    found = {row["label"]: row for row in rows_of(folder)}
    assert {label: row["outcome"] for label, row in found.items()} == {
        "ok": "ok",
        "oom": "oom",
        "crash": "killed",
        "killed": "killed",
        "silent": "error",
        "hang": "killed",
    }
    assert sum(summary.outcomes.values()) == 6
    assert "SIGSEGV" in found["crash"]["reason"]
    assert "Segmentation fault imminent" in found["crash"]["reason"]
    assert "cause unknown" in found["killed"]["reason"]
    assert found["killed"]["measured"]["peak_allocated_bytes"] == GIB
    assert "exit 7" in found["silent"]["reason"]
    assert "no result in 3 s" in found["hang"]["reason"]
    for row in found.values():
        assert read_row(row).job is not None
        assert row["guard"]["cap_bytes"] > 90 * GIB


def test_a_job_predicted_over_the_cap_never_starts(harness, tmp_path):
    runner, folder = harness(predicted=500 * GIB)
    ran = tmp_path / "ran"
    runner.run([trial("big", ran=str(ran)), trial("also big", ran=str(ran)).with_(forced=True)])
    first, second = rows_of(folder)
    assert first["outcome"] == "skipped"
    assert "over the cap" in first["reason"]
    assert second["outcome"] == "ok"
    assert [line.split()[0] for line in ran.read_text().splitlines()] == ["also"]


def test_a_second_run_goes_on_where_the_first_stopped(harness, tmp_path):
    ran = str(tmp_path / "ran")
    trials = [trial(name, ran=ran) for name in ("a", "b", "c")]
    runner, folder = harness(deadline_seconds=-1)
    assert runner.run(trials).left == 3
    harness()[0].run(trials[:2])
    # A power cut in the middle of the third row.
    with (folder / "rows.jsonl").open("a") as file:
        file.write('{"schema": "trainmem.measured/1", "trial": "tests/c@')
    harness()[0].run(trials)
    assert [row["label"] for row in rows_of(folder)] == ["a", "b", "c"]
    assert [line.split()[0] for line in Path(ran).read_text().splitlines()] == ["a", "b", "c"]


def test_the_trial_that_took_the_machine_down_is_blamed_and_not_repeated(harness):
    one = trial("reboots")
    folder = harness()[1]
    RunFolder(folder, boot="boot-1").start(
        one.key, {"suite": "tests", "label": "reboots", "job": JOB.to_json()}
    )
    runner, _ = harness(boot="boot-2")
    runner.run([one, trial("next")])
    first, second = rows_of(folder)
    assert (first["label"], first["outcome"]) == ("reboots", "killed")
    assert "went down" in first["reason"]
    assert read_row(first).job == JOB
    assert (second["label"], second["outcome"]) == ("next", "ok")


def test_a_trial_cut_off_with_its_run_is_tried_once_more_and_then_blamed(harness):
    one = trial("cut off")
    folder = harness()[1]
    begun = {"suite": "tests", "label": "cut off", "job": JOB.to_json()}
    RunFolder(folder, boot="boot-1").start(one.key, begun)
    assert RunFolder(folder, boot="boot-1").interrupted() == []
    RunFolder(folder, boot="boot-1").start(one.key, begun)
    harness()[0].run([one])
    (row,) = rows_of(folder)
    assert row["outcome"] == "killed"
    assert "2 times" in row["reason"]


def test_the_watchdog_stops_a_trial_that_eats_the_machine(harness, tmp_path, monkeypatch):
    monkeypatch.setenv("STUB_FACTS", json.dumps({"name": "NVIDIA GB10", "integrated": True}))
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {64 << 20:>12} kB\nMemAvailable: {40 << 20:>12} kB\n")
    runner, folder = harness(meminfo=meminfo, interval_seconds=0.01)
    summary = runner.run([trial("eats", stub="eat", meminfo=str(meminfo))])
    (row,) = rows_of(folder)
    assert row["outcome"] == "guard_stopped"
    assert row["guard"]["available_bytes"] < 16 * GIB
    assert "MemAvailable" in row["guard"]["cap_reason"]
    assert row["job"]["device"] == "spark"
    assert summary.outcomes == {"guard_stopped": 1}


def test_a_run_stops_where_memory_does_not_come_back(harness, monkeypatch):
    library = FakeLibrary()
    runner, folder = harness(nvml=library)
    monkeypatch.setattr("trainmem_backend.measure.guard.gate._POLL_SECONDS", 0.01)
    from trainmem_backend.measure.guard.gate import Gate

    monkeypatch.setattr(
        Gate,
        "for_device",
        classmethod(
            lambda cls, integrated, used, holders: cls(
                used=used, holders=holders, slack_bytes=GIB, timeout_seconds=0.1
            )
        ),
    )
    original = RunFolder.add

    def leak(self, row):
        original(self, row)
        library.used = 108 * GIB

    monkeypatch.setattr(RunFolder, "add", leak)
    with pytest.raises(GateClosed, match="108 GiB in use"):
        runner.run([trial("a"), trial("b")])
    assert [row["label"] for row in rows_of(folder)] == ["a"]


def test_no_device_is_one_sentence(harness, monkeypatch):
    monkeypatch.setenv("STUB_NO_DEVICE", "1")
    with pytest.raises(WorkerGone, match="no device to measure on: RuntimeError: No CUDA GPUs"):
        harness()[0].run([trial("a")])


def test_trials_beside_each_other_share_the_device_by_prediction(harness, tmp_path):
    # Two of 40 GiB fit on a device of 99 together, three do not.
    runner, folder = harness(predicted=40 * GIB, overlap=3)
    trials = [trial(str(i), stub="ok", seconds=0.3) for i in range(5)]
    runner.run(trials)
    rows = rows_of(folder)
    assert sorted(row["label"] for row in rows) == ["0", "1", "2", "3", "4"]
    assert all(row["guard"]["beside_others"] for row in rows)


def test_running_out_beside_others_is_not_believed(harness):
    runner, folder = harness(predicted=GIB, overlap=2)
    runner.run([trial("a", seconds=0.2), trial("b", stub="oom"), trial("c", seconds=0.2)])
    found = {row["label"]: row for row in rows_of(folder)}
    assert found["b"]["outcome"] == "oom"
    assert not found["b"]["guard"]["beside_others"]
    assert [row["label"] for row in rows_of(folder)].count("b") == 1


def test_times_are_left_out_where_they_would_mean_nothing(harness):
    timed = trial("timed").with_(passes=("memory", "timing"))
    alone, folder = harness(folder="alone")
    alone.run([timed])
    assert rows_of(folder)[0]["measured"]["passes"] == ["memory", "timing"]
    held, folder = harness(folder="held", capacity_bytes=50 * GIB, capacity_text="50GiB")
    held.run([timed])
    assert rows_of(folder)[0]["measured"]["passes"] == ["memory"]
    assert "stand in" in rows_of(folder)[0]["measured"]["untimed_because"]


def test_a_stand_in_says_what_it_stood_in_for(harness):
    runner, folder = harness(capacity_bytes=50 * GIB, capacity_text="50GiB")
    runner.run([trial("a")])
    (row,) = rows_of(folder)
    assert row["environment"]["capacity_text"] == "50GiB"
    assert row["guard"]["cap_bytes"] == 50 * GIB
    assert read_row(row).machine == "stub, held to 50GiB"


def test_the_largest_batch_takes_two_trials_when_the_prediction_is_right(harness):
    per_batch = 3 * GIB
    runner, folder = harness(predicted=lambda job: per_batch * job.micro_batch)
    search = trial("largest", kind="largest_batch")
    # The stub reads its options from the probe, so the probe must carry them.
    from trainmem_backend.measure import batches

    original = batches.Trial

    def probe(**values):
        values["options"] = {**values["options"], "per_batch": per_batch}
        return original(**values)

    batches.Trial = probe
    try:
        runner.run([search])
    finally:
        batches.Trial = original
    rows = rows_of(folder)
    assert [row["outcome"] for row in rows] == ["ok", "oom", "ok"]
    assert rows[-1]["kind"] == "largest_batch"
    assert rows[-1]["measured"]["largest_micro_batch"] == 32
    assert rows[-1]["measured"]["proved"]
    assert rows[-1]["measured"]["predicted_micro_batch"] == 32


def test_a_search_without_a_prediction_is_skipped(harness):
    runner, folder = harness(predicted=None)
    runner.run([trial("largest", kind="largest_batch")])
    (row,) = rows_of(folder)
    assert row["outcome"] == "skipped"


def test_a_feature_that_fails_its_preflight_skips_its_rows_with_the_reason(harness, monkeypatch):
    runner, folder = harness()
    from trainmem_backend.measure import runner as module

    original = module.Trial
    monkeypatch.setattr(
        module,
        "Trial",
        lambda **values: original(**{**values, "options": {**values["options"], "stub": "silent"}}),
    )
    needing = trial("8-bit", job=JOB.with_(optimizer="adamw8bit"))
    runner.run([needing, trial("plain")])
    found = {row["label"]: row for row in rows_of(folder)}
    assert found["bitsandbytes"]["kind"] == "preflight"
    assert found["8-bit"]["outcome"] == "skipped"
    assert "needs bitsandbytes, which failed here" in found["8-bit"]["reason"]
    assert found["plain"]["outcome"] == "ok"


def test_the_job_carries_the_device_it_ran_on(harness, monkeypatch):
    monkeypatch.setenv("STUB_FACTS", json.dumps({"name": "NVIDIA H200"}))
    runner, folder = harness()
    one = trial("a")
    runner.run([one])
    (row,) = rows_of(folder)
    assert row["job"]["device"] == "h200"
    assert row["trial"] == one.key
    assert RunFolder(folder).done(one.key)


def test_the_time_around_the_trials_is_told_apart(harness):
    runner, _ = harness()
    summary = runner.run([trial(str(number), seconds=0.2) for number in range(3)])
    assert summary.processes == 3
    assert 3 * 0.2 <= summary.worked_seconds < summary.seconds
    assert 0 < summary.start_seconds < summary.seconds - summary.worked_seconds
    around = summary.seconds - summary.start_seconds - summary.worked_seconds
    assert summary.harness_seconds == pytest.approx(around / 3)


def test_the_processes_of_searches_and_features_start_as_early_as_others(harness, monkeypatch):
    """A search takes two at the least, and each feature that was never tried one."""
    from trainmem_backend.measure import crew

    started = []

    class Counted(crew.WorkerProcess):
        def __init__(self, command, environment):
            started.append(command)
            super().__init__(command, environment)

    monkeypatch.setattr(crew, "WorkerProcess", Counted)
    monkeypatch.setattr(crew, "workers_ready", lambda overlap, cores: (9, 9))
    runner, _ = harness(predicted=lambda job: 3 * GIB * job.micro_batch)
    at_the_first = []
    runner._progress.begin = lambda name, predicted: at_the_first.append(len(started))
    needing = trial("8-bit", job=JOB.with_(optimizer="adamw8bit"))
    runner.run([trial("a"), needing, trial("largest", kind="largest_batch")])
    assert at_the_first[0] == 5


def test_no_worker_outlives_the_run(harness):
    runner, _ = harness(overlap=2)
    runner.run([trial("a"), trial("b")])
    assert [t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon] == []
