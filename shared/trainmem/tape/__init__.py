"""Rung 2: a training step replayed on byte counts, with Python only.

`record` lays three steps out as allocations and frees for the allocator, `record_by_step` one after the other;
`fast_figures` sums one steady step without laying it out. They raise `Unsupported` for a family or lever that is not
modelled.
"""

from trainmem.tape.claims import Unsupported
from trainmem.tape.fast import FastFigures, fast_figures
from trainmem.tape.step import record, record_by_step

__all__ = ["FastFigures", "Unsupported", "fast_figures", "record", "record_by_step"]
