"""What libraries for several GPUs do where one process has one GPU, as a trace of a script does."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_map

from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.stand_ins import attribute

__all__ = ["one_process"]

_PLUGINS = {"fsdp_plugin": "FSDP", "deepspeed_plugin": "DeepSpeed", "megatron_lm_plugin": "Megatron-LM"}


@contextlib.contextmanager
def one_process(note: Callable[[str], None]) -> Iterator[None]:
    """Inside, `DataParallel` runs on its one GPU, and ``note`` is told of sharding that a script asks accelerate for
    and that one process alone does without.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.nn.DataParallel, "scatter", _moved))
        accelerator: Any = getattr(sys.modules.get("accelerate.accelerator"), "Accelerator", None)
        if accelerator is not None:
            stack.enter_context(
                mock.patch.object(accelerator, "__init__", _noting(accelerator.__init__, note))
            )
            _forget_accelerators()
            stack.callback(_forget_accelerators)
        yield


def _forget_accelerators() -> None:
    """accelerate holds one state a process, and a trace's ends with it."""
    state: Any = sys.modules.get("accelerate.state")
    for name, arguments in (("AcceleratorState", (True,)), ("GradientState", ())):
        forget = attribute(state, f"{name}._reset_state")
        if forget is not None:
            forget(*arguments)


def _moved(self: Any, inputs: Any, kwargs: Any, device_ids: list[int]) -> tuple[Any, Any]:
    """The batch on the one GPU: what comes from the host is copied in a stream of its own
    (torch/nn/parallel/_functions.py, Scatter).
    """
    if len(device_ids) > 1:
        raise TraceError(f"DataParallel: {len(device_ids)} GPUs; a trace has one")
    stream = torch.cuda.Stream()

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.is_cuda:
            return value
        with torch.cuda.stream(stream):
            return value.to("cuda", non_blocking=True)

    return (tree_map(move, inputs),), (tree_map(move, kwargs),)


def _noting(make: Callable[..., None], note: Callable[[str], None]) -> Callable[..., None]:
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        asked = [title for name, title in _PLUGINS.items() if kwargs.get(name) is not None]
        if asked and str(self.distributed_type).endswith("NO"):
            note(
                f"accelerate: the script asks for {asked[0]}, and one process alone, as here, trains without it: "
                "this is the memory of the whole model on one GPU; --data-parallel N traces one of N ranks"
            )

    return made
