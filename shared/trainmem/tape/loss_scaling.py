"""torch.amp.GradScaler's own scalars (torch/amp/grad_scaler.py), for one device.

Each takes a block of 512 bytes. A step that finds no overflow is laid down: the optimizer runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trainmem.buckets import BUCKETS
from trainmem.tape.core import Tape
from trainmem.tape.optimizers import Sink

__all__ = ["scale_and_growth", "unscaled"]

_SCRATCH = BUCKETS.index("temporaries")


def scale_and_growth(tape: Tape) -> None:
    """The scale and its growth tracker, made when the first loss is scaled."""
    for name in ("loss scale", "loss scale growth tracker"):
        tape.workspace(name, (4,))


@contextmanager
def unscaled(sink: Sink, *, fused: bool) -> Iterator[None]:
    """GradScaler.step around the optimizer's: the inverse of the scale, and a flag for overflows.

    ``fused``: the optimizer unscales by itself. It is handed the scale and the sum of the flags.
    """
    if fused:
        inverse = sink.allocate(4, _SCRATCH, "inverse loss scale")
    else:
        double = sink.allocate(8, _SCRATCH, "loss scale in fp64")
        reciprocal = sink.allocate(8, _SCRATCH, "loss scale in fp64")
        sink.free(double)
        inverse = sink.allocate(4, _SCRATCH, "inverse loss scale")
        sink.free(reciprocal)
    found = sink.allocate(4, _SCRATCH, "found overflow")
    found_here = sink.allocate(4, _SCRATCH, "found overflow")
    inverse_here = sink.allocate(4, _SCRATCH, "inverse loss scale")
    for number in (inverse_here, inverse, found):
        sink.free(number)
    handed = [sink.allocate(4, _SCRATCH, "loss scale for the optimizer") for _ in range(2 if fused else 0)]
    yield
    for number in (*reversed(handed), found_here):
        sink.free(number)
