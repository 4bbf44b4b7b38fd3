"""Pretrained weights of a traced program: only their shapes are read, and not even the files are needed.

Hook points in transformers (5.17 and later): `modeling_utils._get_resolved_checkpoint_files` finds and downloads the
files, `PreTrainedModel._load_pretrained_model` opens them, `core_model_loading._materialize_copy` reads one tensor.
Where a release lacks one of them, the program reads its weights as it would without a trace, and a note says so.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from trainmem_backend.trace.errors import TraceError

__all__ = ["load_hook_points", "weights_without_values"]

_MODELING, _LOADING = "transformers.modeling_utils", "transformers.core_model_loading"
_NOT_HERE = "not here.safetensors"
_FLOATING = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""As safetensors name them. What is an integer may be read for its value, as a packed weight's layout is."""
_NAME_OF = {dtype: name for name, dtype in _FLOATING.items()}


class _Stored:
    """A tensor in a file that nobody reads; the part of safetensors' slices that transformers uses."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.shape, self.dtype = tuple(shape), dtype

    def get_shape(self) -> list[int]:
        """As a list, like safetensors."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """As safetensors names it."""
        return _NAME_OF.get(self.dtype, "I64")

    def __getitem__(self, index: Any) -> torch.Tensor:
        whole = torch.empty(self.shape, dtype=self.dtype)
        return whole if index is Ellipsis else whole[index]


def load_hook_points() -> None:
    """Import where the hooks go, if transformers is in use, before a virtual GPU is in place.

    It imports its own modules when a name of them is first asked for: `AutoModelForCausalLM` alone brings none of
    these, and hooks that find nothing would leave `from_pretrained` to look for the files.
    """
    if "transformers" in sys.modules:
        for name in (_MODELING, _LOADING):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


@contextlib.contextmanager
def weights_without_values(note: Callable[[str], None]) -> Iterator[None]:
    """`from_pretrained` inside reads no weights; ``note`` is told of those that are not on this machine."""
    modeling = sys.modules.get(_MODELING)
    loading = sys.modules.get(_LOADING)
    find = getattr(modeling, "_get_resolved_checkpoint_files", None)
    load = getattr(getattr(modeling, "PreTrainedModel", None), "_load_pretrained_model", None)
    read = getattr(loading, "_materialize_copy", None)
    if modeling is None or find is None or load is None or read is None:
        if modeling is not None:
            note(
                "from_pretrained of the transformers installed here: not known to the trace, and reads weights"
            )
        yield
        return

    def found(*args: Any, **kwargs: Any) -> Any:
        """Files that are here already; none is fetched."""
        download = {**(kwargs.get("download_kwargs") or {}), "local_files_only": True}
        try:
            return find(*args, **{**kwargs, "download_kwargs": download})
        except OSError:
            if kwargs.get("gguf_file") is not None:
                raise
            name = str(kwargs.get("pretrained_model_name_or_path"))
            name = Path(name).name if Path(name).is_dir() else name
            note(
                f"{name}: its weights are not on this machine, and are taken as its config.json describes them"
            )
            return [_NOT_HERE], {"dtype": "float32"}

    def loaded(model: Any, state_dict: Any, files: Any, load_config: Any, *args: Any, **kwargs: Any) -> Any:
        if files == [_NOT_HERE]:
            if load_config.hf_quantizer is not None and load_config.hf_quantizer.pre_quantized:
                raise TraceError(
                    "from_pretrained: the checkpoint's weights are packed, and how is written in them; "
                    "they must be on this machine"
                )
            tied = getattr(model, "all_tied_weights_keys", {})
            state_dict = {
                name: _Stored(tensor.shape, tensor.dtype)
                for name, tensor in model.state_dict().items()
                if name not in tied
            }
        return load(model, state_dict, files, load_config, *args, **kwargs)

    def read_shape(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(tensor, "get_dtype") and (dtype := _FLOATING.get(tensor.get_dtype())) is not None:
            tensor = _Stored(tensor.get_shape(), dtype)
        return read(tensor, *args, **kwargs)

    with (
        mock.patch.object(modeling, "_get_resolved_checkpoint_files", found),
        mock.patch.object(modeling.PreTrainedModel, "_load_pretrained_model", staticmethod(loaded)),
        mock.patch.object(loading, "_materialize_copy", read_shape),
    ):
        yield
