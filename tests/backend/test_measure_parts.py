"""The harness's parts that need no process: the search, the journal, endings, memory readings, settings."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem.job import LEVERS, Lora, TrainingJob
from trainmem.model.families import FAMILIES
from trainmem_backend.measure.bench import Bench
from trainmem_backend.measure.beside import grouped
from trainmem_backend.measure.hostmemory import HostMemory, low_free_warning, read_host_memory
from trainmem_backend.measure.journal import RunFolder, drop_torn_line
from trainmem_backend.measure.kernellog import count_complaints
from trainmem_backend.measure.largest import MOST_TRIALS, Search, predicted_largest
from trainmem_backend.measure.nvml import Nvml
from trainmem_backend.measure.outcome import of_exception, of_exit
from trainmem_backend.measure.progress import Progress, row_line
from trainmem_backend.measure.settings import Settings, worker_environment
from trainmem_backend.measure.suites import SUITES, trials_of
from trainmem_backend.measure.trial import Trial

GIB = 1 << 30


def searching(peak, capacity):
    return Search(fits_in=lambda b, room: peak(b) <= room, peak_bytes=peak, capacity_bytes=capacity)


def drive(search, truth, capacity):
    """Run a search against a machine whose true peak is ``truth(batch)``."""
    trials = search.trials()
    batch = next(trials)
    while True:
        peak = truth(batch)
        try:
            batch = trials.send(peak if peak <= capacity else None)
        except StopIteration:
            return search


@settings(max_examples=200, deadline=None)
@given(
    fixed=st.integers(1, 60),
    slope=st.integers(4, 4000),
    capacity=st.integers(64, 140),
    error=st.floats(-0.02, 0.02),
)
def test_the_search_is_proved_in_four_trials_when_the_prediction_is_good(fixed, slope, capacity, error):
    def truth(batch):
        return fixed * GIB + slope * (batch << 20)

    def predicted(batch):
        return round(truth(batch) * (1 + error * 0.05))

    search = drive(searching(predicted, capacity * GIB), truth, capacity * GIB)
    assert len(search.tried) <= MOST_TRIALS
    best = predicted_largest(lambda batch: truth(batch) <= capacity * GIB)
    assert search.fits <= best
    if slope >= 256:
        assert search.closed
        assert search.fits == best


@settings(max_examples=100, deadline=None)
@given(
    fixed=st.integers(1, 60),
    slope=st.integers(256, 4000),
    error=st.floats(-0.3, 0.3),
    capacity=st.integers(64, 140),
)
def test_a_bad_prediction_still_ends_in_four_trials_and_never_claims_too_much(fixed, slope, error, capacity):
    def truth(batch):
        return fixed * GIB + slope * (batch << 20)

    def predicted(batch):
        return round(truth(batch) * (1 + error))

    search = drive(searching(predicted, capacity * GIB), truth, capacity * GIB)
    best = predicted_largest(lambda batch: truth(batch) <= capacity * GIB)
    assert len(search.tried) <= MOST_TRIALS
    assert search.fits <= best
    if search.closed:
        assert search.fits == best


def test_a_model_of_which_not_even_one_sample_fits():
    search = drive(searching(lambda b: 200 * GIB, 118 * GIB), lambda b: 200 * GIB, 118 * GIB)
    assert search.to_json()["largest_micro_batch"] is None
    assert search.closed
    assert len(search.tried) == 1


@pytest.mark.parametrize(
    ("kind", "message", "outcome"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.", "oom"),
        ("AcceleratorError", "CUDA error: out of memory", "oom"),
        ("RuntimeError", "NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp:1131", "oom"),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)", "oom"),
        ("ValueError", "no such optimizer", "error"),
        ("AcceleratorError", "CUDA error: an illegal memory access was encountered", "error"),
    ],
)
def test_the_faces_of_running_out_of_memory(kind, message, outcome):
    assert of_exception(kind, message).outcome == outcome


@pytest.mark.parametrize(
    ("code", "stderr", "outcome", "said"),
    [
        (-9, "", "killed", "cause unknown"),
        (137, "", "killed", "cause unknown"),
        (-11, "a\nb", "killed", "SIGSEGV; last words: b"),
        (1, "torch.AcceleratorError: CUDA error: out of memory\n", "oom", "exit 1"),
        (1, "", "error", "exit 1 without a result"),
    ],
)
def test_what_an_exit_says(code, stderr, outcome, said):
    ending = of_exit(code, stderr)
    assert ending.outcome == outcome
    assert said in ending.reason


def test_host_memory_of_a_spark_whose_cache_is_full(tmp_path):
    (tmp_path / "meminfo").write_text(
        "MemTotal:       127535336 kB\nMemFree:         5242880 kB\nMemAvailable:   121424640 kB\n"
        "Cached:         100000000 kB\nSwapFree:        16777212 kB\n"
    )
    (tmp_path / "buddyinfo").write_text(
        "Node 0, zone   Normal   100 90 80 70 60 50 40 30 20 3 2\n"
        "Node 0, zone    DMA32   1 0 0 0 0 0 0 0 0 1 0\n"
    )
    memory = read_host_memory(tmp_path)
    assert memory.total_bytes == 127535336 * 1024
    assert memory.huge_blocks == 3 + 2 * 2 + 1
    said = low_free_warning(memory)
    assert said is not None
    assert "drop_caches" in said
    assert "5.00 GiB of 116 GiB" in said


def test_host_memory_that_cannot_be_read_is_null(tmp_path):
    assert read_host_memory(tmp_path) == HostMemory()
    assert low_free_warning(HostMemory()) is None


def test_the_kernel_s_complaints_are_counted_or_explained():
    log = "x NV_ERR_NO_MEMORY y\nfine\nNVRM: NV_ERR_NO_MEMORY\n"
    assert count_complaints(lambda: log).value == 2

    def forbidden():
        raise OSError("Operation not permitted")

    assert count_complaints(forbidden).value is None
    assert "not permitted" in (count_complaints(forbidden).reason or "")


class Unsupported(Exception):
    """As pynvml names it: NVMLError_NotSupported."""


class SparkLibrary:
    """NVML on an integrated GPU: memory is not supported, the rest is."""

    NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = 0

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetMemoryInfo(self, handle):
        raise Unsupported("Not Supported")

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 2281

    def nvmlDeviceGetPowerUsage(self, handle):
        return 92500

    def nvmlDeviceGetTemperature(self, handle, kind):
        return 77


def test_what_nvml_does_not_support_is_null_with_the_reason_and_never_zero():
    state = Nvml(SparkLibrary()).state()
    assert state["memory_used_bytes"] is None
    assert "Not Supported" in state["null_because"]["memory_used_bytes"]
    assert (state["sm_clock_mhz"], state["power_watts"], state["temperature_celsius"]) == (2281, 92.5, 77)


def test_nvml_that_is_not_there_answers_every_question_with_the_reason():
    class Missing:
        def nvmlInit(self):
            raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    nvml = Nvml(Missing())
    assert nvml.driver().value is None
    assert "libnvidia-ml" in (nvml.holders().reason or "")


def test_a_torn_last_line_is_cut_and_whole_lines_stay(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": 2}\n{"c": \xf0\x9f')
    drop_torn_line(path)
    assert path.read_bytes() == b'{"a": 1}\n{"b": 2}\n'
    drop_torn_line(tmp_path / "missing")


def test_a_folder_of_rows_that_has_only_half_a_line(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"trial": "x')
    assert RunFolder(tmp_path).rows() == []


def test_a_trial_survives_the_pipe_and_carries_its_config():
    one = Trial(suite="s", label="l", job=TrainingJob(model="llama3.2-1b"), options={"steps": 2})
    assert one.job is not None
    assert one.job.config is not None
    again = Trial.from_json(json.loads(json.dumps(one.to_json())))
    assert again == one
    assert again.key == one.key == one.on("h200").key
    assert one.with_(job=one.job.with_(micro_batch=2)).key != one.key


@pytest.fixture(scope="module")
def trials():
    """Of all suites: random ones take seconds to draw."""
    return trials_of(["all"])


def test_every_suite_is_a_list_of_distinct_trials_with_known_models(trials):
    assert len({trial.key for trial in trials}) == len(trials)
    assert {trial.suite for trial in trials} == set(SUITES)
    assert 6 <= len(SUITES["verify"]()) <= 10
    with pytest.raises(ValueError, match="suite: 'lessons' is not one of"):
        trials_of(["lessons"])


def test_random_jobs_reach_every_lever_of_one_rank_and_every_family(trials):
    jobs = [trial.job for trial in trials if trial.suite == "random-wide"]
    for lever, values in LEVERS.items():
        assert {getattr(job, lever) for job in jobs} == set(values), lever
    assert {job.config["model_type"] for job in jobs} == set(FAMILIES)
    assert {job.sharding.mode for job in jobs} == {"none", "fsdp2"}


def test_neighbours_that_only_ask_for_memory_are_grouped():
    memory = [Trial(suite="s", label=str(i), passes=("memory",)) for i in range(3)]
    timed = Trial(suite="s", label="t", passes=("memory", "timing"))
    assert [len(g) for g in grouped([*memory[:2], timed, memory[2]], 4)] == [2, 1, 1]
    assert [len(g) for g in grouped(memory, 1)] == [1, 1, 1]


def test_the_allocator_is_told_to_fail_early_only_where_torch_knows_the_word():
    base = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    new = worker_environment(Settings(), base, (2, 13))
    assert new["PYTORCH_ALLOC_CONF"] == "expandable_segments:True,throw_on_cudamalloc_oom:True"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in new
    old = worker_environment(Settings(), base, (2, 11))
    assert old["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert worker_environment(Settings(), {}, (2, 9)).get("PYTORCH_CUDA_ALLOC_CONF") is None
    assert new["HF_HUB_OFFLINE"] == "1"


def test_the_next_worker_is_started_before_it_is_needed():
    started = []

    class Worker:
        pid = 1

        def __init__(self):
            started.append(self)

        def receive(self, timeout):
            return {"event": "ready"}

        def kill(self):
            pass

        def end(self, patience_seconds):
            return 0

        def close(self):
            pass

    bench = Bench(Worker, ready=1, total=3)
    assert len(started) == 1
    bench.take()
    assert len(started) == 2
    bench.take()
    bench.take()
    assert len(started) == 3
    bench.close()


def test_a_worker_that_was_waited_for_makes_twice_as_many_wait(monkeypatch):
    monkeypatch.setattr("trainmem_backend.measure.bench._SHORT_WAIT_SECONDS", 0.0)
    started = []

    class Slow:
        def __init__(self):
            started.append(self)

        def receive(self, timeout):
            if timeout == 0.0:
                raise TimeoutError
            return {"event": "ready"}

    bench = Bench(Slow, ready=1, total=9, most=3)
    for _ in range(4):
        bench.take()
    # Four taken and never more than three waiting.
    assert len(started) == 4 + 3


def test_a_progress_line_says_what_was_predicted_what_came_and_what_is_left(capsys):
    row = {
        "suite": "lesson",
        "label": "baseline",
        "outcome": "ok",
        "measured": {"peak_allocated_bytes": 44 * GIB},
    }
    said = row_line(row, 45 * GIB, 7.1)
    assert said == "lesson/baseline: predicted 45.0 GiB (+2.27%), measured 44.0 GiB, 7.1 s"
    ticks = iter([0.0, 60.0])
    progress = Progress(3, clock=lambda: next(ticks))
    progress.begin("lesson/baseline", 45 * GIB)
    progress.row(row, 45 * GIB, 7.1)
    assert capsys.readouterr().err.startswith("[1 of 3] lesson/baseline")
    progress.end()
    progress.row(row, 45 * GIB, 7.1)
    assert "[2 of 3, about 2.0 min left]" in capsys.readouterr().err


def test_a_progress_line_does_not_repeat_all_that_torch_says_of_memory():
    reason = "OutOfMemoryError: CUDA out of memory. Tried to allocate 5.75 GiB. GPU 0 has a total capacity of so much"
    said = row_line({"suite": "lesson", "label": "b = 30", "outcome": "oom", "reason": reason}, None, 1.0)
    assert said.endswith("oom: OutOfMemoryError: CUDA out of memory. Tried to allocate 5.75 GiB.")


def test_a_worker_imports_what_its_run_needs_and_no_more():
    job = TrainingJob(model="llama3.2-1b")
    trials = [Trial(suite="t", label="plain", job=job), Trial(suite="t", label="machine", kind="machine")]
    assert [trial.libraries for trial in trials] == [(), ()]
    packed = job.with_(lora=Lora(rank=8), base_quantization="nf4", loss="liger_fused")
    needed = ("peft", "bitsandbytes", "liger_kernel.transformers")
    assert Trial(suite="t", label="packed", job=packed).libraries == needed
