"""The private parts of PyTorch that a trace holds on to, checked before it starts."""

from __future__ import annotations

import functools
from importlib import import_module, metadata

from trainmem_backend.trace.errors import TraceError

__all__ = ["require_hook_points", "versions"]

_OLDEST = {"torch": (2, 11), "transformers": (5, 17)}
_HOOK_POINTS = (
    "torch.utils._python_dispatch:_get_current_dispatch_mode_stack",
    "torch.utils._pytree:tree_map",
    "torch._meta_registrations:device_hint",
    "torch._prims_common:suggest_memory_format",
    "torch._C:_get_cudnn_enabled",
    "torch._C:_storage_Use_Count",
    "torch._C:_current_autograd_node",
    "torch._C:_current_graph_task_id",
    "torch._C:_autograd._get_sequence_nr",
    "torch._C:_nn._parse_to",
    "torch._C:_dispatch_get_all_op_names",
    "torch._C:_dispatch_has_kernel_for_dispatch_key",
    "torch._C:_ExcludeDispatchKeyGuard",
    "torch._C:_SetExcludeDispatchKeyGuard",
    "torch._C:_AutoDispatchBelowAutograd",
    "torch._C:DispatchKey.AutocastCPU",
    "torch._C:DispatchKeySet",
    "torch._C:_DisableTorchDispatch",
    "torch._C:DisableTorchFunction",
    "torch:Tensor._use_count",
    "torch:_pad_packed_sequence",
    "torch.autograd:_engine_run_backward",
    "torch.autograd.graph:_engine_run_backward.__code__",
    "torch.library:fallthrough_kernel",
    "torch.optim.optimizer:_foreach_supported_types",
    "torch.optim.optimizer:register_optimizer_step_pre_hook",
    "torch.utils._foreach_utils:_foreach_supported_types",
    "torch.utils._device:_device_constructors",
    "torch.utils._device:CURRENT_DEVICE",
    "torch.utils._python_dispatch:TorchDispatchMode._should_skip_dynamo",
    "torch.utils._python_dispatch:_disable_current_modes",
    "torch._subclasses.fake_tensor:FakeTensorMode",
    "torch._subclasses.fake_tensor:FakeTensor.device.fget",
    "torch._subclasses.fake_tensor:unset_fake_temporarily",
    "torch.nn.modules.module:register_module_forward_pre_hook",
)
"""Module and attribute, without which no trace is right. What is not here is public, or left out with a note where a
release lacks it (`stand_ins.stand_in_or_note`)."""


def versions() -> str:
    """What a trace runs on, in words."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in _OLDEST)


@functools.cache
def require_hook_points() -> None:
    """Raise `TraceError` where a library is too old, or new enough to have dropped what a trace relies on."""
    for library, oldest in _OLDEST.items():
        try:
            version = metadata.version(library)
        except metadata.PackageNotFoundError:
            raise TraceError(f"the trace needs {library}, which is not installed") from None
        if _numbers(version) < oldest:
            raise TraceError(f"the trace needs {library} {oldest[0]}.{oldest[1]} or newer; this is {version}")
    for point in _HOOK_POINTS:
        require(point)


def require(point: str) -> None:
    """Raise `TraceError` where ``point``, "module:attribute", is not there."""
    module_name, _, path = point.partition(":")
    try:
        found: object = import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        raise TraceError(
            f"{versions()}: there is no {module_name}.{path}, which the trace relies on; it is made for torch "
            "2.11 to 2.14 and transformers 5.17 and newer"
        ) from None


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
