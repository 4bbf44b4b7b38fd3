"""The command line: `trainmem COMMAND`. A command's module is imported only when it is asked for."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from trainmem import __version__
from trainmem.cli.line import one_line
from trainmem.extras import install_line

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, str] = {
    "estimate": "the peak of a training step, what fills it and whether it fits",
    "explain": "every term of the sum with its equation, and the gap to the replay",
    "fit": "the largest model, batch and length that fit a device, and the plan for one that does not",
    "models": "the model catalogue",
    "devices": "the devices, with what each can really give a job",
    "snapshot": "read a PyTorch memory snapshot safely: the peak, its buckets, leaks",
    "trace": "replay the real model, or your own script, with no GPU",
    "measure": "run measured suites on a CUDA machine",
    "verify": "does the prediction hold on this GPU? about two minutes",
    "publish": "validate measured rows and merge them into a dataset",
    "quiz": "practise the sum",
    "space": "serve the app",
}
"""Every command with its one line of help."""


_OF_OUTPUT = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG)
"""What keeps standard output from being written; of a file, the error has its name."""


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)}\n")


def _told(error: ValueError | OSError) -> str:
    """What an error says; of a file that cannot be used, its name and why, without a number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror
    return str(error)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(["usage: trainmem COMMAND ...", "", *lines, "", "trainmem COMMAND --help says more."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status (0 fine, 1 some answers failed, 2 wrong input)."""
    _prepare_streams()
    try:
        try:
            return _run(argv)
        finally:
            # what is still buffered would be written at exit, where nobody can catch the error
            sys.stdout.flush()
    except BrokenPipeError:
        # the reader of a pipe has left
        _silence_output()
        return 0
    except OSError as error:
        _silence_output()
        _complain("trainmem", f"standard output: {(error.strerror or str(error)).lower()}")
        return 2


def _prepare_streams() -> None:
    """Put the null device where a stream was closed, or the next file that is opened would take its number; and let
    a terminal that lacks a character show another for it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _silence_output() -> None:
    """Keep the interpreter from complaining again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(command: str, said: object) -> None:
    with suppress(OSError):
        print(f"{command}: {one_line(said)}", file=sys.stderr)


def _run(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else ""
    if name in ("", "-h", "--help"):
        print(_overview())
        return 0 if name else 2
    if name == "--version":
        print(f"trainmem {__version__}")
        return 0
    if name not in COMMANDS:
        said = f"{name!r} is not a command; commands are {', '.join(COMMANDS)}"
        _complain("trainmem", said)
        return 2
    parser = _Parser(prog="trainmem")
    subparsers = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    try:
        module = import_module(f"trainmem.cli.{name}")
        module.add_parser(subparsers)
        args = parser.parse_args(arguments)
        for option, value in vars(args).items():
            if value == "":
                raise ValueError(f"{option}: is empty; give a value or leave the option out")
        status: int = module.run(args)
        return status
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = "space" if name == "space" else "backend"
        _complain(f"trainmem {name}", install_line(missing, extra))
        return 2
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _OF_OUTPUT:
            raise
        _complain(f"trainmem {name}", _told(error))
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("TRAINMEM_DEBUG"):
            raise
        line = one_line(f"{type(error).__name__}: {error}")[:300]
        _complain(
            f"trainmem {name}",
            f"a fault in trainmem ({line}); please report the command; TRAINMEM_DEBUG=1 shows where it happened",
        )
        return 3
