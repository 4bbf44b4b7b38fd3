"""What a training script may use that no trace replays: refused where it is used, by one line that says why."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NoReturn

from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.stand_ins import attribute, stand_ins

__all__ = ["refusing_what_no_trace_replays"]

_FLEX = "flex_attention is made of compiled kernels, which a trace cannot replay"
_GRAPHS = "CUDA graphs keep memory in a pool of their own, which a trace does not replay; trace the same step without"
_FSDP1 = "FullyShardedDataParallel (FSDP1) is not replayed; torch's fully_shard (FSDP2) is"
_LIGER = "of Liger's kernels only the loss is replayed, and of a job alone (--loss liger_fused); trace without them"
_LIMITS = (
    ("transformers.trainer", "apply_liger_kernel", _LIGER),
    ("torch.nn.attention.flex_attention", "flex_attention", _FLEX),
    ("transformers.integrations.flex_attention", "flex_attention", _FLEX),
    ("transformers.integrations.flex_attention", "WrappedFlexAttention", _FLEX),
    ("torch.cuda", "CUDAGraph", _GRAPHS),
    ("torch.cuda", "graph", _GRAPHS),
    ("torch.cuda", "make_graphed_callables", _GRAPHS),
    ("torch.distributed.fsdp", "FullyShardedDataParallel.__init__", _FSDP1),
)


def refusing_what_no_trace_replays() -> AbstractContextManager[None]:
    """Calls of it inside raise `TraceError`; a class stays one, as annotations and subclasses of it need."""
    return stand_ins((module, path, _refused(module, path, why)) for module, path, why in _LIMITS)


def _refused(module: str, path: str, why: str) -> Callable[..., NoReturn]:
    def refused(*_: object, **__: object) -> NoReturn:
        raise TraceError(why)

    if isinstance(attribute(sys.modules.get(module), path), type):
        return type(path, (), {"__new__": refused})
    return refused
