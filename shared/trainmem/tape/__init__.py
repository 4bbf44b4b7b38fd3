"""Rung 2: a training step replayed on byte counts, with Python only.

`record` lays three steps out as allocations and frees for the allocator, `record_by_step` one after the other;
`fast_figures` sums one steady step without laying it out. They raise `Unsupported` for a family or lever that is not
modelled.

They follow the code of transformers 5.17, under which the published rows were measured, and of torch 2.11 to 2.14.
Newer releases allocate otherwise in places (tests/backend/transformers_releases.py names them all): from 5.18 on
experts mask no rows, and the allocator reserves less for them; from 5.19 on rotary tables are no matrix product, so
that the first cuBLAS workspace comes later; from 5.21 on Gemma 2 has no sdpa and takes what eager attention does.
"""

from trainmem.tape.claims import Unsupported
from trainmem.tape.fast import FastFigures, fast_figures
from trainmem.tape.step import record, record_by_step

__all__ = ["FastFigures", "Unsupported", "fast_figures", "record", "record_by_step"]
