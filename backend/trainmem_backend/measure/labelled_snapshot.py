"""Memory snapshots whose tensors are named while they are recorded: the truth for `trainmem.snapshot`'s buckets.

    python -m trainmem_backend.measure.labelled_snapshot OUT              # five small runs, on a CUDA device
    python -m trainmem_backend.measure.labelled_snapshot OUT --only amp lora
    python -m trainmem_backend.measure.labelled_snapshot OUT --dry-run    # on the CPU: labels only, no snapshot

Each run writes ``NAME.pickle.gz`` and ``NAME.labels.json`` and prints how much of the peak was told right. At the
boundaries of the phases the recorder allocates a mark of a size of its own, and writes down the addresses of
parameters, gradients, optimizer state, inputs, and of the tensors that autograd saved and still holds.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from trainmem.job import TrainingJob
from trainmem_backend.workload import Workload, build_workload

__all__ = ["CONFIGURATIONS", "Labeller", "main", "record"]

_MARK_BYTES = 777_001
_MOST_FILE_BYTES = 16 << 20
_STEPS = 3
_SMALL_GPT2 = {
    "model_type": "gpt2",
    "n_layer": 4,
    "n_embd": 768,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
_BASE = {
    "config": _SMALL_GPT2,
    "micro_batch": 4,
    "sequence_length": 512,
    "precision": "amp_bf16",
    "device": "h200",
}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "amp": {},
    "checkpointing": {"checkpointing": "full"},
    "eager": {"attention": "eager"},
    "adamw8bit": {"optimizer": "adamw8bit"},
    "lora": {"precision": "bf16", "lora": {"rank": 16, "targets": "all-linear"}},
}
"""Changes to the first run, a four-layer GPT-2 under mixed precision with AdamW."""


class Labeller:
    """Names the tensors of a workload and knows at every moment which of them are still there."""

    def __init__(self, workload: Workload, device: str) -> None:
        self._workload = workload
        self._device = device
        self._saved: list[weakref.ref[torch.Tensor]] = []
        self._vocabulary = int(workload.model.config.get_text_config().vocab_size)
        self._casts: dict[int, list[torch.Tensor]] = {}
        self.marks: list[dict[str, Any]] = []

    def saving(self) -> torch.autograd.graph.saved_tensors_hooks:
        """A context in which every tensor that autograd saves is noted."""

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            self._saved.append(weakref.ref(tensor))
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    def know_casts(self) -> None:
        """Keep what each fp32 parameter looks like in 16 bits, to recognise its cast by value. Call before forward."""
        self._casts.clear()
        for parameter in self._workload.model.parameters():
            if parameter.dtype == torch.float32 and parameter.numel() > 1:
                cast = parameter.detach().cpu().to(torch.bfloat16).flatten()
                self._casts.setdefault(cast.numel(), []).append(cast)

    def mark(self, moment: str) -> None:
        """Leave a mark in the trace, and the labels of this moment beside it."""
        size = _MARK_BYTES + len(self.marks)
        labels = self._labels()
        stone = torch.empty(size, dtype=torch.uint8, device=self._device)
        del stone
        self.marks.append({"moment": moment, "size": size, "labels": labels})

    def _labels(self) -> dict[str, str]:
        labels: dict[str, str] = {}

        def name(tensors: Iterable[Any], label: str) -> None:
            for tensor in tensors:
                if isinstance(tensor, torch.Tensor) and tensor.device.type == self._device:
                    address = tensor.untyped_storage().data_ptr()
                    if address:
                        labels.setdefault(str(address), label)

        workload = self._workload
        parameters = list(workload.model.parameters())
        name(parameters, "weight")
        name(_quantized_parts(parameters), "weight")
        name(workload.model.buffers(), "weight")
        if workload.masters is not None:
            name(workload.masters.parameters, "master")
            name((parameter.grad for parameter in workload.masters.parameters), "gradient")
        name((parameter.grad for parameter in parameters), "gradient")
        name(_state_tensors(workload.optimizer), "state")
        name(workload.batch.values(), "input")
        for saved in self._living():
            name((saved,), self._saved_label(saved))
        return labels

    def _living(self) -> Iterator[torch.Tensor]:
        self._saved = [reference for reference in self._saved if reference() is not None]
        for reference in self._saved:
            tensor = reference()
            if tensor is not None:
                yield tensor

    def _saved_label(self, tensor: torch.Tensor) -> str:
        storage = tensor.untyped_storage()
        numel = storage.nbytes() // tensor.element_size()
        if tensor.dtype == torch.bfloat16 and numel in self._casts:
            # Compared on the host, so that looking allocates nothing on the device.
            flat = (
                torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                .set_(storage, 0, (numel,), (1,))
                .cpu()
            )
            if any(torch.equal(flat, cast) for cast in self._casts[numel]):
                return "saved_cast"
        tokens = self._workload.job.micro_batch * self._workload.job.sequence_length
        return "saved_logits" if numel >= self._vocabulary * (tokens - tokens // 100) else "saved"


def _state_tensors(optimizer: Any) -> Iterator[Any]:
    """Everything an optimizer keeps, however it nests it."""
    waiting: list[Any] = list(optimizer.state.values())
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)


def _quantized_parts(parameters: Iterable[Any]) -> Iterator[Any]:
    """Scales of quantised weights."""
    for parameter in parameters:
        state = getattr(parameter, "quant_state", None)
        while state is not None:
            yield from (getattr(state, part, None) for part in ("absmax", "code", "offset"))
            state = getattr(state, "state2", None)


def record(job: TrainingJob, device: str = "cuda", *, steps: int = _STEPS) -> tuple[bytes, dict[str, Any]]:
    """The gzipped snapshot (empty on the CPU) and the labels of a few training steps."""
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    try:
        workload = build_workload(job, device=device)
        workload.model.train()
        labeller = Labeller(workload, device)
        for step in range(1, steps + 1):
            labeller.know_casts()
            labeller.mark(f"start of step {step}")
            for phase, micro, run in workload.phases():
                if phase == "forward":
                    with labeller.saving():
                        run()
                else:
                    run()
                labeller.mark(f"{phase} {micro} of step {step}")
        snapshot = _dump() if on_gpu else b""
    finally:
        if on_gpu:
            torch.cuda.memory._record_memory_history(enabled=None)
    facts = {
        "job": job.to_json(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "max_memory_allocated": torch.cuda.max_memory_allocated() if on_gpu else None,
        "max_memory_reserved": torch.cuda.max_memory_reserved() if on_gpu else None,
        "marks": labeller.marks,
    }
    del workload, labeller
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
    return snapshot, facts


def _dump() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(path))
        return gzip.compress(path.read_bytes(), mtime=0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the configurations, one after another; a failing one does not stop the others."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=tuple(CONFIGURATIONS), default=list(CONFIGURATIONS))
    parser.add_argument(
        "--dry-run", action="store_true", help="on the CPU, with a tiny model, without snapshots"
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.only:
        settings = {**_BASE, **CONFIGURATIONS[name]}
        if options.dry_run:
            tiny = {
                **_SMALL_GPT2,
                "n_embd": 48,
                "n_head": 4,
                "n_layer": 2,
                "vocab_size": 640,
                "n_positions": 32,
            }
            settings |= {"config": tiny, "sequence_length": 32}
        try:
            snapshot, facts = record(TrainingJob.from_json(settings), "cpu" if options.dry_run else "cuda")
        except Exception as error:  # one configuration may need a library or a kernel that is not there
            print(f"{name}: failed: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
            failed += 1
            continue
        (options.out / f"{name}.labels.json").write_text(json.dumps(facts), encoding="utf-8")
        if snapshot:
            if len(snapshot) > _MOST_FILE_BYTES:
                print(f"{name}: {len(snapshot):,} bytes is more than {_MOST_FILE_BYTES:,}", file=sys.stderr)  # noqa: T201
            (options.out / f"{name}.pickle.gz").write_bytes(snapshot)
            print(f"{name}: {_scored(options.out, name)}")  # noqa: T201
        else:
            print(f"{name}: {len(facts['marks'])} marks")  # noqa: T201
    return 1 if failed else 0


def _scored(folder: Path, name: str) -> str:
    from trainmem.snapshot import analyse, read_snapshot
    from trainmem.snapshot.truth import score

    facts = json.loads((folder / f"{name}.labels.json").read_text(encoding="utf-8"))
    device = analyse(read_snapshot(folder / f"{name}.pickle.gz")).devices[0]
    found = score(device, facts["marks"])
    counter = facts["max_memory_allocated"]
    mistakes = ", ".join(
        f"{label} as {bucket} {size / 1e6:.1f} MB" for (label, bucket), size in found.mistakes.items()
    )
    return (
        f"{found.share:.2%} of {found.peak_bytes:,} bytes right ({found.labelled_bytes / found.peak_bytes:.1%} "
        "labelled; "
        f"counter {counter:,}, off by {device.peak_allocated_bytes - counter:+,}); mistakes: {mistakes or 'none'}"
    )


if __name__ == "__main__":
    sys.exit(main())
