"""Rung 2: a training step replayed on byte counts, with Python only.

`record` lays three steps out as allocations and frees for the allocator; `fast_figures` sums one steady step
without laying it out. Both raise `Unsupported` for a family or lever that is not modelled.
"""

from trainmem.tape.claims import Unsupported
from trainmem.tape.fast import FastFigures, fast_figures
from trainmem.tape.step import record

__all__ = ["FastFigures", "Unsupported", "fast_figures", "record"]
