"""What a trace raises."""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["TraceError", "what_failed"]

_MOST_CHARACTERS = 300
_SIZE_DEPENDS_ON_VALUES = ("DynamicOutputShapeException", "DataDependentOutputException")
"""Of torch's fake tensors."""
_NOT_THE_MODEL = ("torch", "trainmem_backend")


class TraceError(ValueError):
    """A trace that cannot be made; the message says why in one line."""


def what_failed(error: BaseException, script: Path | None = None) -> str:
    """One line: the place in ``script``, or else in the model's library, and the error."""
    frames = traceback.extract_tb(error.__traceback__)
    if script is not None:
        frames_of = [frame for frame in frames if frame.filename == str(script)]
    else:
        frames_of = [frame for frame in frames if not set(_NOT_THE_MODEL) & set(Path(frame.filename).parts)]
    line = f", line {frames_of[-1].lineno}" if frames_of else ""
    if script is not None:
        where = script.name + line
    else:
        where = Path(frames_of[-1].filename).name + line if frames_of else "the model"
    if type(error).__name__ in _SIZE_DEPENDS_ON_VALUES:
        return f"{where}: {error}: the size of its result depends on values, and a trace computes none"
    kind = "" if isinstance(error, TraceError) else f"{type(error).__name__}: "
    return f"{where}: {kind}{' '.join(str(error).split())[:_MOST_CHARACTERS]}"
