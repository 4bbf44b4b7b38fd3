"""The training step that a `TrainingJob` describes, as real torch code.

The measuring harness runs it on a GPU and the trace replays it on fake tensors, so both see one program.
"""

from trainmem_backend.workload.model import build_model, parameter_dtype
from trainmem_backend.workload.optimizers import build_optimizer
from trainmem_backend.workload.step import Workload, assemble, build_workload

__all__ = ["Workload", "assemble", "build_model", "build_optimizer", "build_workload", "parameter_dtype"]
