"""Sharded models on a virtual GPU: streams, storages that are emptied and filled again, a group of one process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from unittest import mock

import torch

from trainmem_backend.trace.data_parallel import VirtualDataParallel
from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.record_mode import RecordMode
from trainmem_backend.trace.recorder import BUCKET_INDEX, Recorder
from trainmem_backend.trace.stand_ins import attribute, stand_in_or_note

__all__ = ["leaving_groups", "virtual_sharding"]

_COMMUNICATION = BUCKET_INDEX["communication"]
_FILLING = (
    ("_fsdp_param_group", "foreach_all_gather"),
    ("_fsdp_param_group", "foreach_all_gather_copy_out"),
    ("_fsdp_param_group", "foreach_reduce"),
    ("_fsdp_param_group", "FSDPParamGroup.wait_for_unshard"),
)
"""Functions of FSDP2 whose allocations are communication: buffers of collectives and gathered parameters."""

_FILLS = {torch.ops.aten.uniform_.default, torch.ops.aten.normal_.default}

_ASKING = ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta")


@contextlib.contextmanager
def virtual_sharding(record_mode: RecordMode) -> Iterator[None]:
    """FSDP2 empties a gathered parameter's storage after use and fills it before the next.

    DTensor finds out the shape of an op's result by running it on other fake tensors, which are not recorded.
    """
    recorder = record_mode.recorder
    resize: Any = torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size_bytes: int) -> torch.UntypedStorage:
        result: torch.UntypedStorage = resize(storage, size_bytes)
        recorder.resized(storage, size_bytes)
        return result

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.UntypedStorage, "resize_", resized))
        if torch.distributed.is_available():
            stand_in_or_note(stack, _fsdp2(record_mode), "torch's fully_shard (FSDP2)", recorder.note)
        yield


@contextlib.contextmanager
def _fsdp2(record_mode: RecordMode) -> Iterator[None]:
    from torch.distributed.fsdp import _fully_shard
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    with contextlib.ExitStack() as stack:
        for module_name, name in _FILLING:
            *parents, own = f"{module_name}.{name}".split(".")
            owner = attribute(_fully_shard, ".".join(parents))
            if not hasattr(owner, own):
                raise TraceError(f"torch {torch.__version__} has no {module_name}.{name}")
            filled = _as_communication(record_mode.recorder, getattr(owner, own))
            stack.enter_context(mock.patch.object(owner, own, filled))
        for module_name in ("_fsdp_init", "_fully_shard"):
            owner = getattr(_fully_shard, module_name, None)
            find: Any = getattr(owner, "_get_managed_states", None)
            if find is not None:
                faked = _with_fake_buffers(record_mode, find)
                stack.enter_context(mock.patch.object(owner, "_get_managed_states", faked))
        for name in _ASKING:
            asking = getattr(ShardingPropagator, name, None)
            if asking is not None:
                paused = _paused(record_mode, asking)
                stack.enter_context(mock.patch.object(ShardingPropagator, name, paused))
        yield


def _with_fake_buffers(record_mode: RecordMode, find: Callable[..., Any]) -> Callable[..., Any]:
    """FSDP2 moves buffers to the device by setting their data, which no tensor of the host takes from a fake one."""

    @wraps(find)
    def found(modules: list[torch.nn.Module], *args: Any, **kwargs: Any) -> Any:
        for module in modules:
            for name, buffer in module._buffers.items():
                if type(buffer) is torch.Tensor and buffer.device.type == "cpu":
                    module._buffers[name] = record_mode.fakes.mode.from_tensor(buffer)
        return find(modules, *args, **kwargs)

    return found


def _paused(record_mode: RecordMode, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def paused(propagator: Any, op_schema: Any) -> Any:
        first: Any = op_schema.args_schema[0] if op_schema.args_schema else None
        if op_schema.op in _FILLS and hasattr(first, "tensor_meta"):
            # as large as before; PyTorch would draw numbers on a GPU to find that out
            return first.tensor_meta
        with record_mode.paused():
            return function(propagator, op_schema)

    return paused


def _as_communication(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def filled(*args: Any, **kwargs: Any) -> Any:
        with recorder.filling(_COMMUNICATION):
            return function(*args, **kwargs)

    return filled


@contextlib.contextmanager
def leaving_groups(recorder: Recorder) -> Iterator[None]:
    """A process group that was joined inside is left at the end."""
    import torch.distributed as dist

    if not dist.is_available():
        yield
        return

    class DataParallel(VirtualDataParallel):
        communicating = staticmethod(lambda: recorder.filling(_COMMUNICATION))

    before = dist.is_initialized()
    join = dist.init_process_group

    def joined(backend: str | None = None, *args: Any, **options: Any) -> None:
        """Whatever the program asks for, collectives do nothing here."""
        from torch.testing._internal.distributed.fake_pg import FakeStore

        size = options.get("world_size", -1)
        if size < 1:
            size = int(os.environ.get("WORLD_SIZE", "1"))
        join("fake", store=FakeStore(), rank=max(0, options.get("rank", 0)), world_size=size)

    try:
        with (
            mock.patch.object(dist, "init_process_group", joined),
            # by which fully_shard joins a group where the program has not
            mock.patch.object(dist.distributed_c10d, "init_process_group", joined),
            mock.patch.object(torch.nn.parallel, "DistributedDataParallel", DataParallel),
        ):
            yield
    finally:
        if dist.is_initialized() and not before:
            dist.destroy_process_group()
