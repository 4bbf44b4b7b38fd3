"""The pass that looks inside a step: saved tensors by hooks, attention kernels by the operations that ran."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainmem_backend.measure.device import Device

__all__ = ["ATTENTION_KERNELS", "AttentionWatch", "SavedTensors", "hooks_pass"]

ATTENTION_KERNELS = {
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash (CPU)",
    "_scaled_dot_product_efficient_attention": "memory-efficient",
    "_scaled_dot_product_attention_math": "math",
}


class AttentionWatch(TorchDispatchMode):
    """Counts which kernel each scaled_dot_product_attention came down to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and remember it when it is an attention kernel."""
        kernel = ATTENTION_KERNELS.get(func.overloadpacket.__name__)
        if kernel is not None:
            self.seen[kernel] += 1
        return func(*args, **(kwargs or {}))


class AttentionCalls(TorchFunctionMode):
    """Counts calls of scaled_dot_product_attention: those that no fused kernel served were plain mathematics,
    which is taken apart before a dispatch mode can see it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, and count it when it is attention."""
        self.calls += func is torch.nn.functional.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


class SavedTensors:
    """Counts what autograd saves for backward: each storage once, parameters apart.

    Equation: sum over distinct storages of the bytes of the widest view saved. Units: bytes. Leaves out
    what an operation keeps in itself (a fused kernel's random state), tensors kept alive by names in the
    program, and under checkpointing the blocks' inputs, which the checkpoint keeps by itself.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = {
            p.untyped_storage()._cdata for p in model.parameters() if not hasattr(p, "_local_tensor")
        }
        self._seen: dict[int, tuple[int, str]] = {}
        self.tensors = 0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor that is being saved."""
        self.tensors += 1
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return tensor
        if storage._cdata not in self._parameters:
            self._seen[storage._cdata] = (storage.nbytes(), str(tensor.dtype).removeprefix("torch."))
        return tensor

    def to_json(self) -> dict[str, Any]:
        """For the row."""
        by_dtype: Counter[str] = Counter()
        for size, dtype in self._seen.values():
            by_dtype[dtype] += size
        return {
            "bytes": sum(by_dtype.values()),
            "bytes_by_dtype": dict(by_dtype),
            "storages": len(self._seen),
            "tensors": self.tensors,
        }


def hooks_pass(workload: Any, device: Device) -> dict[str, Any]:
    """One more step with everything watched; its times and its peak mean nothing."""
    saved = SavedTensors(workload.model)
    attention, calls = AttentionWatch(), AttentionCalls()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor), attention, calls:
        loss = workload.forward()
    loss_dtype = str(loss.dtype).removeprefix("torch.")
    plain = calls.calls - attention.seen.total()
    if plain > 0:
        attention.seen["math"] = plain
    counted = saved.to_json()
    with attention:
        workload.backward(loss)
    del loss
    workload.zero_grad()
    device.synchronize()
    return {
        "saved_tensors": counted,
        "attention_kernels": dict(attention.seen) or None,
        "loss_dtype": loss_dtype,
    }
