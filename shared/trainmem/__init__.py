"""trainmem: whether a training job fits on a machine, what fills the memory and when the peak comes."""

__version__ = "0.1.0"
