"""The pairs of timed steps in the package are what the published rows give."""

from trainmem.fit.timed_pairs import found_pairs, timed_pairs
from trainmem.levers import ALL_LEVERS


def test_the_file_is_up_to_date():
    """`python -m tools.timed_pairs` writes it anew."""
    for lever in ALL_LEVERS:
        assert timed_pairs(lever.key) == found_pairs(lever.key), lever.key


def test_some_levers_were_timed_and_some_were_not():
    assert len(timed_pairs("checkpointing")) > 3
    assert not timed_pairs("sharding")
