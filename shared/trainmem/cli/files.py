"""Files that a command writes because it was asked to: what goes wrong names the option and the file."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_file"]


def write_file(option: str, path: Path, content: bytes | str) -> None:
    """Write ``content``, text as UTF-8 with its line ends as they are. Raises ValueError in one line."""
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else error
        raise ValueError(f"{option}: {path} cannot be written: {reason}") from error
