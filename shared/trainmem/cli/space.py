"""`trainmem space`: serve the app."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("space", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7860)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted. Raises ValueError where the address cannot be listened on."""
    if not 0 < args.port < 65536:
        raise ValueError(f"port: {args.port} is not a port; allowed are 1 to 65,535")
    try:
        import_module("trainmem_space.server").serve(args.host, args.port)
    except OSError as error:
        raise ValueError(
            f"port: {args.host}:{args.port} cannot be listened on; another program may hold it, "
            "and --port (with make: PORT=) names another"
        ) from error
    return 0
