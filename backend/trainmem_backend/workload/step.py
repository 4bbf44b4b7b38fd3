"""A model, its optimizer and its batch, with the parts of a training step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trainmem.job import TrainingJob
from trainmem.recording import Phase
from trainmem.tape.packing import packed_by_block
from trainmem_backend.workload.lean import bare_model, pack_by_block
from trainmem_backend.workload.masters import Masters
from trainmem_backend.workload.model import build_model, model_config
from trainmem_backend.workload.optimizers import build_optimizer

__all__ = ["Workload", "assemble", "build_workload"]


@dataclass
class Workload:
    """Everything a training step needs; `phases` runs one."""

    job: TrainingJob
    model: Any
    optimizer: Any
    batch: dict[str, torch.Tensor]
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    scaler: Any = None
    masters: Masters | None = None

    def forward(self) -> torch.Tensor:
        """The loss of one micro batch."""
        with self.autocast():
            loss: torch.Tensor = self.model(**self.batch).loss
        return loss / self.job.accumulation if self.job.accumulation > 1 else loss

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of one micro batch."""
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def optimizer_step(self) -> None:
        """Update the parameters."""
        if self.masters is not None:
            self.masters.take_gradients()
            self.optimizer.step()
            self.masters.copy_back()
        elif self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def zero_grad(self) -> None:
        """Forget the gradients, as the job says."""
        self.optimizer.zero_grad(set_to_none=self.job.zero_grad == "none")

    def phases(self) -> Iterator[tuple[Phase, int, Callable[[], None]]]:
        """(phase, micro batch, what to run) in the order of one step."""
        kept: list[torch.Tensor] = []

        def forward() -> None:
            kept.append(self.forward())

        def backward() -> None:
            self.backward(kept.pop())

        for micro in range(self.job.accumulation):
            yield "forward", micro, forward
            yield "backward", micro, backward
        yield "optimizer", 0, self.optimizer_step
        yield "zero_grad", 0, self.zero_grad


def build_workload(
    job: TrainingJob,
    config: Mapping[str, Any] | None = None,
    device: str = "cuda",
    *,
    room_bytes: int | None = None,
) -> Workload:
    """Everything a step needs, on ``device``; ``config`` is the job's own where it is not given.

    A quantised model too large for ``room_bytes``, or for the job's device, is packed block by block.
    """
    if config is None:
        config = model_config(job)
    if job.base_quantization != "none":
        bare = bare_model(job, config)
        parameters = sum(parameter.numel() for parameter in bare.parameters())
        if packed_by_block(job, parameters, room_bytes):
            return assemble(job, pack_by_block(job, bare, device), device)
    return assemble(job, build_model(job, config, device), device)


def assemble(job: TrainingJob, model: Any, device: str) -> Workload:
    """A model that is built, sharded or not, with master weights, optimizer, autocast and batch as the job says."""
    masters = None
    parameters = list(model.parameters())
    if job.lora is None and job.precision in ("bf16_master", "bf16_master_fp32_grads"):
        # adapters are fp32 already
        masters = Masters(parameters, fp32_gradients=job.precision == "bf16_master_fp32_grads")
        parameters = masters.parameters
    optimizer = build_optimizer(job, parameters)
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    scaler = None
    if job.precision in ("amp_bf16", "amp_fp16"):
        dtype = torch.bfloat16 if job.precision == "amp_bf16" else torch.float16
        autocast = partial(torch.autocast, device, dtype=dtype)
        if dtype is torch.float16:
            scaler = torch.amp.GradScaler(device)
    workload = Workload(
        job=job,
        model=model,
        optimizer=optimizer,
        batch=_batch(job, model, device),
        autocast=autocast,
        scaler=scaler,
        masters=masters,
    )
    if device == "cuda":
        # What building left over is not part of a step: the cache starts at what the model holds.
        gc.collect()
        torch.cuda.empty_cache()
    return workload


def _batch(job: TrainingJob, model: Any, device: str) -> dict[str, torch.Tensor]:
    """Random tokens; a language model's labels are its inputs, and no mask is given."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = torch.randint(0, vocabulary, (job.micro_batch, job.sequence_length), device=device)
    if job.task == "causal_lm":
        return {"input_ids": ids, "labels": ids}
    return {"input_ids": ids, "labels": torch.randint(0, 2, (job.micro_batch,), device=device)}
