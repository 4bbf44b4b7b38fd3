"""Ticks are round and few; shares stay within the axis."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmem.scale import axis_end_bytes, share, tick_bytes
from trainmem.units import GIB


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (0, [0]),
        (128 * GIB, [0, 50 * GIB, 100 * GIB]),
        (100 * GIB, [0, 20 * GIB, 40 * GIB, 60 * GIB, 80 * GIB, 100 * GIB]),
        (3 * GIB, [0, GIB // 2, GIB, 3 * GIB // 2, 2 * GIB, 5 * GIB // 2, 3 * GIB]),
    ],
)
def test_ticks(most, ticks):
    assert tick_bytes(most) == ticks


@given(st.integers(1 << 10, 1 << 50))
def test_ticks_are_few_and_inside(most):
    ticks = tick_bytes(most)
    assert ticks == sorted(set(ticks))
    assert 2 <= len(ticks) <= 7
    assert ticks[0] == 0
    assert ticks[-1] <= most + 1


@given(st.lists(st.integers(0, 1 << 50), min_size=1))
def test_an_axis_holds_everything_it_shows(sizes):
    assert all(0 <= share(size, axis_end_bytes(*sizes)) <= 1 for size in sizes)
    assert share(1, 0) == 0
