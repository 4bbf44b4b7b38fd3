"""The largest number that fits, by any path to it."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from trainmem.fit.search import largest_from, largest_within

limits = st.integers(0, 500)


@given(limit=limits, most=st.integers(1, 500), guess=st.integers(-5, 600), stride=st.integers(1, 9))
def test_a_guess_changes_the_path_and_not_the_answer(limit, most, guess, stride):
    assert largest_from(guess, most, lambda n: n <= limit, stride=stride) == min(limit, most)


@given(fitting=st.sets(st.integers(1, 40)), guess=st.integers(1, 40), stride=st.integers(1, 5))
def test_the_answer_fits_and_the_next_does_not_even_where_fitting_is_ragged(fitting, guess, stride):
    found = largest_from(guess, 40, lambda n: n in fitting, stride=stride)
    assert found == 0 or found in fitting
    assert found == 40 or found + 1 not in fitting


steps = st.lists(st.integers(0, 10_000), min_size=1, max_size=200)


@given(steps=steps, limit=st.integers(0, 200_000), start=st.integers(-5, 300))
def test_within_a_limit_is_what_counting_up_finds(steps, limit, start):
    needs = list(accumulate(steps))
    found = largest_within(limit, len(needs), lambda n: needs[n - 1], start=start)
    assert found == sum(need <= limit for need in needs)


def test_few_questions():
    asked = []

    def fits(n):
        asked.append(n)
        return n <= 1_000

    assert largest_from(1_003, 1 << 20, fits) == 1_000
    assert len(asked) <= 5
    asked.clear()

    def need(n):
        asked.append(n)
        return 70_000 + 13 * n + n % 7

    assert largest_within(100_000, 1 << 20, need, start=50) == 2_307
    assert len(asked) <= 6
