"""Files of the Hugging Face Hub where it cannot be reached: nobody waits for it, and the catalogue's configs serve."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainmem.model.catalogue import find, is_known
from trainmem_backend.trace.stand_ins import attribute, stand_ins

__all__ = ["hub_or_catalogue"]

_CONSTANTS, _FILES = "huggingface_hub.constants", "transformers.utils.hub"
_CONFIG = "config.json"
_PATIENCE_SECONDS = 5.0


@contextlib.contextmanager
def hub_or_catalogue(note: Callable[[str], None]) -> Iterator[None]:
    """Inside, one failed attempt to reach the Hub is the last, and ``note`` is told of configs that replace its own.

    Every request of huggingface_hub asks `constants.is_offline_mode` first, and `transformers.utils.hub.cached_files`
    looks for every file; where a release lacks them, its own waiting stays.
    """
    constants, files = sys.modules.get(_CONSTANTS), sys.modules.get(_FILES)
    is_set, look = attribute(constants, "is_offline_mode"), attribute(files, "cached_files")
    if is_set is None or look is None:
        yield
        return

    @functools.cache
    def is_away() -> bool:
        return not _answers(str(attribute(constants, "ENDPOINT")))

    def is_offline() -> bool:
        return is_set() or is_away()

    def found(path_or_repo_id: Any, filenames: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return look(path_or_repo_id, filenames, *args, **kwargs)
        except OSError:
            name = str(path_or_repo_id)
            if list(filenames) != [_CONFIG] or not is_known(name) or not is_offline():
                raise
            note(
                f"{name}: the Hub cannot be reached, and its config is taken from the catalogue; its dtype is not in "
                "there, so that weights are fp32 unless from_pretrained is given one"
            )
            return [_written(Path(folder), name)]

    with (
        tempfile.TemporaryDirectory() as folder,
        stand_ins([(_CONSTANTS, "is_offline_mode", is_offline), (_FILES, "cached_files", found)]),
    ):
        yield


def _written(folder: Path, name: str) -> str:
    """The catalogue's config of ``name`` as a file."""
    path = folder / find(name).name / _CONFIG
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(dict(find(name).config)), encoding="utf-8")
    return str(path)


def _answers(address: str) -> bool:
    """Whether anything answers there, through a proxy where one is set; a lookup of its name alone may take long."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(
                urllib.request.Request(address, method="HEAD"), timeout=_PATIENCE_SECONDS
            ).close()
        except urllib.error.HTTPError as error:
            error.close()
        except (OSError, ValueError):
            return
        answers.append(True)

    thread = threading.Thread(target=ask, daemon=True, name="trainmem-hub")
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    return bool(answers)
