"""What a training script may use that no trace replays: refused where it is used, by one line that says why."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from unittest import mock

from trainmem_backend.trace.errors import TraceError

__all__ = ["refusing_what_no_trace_replays"]

_FLEX = "flex_attention is made of compiled kernels, which a trace cannot replay"
_GRAPHS = "CUDA graphs keep memory in a pool of their own, which a trace does not replay; trace the same step without"
_FSDP1 = "FullyShardedDataParallel (FSDP1) is not replayed; torch's fully_shard (FSDP2) is"
_ACCELERATE = (
    "accelerate's FSDP is not replayed; torch's fully_shard (FSDP2), called by the script itself, is"
)
_LIMITS = (
    ("accelerate.accelerator", "fsdp2_prepare_model", _ACCELERATE),
    ("torch.nn.attention.flex_attention", "flex_attention", _FLEX),
    ("transformers.integrations.flex_attention", "flex_attention", _FLEX),
    ("transformers.integrations.flex_attention", "WrappedFlexAttention", _FLEX),
    ("torch.cuda", "CUDAGraph", _GRAPHS),
    ("torch.cuda", "graph", _GRAPHS),
    ("torch.cuda", "make_graphed_callables", _GRAPHS),
    ("torch.distributed.fsdp", "FullyShardedDataParallel.__init__", _FSDP1),
)


@contextlib.contextmanager
def refusing_what_no_trace_replays() -> Iterator[None]:
    """Calls of it inside raise `TraceError`."""
    with contextlib.ExitStack() as stack:
        for module, path, why in _LIMITS:
            owner: Any = sys.modules.get(module)
            *parents, own = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent, None)
            if hasattr(owner, own):
                stack.enter_context(mock.patch.object(owner, own, _refused(why)))
        yield


def _refused(why: str) -> Callable[..., NoReturn]:
    def refused(*_: object, **__: object) -> NoReturn:
        raise TraceError(why)

    return refused
