"""Training programs of one's own, traced as they stand: steps, phases, habits that cost memory, failures."""

from pathlib import Path

import pytest

from trainmem.job import JobError, Sharding, TrainingJob
from trainmem.recording import StepFigures, counters, read_step
from trainmem_backend.trace import trace
from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.program import trace_script

EXAMPLES = Path(__file__).parents[2] / "examples"
MIB = 1 << 20


def traced(script: Path, *arguments: str, steps: int = 2) -> StepFigures:
    recording = trace_script(script, list(arguments), steps=steps)
    assert [mark.step for mark in recording.marks if mark.phase == "optimizer"] == list(range(1, steps + 1))
    return read_step(recording, counters(recording), steps)


def test_each_habit_shows_its_cost() -> None:
    script = EXAMPLES / "hand_written_gpt.py"
    plain, late, clipped, kept = (
        traced(script, *habit) for habit in ((), ("--late-zero-grad",), ("--clip",), ("--keep-logits",))
    )
    weights = plain.buckets_at_peak["weights"]
    # gradients that are dropped after the forward are there at its beginning, and while it runs
    assert late.phases["start_bytes"] - plain.phases["start_bytes"] == pytest.approx(weights, rel=0.05)
    assert late.phases["peak_forward_bytes"] > plain.phases["peak_forward_bytes"] + weights // 2
    # logits in bf16, 8 x 512 tokens, 32,000 words, held while the next ones are made
    assert kept.peak_allocated_bytes - plain.peak_allocated_bytes == pytest.approx(
        8 * 512 * 32_000 * 2, rel=0.01
    )
    assert clipped.peak_allocated_bytes >= plain.peak_allocated_bytes


@pytest.mark.parametrize(("model", "parameters"), [("vit", 85_806_346), ("resnet", 23_528_522)])
def test_models_that_are_no_language_models(model: str, parameters: int) -> None:
    recording = trace_script(EXAMPLES / "vision.py", ["--model", model, "--batch", "2"], steps=2)
    step = read_step(recording, counters(recording), 2)
    assert recording.parameters == parameters
    assert step.buckets_at_peak["weights"] >= 4 * parameters
    assert step.phases["after_zero_grad_bytes"] == step.phases["start_bytes"]


def script(folder: Path, body: str) -> Path:
    path = folder / "train.py"
    path.write_text("import torch\nmodel = torch.nn.Linear(256, 256).cuda()\n" + body, encoding="utf-8")
    return path


def test_memory_counters_answer_from_the_replay(tmp_path: Path) -> None:
    body = (
        "before = torch.cuda.memory_allocated()\n"
        "big = torch.empty(8 << 20, device='cuda')\n"
        "assert torch.cuda.memory_allocated() - before == 32 << 20\n"
        "del big\n"
        "assert torch.cuda.memory_allocated() == before\n"
        "assert torch.cuda.max_memory_allocated() == before + (32 << 20)\n"
        "torch.cuda.reset_peak_memory_stats()\n"
        "assert torch.cuda.max_memory_allocated() == before\n"
        "assert torch.cuda.mem_get_info()[0] < torch.cuda.mem_get_info()[1]\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(9):\n"
        "    model(torch.ones(4, 256, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    assert traced(script(tmp_path, body), steps=3).peak_allocated_bytes < 80 * MIB


def test_gradients_of_two_forwards_add_up_in_one_step(tmp_path: Path) -> None:
    body = (
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(9):\n"
        "    for _ in range(2):\n"
        "        model(torch.ones(4, 256, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    recording = trace_script(script(tmp_path, body), [], steps=1)
    marks = [(mark.phase, mark.micro) for mark in recording.marks if mark.step == 1]
    assert marks[:4] == [("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1)]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("model(torch.ones(1, 256, device='cuda'))\n", "never called optimizer.step"),
        ("\nraise KeyError('lr')\n", r"train\.py, line 4: KeyError: 'lr'"),
        ("raise SystemExit('no data')\n", r"train\.py: it exits with no data"),
        ("model(torch.ones(1, 3, device='cuda'))\n", r"train\.py, line 3: "),
    ],
)
def test_what_cannot_be_traced_is_one_line(tmp_path: Path, body: str, line: str) -> None:
    with pytest.raises(TraceError, match=line) as failure:
        trace_script(script(tmp_path, body), [])
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("sharding", [Sharding(tensor_parallel=2), Sharding(offload="cpu")])
def test_a_lever_that_would_be_left_out_is_refused(sharding: Sharding) -> None:
    with pytest.raises(JobError, match=r"^sharding\.(tensor_parallel|offload): the trace replays"):
        trace(TrainingJob(model="gpt2-124m", sharding=sharding))
