"""Rows of parts: what is laid down, by the machine code and by the Python that stands in for it."""

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmem.allocator import ALLOCATED, ALLOCATED_FIRST, ALLOCATED_ONCE, GIVEN, Parts, Row
from trainmem.allocator.compiled import is_compiled

MIB = 1 << 20


@pytest.fixture(params=["compiled", "python"])
def either(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr("trainmem.allocator.compiled.laying.library", lambda: None)
    elif not is_compiled():
        pytest.skip("there is no C compiler")


# a block keeps one allocation and frees another; the part behind all blocks frees what each of them kept
BLOCK = [ALLOCATED, 0, 0, ALLOCATED, 1, 1, 0, 1, 1]
AFTER = [ALLOCATED, 1, 0, 0, 0, 0, 1, 1, 0]


def three_blocks():
    parts = Parts([BLOCK, AFTER], [2, 1])
    return Row(parts, [0, 0, 0, 1], [[[0]], [[1]], [[2]], [[0, 1, 2], [3]]])


@pytest.mark.usefixtures("either")
def test_a_part_frees_what_other_places_made():
    events = array("q", [7, 7])
    laid = three_blocks().lay(events, array("q", [512, 1024]), 2, first=True)
    blocks = [512, 1024, ~3, 512, 1024, ~5, 512, 1024, ~7]
    assert events.tolist() == [7, 7, *blocks, 1024, ~2, ~4, ~6, ~8]
    assert laid.starts.tolist() == [2, 4, 6, 8, 9]
    assert laid.begins.tolist() == [0, 3, 6, 9, 14]
    assert [laid.number(place, rank) for place, rank in ((0, 0), (1, 1), (3, 0))] == [2, 5, 8]


@pytest.mark.usefixtures("either")
def test_what_has_no_bytes_is_neither_allocated_nor_freed():
    events = array("q")
    laid = three_blocks().lay(events, array("q", [0, 1024]), 0, first=True)
    assert events.tolist() == [1024, ~0, 1024, ~1, 1024, ~2, 1024, ~3]
    assert [laid.number(place, 1) for place in range(3)] == [0, 1, 2]


@pytest.mark.usefixtures("either")
def test_only_a_first_row_makes_what_is_made_once_and_frees_what_is_given():
    code = [ALLOCATED_FIRST, 0, -1, 0, GIVEN, 0, ALLOCATED, 1, 0, 1, 1, 0]
    code += (ALLOCATED_ONCE, 2, -1)
    row = Row(Parts([code], [1]), [0, 0], [[[~0], [0]], [[~1], [1]]])
    events, sizes = array("q"), array("q", [256, 512, 768])
    row.lay(events, sizes, 9, given=[4, 5], first=True)
    assert events.tolist() == [256, ~4, 512, ~10, 768, 256, ~5, 512, ~13]
    del events[:]
    row.lay(events, sizes, 9, given=[4, 5], first=False)
    assert events.tolist() == [512, ~9, 512, ~10]


@pytest.mark.skipif(not is_compiled(), reason="there is no C compiler")
@given(chance=st.integers(0, 2**32).map(random.Random))
def test_machine_code_and_python_lay_the_same(chance):
    sizes = array("q", [chance.choice([0, chance.randrange(1, MIB)]) for _ in range(5)])
    codes, slots = [], chance.randrange(1, 4)
    for _ in range(3):
        code, rank = [], 0
        for _ in range(chance.randrange(12)):
            if chance.random() < 0.2:
                code += (chance.choice((ALLOCATED_FIRST, ALLOCATED_ONCE)), chance.randrange(5), -1)
            elif chance.random() < 0.5 and rank < 6:
                code += (ALLOCATED, chance.randrange(5), rank)
                rank += 1
            elif chance.random() < 0.2:
                code += (slots, GIVEN, 0)
            else:
                code += (chance.randrange(slots), chance.randrange(5), chance.randrange(6))
        codes.append(code)
    order = [chance.randrange(3) for _ in range(6)]
    homes = [
        [*([chance.randrange(at + 1) for _ in range(chance.randrange(3))] for _ in range(slots)), [~at]]
        for at in range(6)
    ]
    row = Row(Parts(codes, [6, 6, 6]), order, homes)
    first, numbers = chance.random() < 0.5, range(10, 16)
    found = []
    for library in (None, lambda: None):
        with pytest.MonkeyPatch.context() as patch:
            if library:
                patch.setattr("trainmem.allocator.compiled.laying.library", library)
            events = array("q", [1, 2, 3])
            found.append((events, row.lay(events, sizes, 3, given=numbers, first=first)))
    assert found[0] == found[1]
