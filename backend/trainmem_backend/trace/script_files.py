"""Files of a training script: checkpoints that it would write, and those that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from trainmem_backend.trace.stand_ins import stand_ins

__all__ = ["files_of_a_script"]


def files_of_a_script(note: Callable[[str], None]) -> AbstractContextManager[None]:
    """Inside, nothing is saved or published, and what `torch.load` reads arrives on the virtual device.

    ``note`` is told what was not written.
    """

    def unsaved(what: str) -> Callable[..., None]:
        return lambda *_, **__: note(f"{what} wrote nothing")

    return stand_ins(
        (
            ("torch", "save", unsaved("torch.save")),
            ("torch", "load", _loading(torch.load)),
            # by the functions underneath: other libraries hold on to `save_file` by name
            ("safetensors.torch", "_flatten", lambda *_, **__: {}),
            ("safetensors.torch", "_flatten_as_ptr", lambda *_, **__: {}),
            ("safetensors.torch", "serialize_file", unsaved("safetensors")),
            ("safetensors.torch", "save_model", unsaved("safetensors")),
            ("transformers.modeling_utils", "PreTrainedModel.save_pretrained", unsaved("save_pretrained")),
            ("transformers.utils.hub", "PushToHubMixin.push_to_hub", unsaved("push_to_hub")),
            ("transformers.trainer", "Trainer.init_hf_repo", unsaved("push_to_hub")),
            ("transformers.trainer", "Trainer.push_to_hub", unsaved("push_to_hub")),
            ("transformers.trainer", "Trainer._push_from_checkpoint", unsaved("push_to_hub")),
            ("peft.peft_model", "PeftModel.save_pretrained", unsaved("save_pretrained")),
        )
    )


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    """``load``, read on the host; then what belongs on the GPU is copied there."""

    def loaded(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        on_device: set[int] = set()

        def place(storage: Any, saved_at: str) -> Any:
            if _goes_to_gpu(map_location, storage, saved_at):
                on_device.add(storage.data_ptr())
            return storage

        with _disable_current_modes():
            found = load(file, place, *args, **kwargs)
            addresses = {id(tensor): tensor.untyped_storage().data_ptr() for tensor in _tensors(found)}
        moved: dict[int, torch.Tensor] = {}

        def arrive(value: Any) -> Any:
            if isinstance(value, torch.nn.Module):
                return value.cuda() if on_device else value
            if isinstance(value, torch.Tensor):
                if addresses.get(id(value)) not in on_device:
                    return value
                if id(value) not in moved:
                    moved[id(value)] = value.to("cuda")
                return moved[id(value)]
            if isinstance(value, dict):
                for key in value:
                    value[key] = arrive(value[key])
            elif isinstance(value, list):
                value[:] = map(arrive, value)
            elif type(value) is tuple:
                return tuple(map(arrive, value))
            return value

        try:
            return arrive(found)
        finally:
            # the function refers to itself, and what it holds would outlive this call
            moved.clear()

    return loaded


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _goes_to_gpu(map_location: Any, storage: Any, saved_at: str) -> bool:
    """What `torch.serialization` makes of a ``map_location`` of any kind."""
    if isinstance(map_location, dict):
        saved_at = str(map_location.get(saved_at, saved_at))
    elif isinstance(map_location, int):
        return True
    elif isinstance(map_location, str | torch.device):
        saved_at = str(map_location)
    elif callable(map_location):
        try:
            found = map_location(storage, saved_at)
        except (RuntimeError, AssertionError, AttributeError):
            # such as ``storage.cuda(0)``, which needs a real one
            return True
        return saved_at.startswith("cuda") if found is None else False
    return saved_at.startswith("cuda")
