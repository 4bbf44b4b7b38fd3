"""The part of trainmem that runs real model code: the trace (no GPU) and the measurements (a GPU)."""
