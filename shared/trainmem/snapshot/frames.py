"""What single frames say: bits for each kind of code that matters to phases and buckets."""

from __future__ import annotations

import re
from typing import Final

from trainmem.snapshot.model import Frame

__all__ = ["Mark", "is_plumbing", "is_python", "line_of", "marks_of"]


class Mark:
    """Kinds of frames, as bits of an integer. A frame can be several."""

    # Plain integers: flags of the enum module take a microsecond an operation, and there are a million.
    PYTHON: Final = 1
    PLUMBING: Final = 2
    """Python that passes a call on: module hooks, wrappers, functional front ends, the import system."""

    MODULE_CALL: Final = 4
    MODULE_BUILD: Final = 8
    """Construction, loading or moving of a module."""

    BACKWARD: Final = 16
    RECOMPUTE: Final = 32
    """A checkpoint's second forward, which runs inside backward."""

    OPTIMIZER: Final = 64
    ZERO_GRAD: Final = 128
    LOSS: Final = 256
    AUTOCAST_EXIT: Final = 512
    COLLECTIVE: Final = 1024
    WORKSPACE: Final = 2048
    STATE: Final = 4096
    """Creation of an optimizer's state."""

    MASTER: Final = 8192
    AUTOGRAD_FUNCTION: Final = 16384
    """A Python autograd function's backward when it is the outermost frame."""


_PLUMBING_FILES = re.compile(
    r"^(?:torch/(?:nn/modules/|nn/functional\.py|utils/_device\.py|utils/_contextlib\.py|utils/checkpoint\.py|"
    r"_compile\.py|_dynamo/|_ops\.py|_tensor\.py|autograd/|amp/|overrides\.py|_jit_internal\.py|cuda/|"
    r"nn/parallel/|optim/optimizer\.py|_higher_order_ops/|_functorch/|fx/|"
    r"utils/_python_dispatch\.py|distributed/c10d_logger\.py)"
    r"|transformers/(?:utils/generic\.py|utils/output_capturing\.py|modeling_layers\.py)"
    r"|accelerate/(?:utils/operations\.py|hooks\.py)|contextlib\.py|functools\.py|threading\.py|runpy\.py|"
    r"importlib/|<frozen )"
)
_BUILDERS = frozenset(
    {
        "__init__",
        "_apply",
        "_from_config",
        "_init_weights",
        "_load_from_state_dict",
        "_load_state_dict_into_meta_model",
        "_load_state_dict_into_zero3_model",
        "_load_pretrained_model",
        "_materialize_copy",
        "cuda",
        "from_config",
        "from_pretrained",
        "init_weights",
        "load_state_dict",
        "materialize_tensors",
        "register_buffer",
        "register_parameter",
        "reset_parameters",
        "set_module_tensor_to_device",
        "tie_weights",
        "to",
        "to_empty",
    }
)
_SHARDERS = frozenset(
    {"_init_sharded_param", "_init_flat_param_and_metadata", "flatten_tensors_into_flat_param", "shard"}
)
"""Functions of FSDP that make the parameters a rank keeps."""

_BUILDER_FILES = re.compile(
    r"(?:^|/)torch/nn/|^transformers/(?:modeling_utils|core_model_loading|models/|conversion_mapping)|^peft/|"
    r"^bitsandbytes/nn/|^diffusers/models/|^timm/|^torchvision/models/|^accelerate/utils/modeling|modeling_\w+\.py$|"
    r"^safetensors/|model\w*\.py$"
)
_LOSSES = re.compile(
    r"cross_entropy|nll_loss|log_softmax|CausalLMLoss|CrossEntropy|kl_div|fused_linear_cross"
)
_STATE_MAKERS = frozenset(
    {"_init_group", "_init_state", "init_state", "get_state_buffer", "_init_optimizer_state", "init_qmap"}
)
_OPTIMIZER_FILE = re.compile(
    r"(?:^|/)optim|optimizer|^deepspeed/ops/adam|(?:^|/)(?:muon|adafactor|lion|galore|adamw)", re.IGNORECASE
)
_COLLECTIVE_FILE = re.compile(
    r"^torch/distributed/(?!elastic|run|launch|c10d_logger|algorithms/_checkpoint)|^deepspeed/(?:comm|runtime/zero)|"
    r"^megatron/core/(?:distributed|tensor_parallel/mappings)|^torch/nn/parallel/distributed\.py"
)
_WORKSPACE_NAMES = re.compile(r"getNewWorkspace|CUDABlasLtWorkspace|BlasWorkspace|getCurrentCUDABlasHandle")


def is_python(frame: Frame) -> bool:
    """Python frames have a line; C++ frames have none, and names with scopes or arguments."""
    return frame.line > 0 or (frame.file not in ("", "??") and frame.file.endswith((".py", ">")))


def line_of(frame: Frame) -> str:
    """A Python frame as text; one without a line, as in a predicted snapshot, is a module and what it did."""
    if frame.line > 0:
        return f"{frame.file}:{frame.line} {frame.name}"
    return f"{frame.file.removesuffix('.py')}: {frame.name}"


def is_plumbing(frame: Frame) -> bool:
    """Whether the frame only passes a call on, so that the one outside it says more."""
    return _PLUMBING_FILES.match(frame.file) is not None


def marks_of(frame: Frame) -> int:
    """Every mark of a frame."""
    return _python_marks(frame) if is_python(frame) else _cpp_marks(frame.name)


def _cpp_marks(name: str) -> int:
    marks = 0
    if _WORKSPACE_NAMES.search(name):
        marks |= Mark.WORKSPACE
    if name.startswith("c10d::"):
        marks |= Mark.COLLECTIVE
    if name.startswith(("torch::autograd::Engine::", "torch::autograd::python::PythonEngine::")):
        marks |= Mark.BACKWARD
    return marks


def _python_marks(frame: Frame) -> int:
    name, file = frame.name, frame.file
    marks: int = Mark.PYTHON
    if is_plumbing(frame):
        marks |= Mark.PLUMBING
    if file.endswith("torch/utils/checkpoint.py"):
        if name in ("recompute_fn", "unpack_hook", "backward"):
            marks |= Mark.RECOMPUTE
    elif name in ("forward", "_call_impl", "_wrapped_call_impl") or (
        name == "__call__" and file.startswith("torch/nn/")
    ):
        marks |= Mark.MODULE_CALL
    is_collective = _COLLECTIVE_FILE.search(file) is not None
    if name in (_SHARDERS if is_collective else _BUILDERS) and (is_collective or _BUILDER_FILES.search(file)):
        marks |= Mark.MODULE_BUILD
    if name == "_engine_run_backward" or (name == "backward" and not file.startswith("torch/nn/")):
        marks |= Mark.BACKWARD
    if file.endswith("torch/autograd/function.py") and name == "apply":
        marks |= Mark.AUTOGRAD_FUNCTION
    if name == "zero_grad":
        marks |= Mark.ZERO_GRAD
    elif name.startswith("clip_grad"):
        marks |= Mark.OPTIMIZER
    elif _OPTIMIZER_FILE.search(file):
        if name in _STATE_MAKERS:
            marks |= Mark.STATE
        if name == "__init__":
            marks |= Mark.STATE | Mark.MODULE_BUILD
        else:
            marks |= Mark.OPTIMIZER
    if _LOSSES.search(name) or file.endswith(("loss/loss_utils.py", "torch/nn/modules/loss.py")):
        marks |= Mark.LOSS
    if name == "__exit__" and file.endswith("autocast_mode.py"):
        marks |= Mark.AUTOCAST_EXIT
    if is_collective:
        marks |= Mark.COLLECTIVE
    if "master" in name.lower():
        marks |= Mark.MASTER
    return marks
