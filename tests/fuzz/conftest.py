"""Fuzzing: a short, repeatable round with the other tests; ``--fuzz-seconds`` (``make fuzz``) for longer ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

sys.path.append(str(Path(__file__).parent.parent / "shared"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seconds", type=float, default=0.0, help="for how long all fuzz tests go on together"
    )


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``fuzz(function, *strategies, examples=25)`` tries the function; round after round while there is time."""
    seconds = request.config.getoption("--fuzz-seconds", default=0.0)
    share = seconds / len(request.session.items)

    def run(function: Callable[..., None], *strategies: SearchStrategy[Any], examples: int) -> None:
        deadline = time.monotonic() + share
        first = True
        while first or time.monotonic() < deadline:
            configured = settings(
                max_examples=examples,
                deadline=None,
                derandomize=first,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            configured(given(*strategies)(function))()
            first = False

    return run
