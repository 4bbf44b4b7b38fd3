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
    """Serve until interrupted."""
    import_module("trainmem_space.server").serve(args.host, args.port)
    return 0
