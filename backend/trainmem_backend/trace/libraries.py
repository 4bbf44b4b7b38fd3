"""Hook points in other libraries."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch.optim  # loads the modules patched below
from torch._subclasses.fake_tensor import FakeTensor

from trainmem.job import TrainingJob
from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.stand_ins import stand_in_or_note

__all__ = ["load_libraries", "one_order", "patched_libraries", "quiet_libraries"]

_UNCONCERNED: dict[str, str | tuple[str, ...]] = {
    "bitsandbytes.autograd._functions": "MatMul8bitLt: inputs will be cast ",
    "bitsandbytes.backends.cpu.ops": "Failed to load CPU ",
    "torch._subclasses.fake_tensor": ("failed while attempting to run meta for ", "fake tensor raised "),
}
"""Loggers, and how the messages begin that no reader of a trace needs: said by every layer, about kernels that
only the CPU would run, about errors that are raised as well."""


def load_libraries(job: TrainingJob) -> None:
    """Import what the job needs before a virtual GPU is in place: bitsandbytes looks for a real one then."""
    modules = ["transformers"]
    if job.lora is not None:
        modules.append("peft")
    if job.base_quantization != "none" or job.optimizer in ("adamw8bit", "paged_adamw8bit", "lion8bit"):
        modules.append("bitsandbytes")
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise TraceError(f"this job needs {module}, which is not installed: {error}") from error


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keep to itself what libraries say about a model that nobody will use."""
    from transformers.utils import logging as transformers_logging

    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    for name in _UNCONCERNED:
        logging.getLogger(name).addFilter(_concerns_a_reader)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name in _UNCONCERNED:
            logging.getLogger(name).removeFilter(_concerns_a_reader)
        transformers_logging.set_verbosity(before)


def _concerns_a_reader(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_UNCONCERNED[record.name])


class _InOrder(set[Any]):
    """A set that every process goes through in the same order."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=str))


@contextlib.contextmanager
def one_order(model: torch.nn.Module) -> Iterator[None]:
    """Sets that the model's own code makes have one order inside.

    Gemma 3 and ModernBERT compute rotary tables for each kind of block in the order of a set of their names,
    which strings' hashes change from process to process; which block of memory is free next changes with it.
    """
    names = {type(module).__module__ for module in model.modules()}
    with contextlib.ExitStack() as stack:
        for name in sorted(names):
            if name.startswith("transformers.models."):
                stack.enter_context(mock.patch.object(sys.modules[name], "set", _InOrder, create=True))
        yield


def _never(tensor: object) -> bool:
    """Not a `mock`: that would keep every tensor it was asked about."""
    return False


@contextlib.contextmanager
def patched_libraries(note: Callable[[str], None]) -> Iterator[None]:
    """Other libraries see ordinary tensors inside.

    Transformers takes fake tensors for compilation and then builds other masks; PyTorch's optimizers use
    their lists of tensors (foreach) only for types they know.
    """
    import transformers.utils.import_utils as import_utils

    with contextlib.ExitStack() as stack:
        ordinary = mock.patch.object(import_utils, "is_fake_tensor", _never)
        stand_in_or_note(stack, ordinary, "transformers' attention masks", note)
        for module in (sys.modules["torch.optim.optimizer"], sys.modules["torch.utils._foreach_utils"]):
            types = [*module._foreach_supported_types, FakeTensor]
            stack.enter_context(mock.patch.object(module, "_foreach_supported_types", types))
        yield
