"""Collections of garbage wait while a replay runs; nothing is lost by it."""

import gc
import weakref

import pytest

from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import without_collections
from trainmem.tape.program import compiled
from trainmem.tape.structure import structure_of


class Knot:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self):
        self.itself = self


def test_a_cycle_made_meanwhile_is_collected_later():
    with without_collections():
        assert not gc.isenabled()
        knot = weakref.ref(Knot())
        with without_collections():
            pass
        assert not gc.isenabled()
        assert knot() is not None
    assert gc.isenabled()
    gc.collect()
    assert knot() is None


def test_collections_stay_off_where_they_were():
    gc.disable()
    try:
        with without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_somebody_froze_stays_frozen():
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with without_collections():
            kept = [Knot() for _ in range(10)]
        assert gc.get_freeze_count() == pytest.approx(frozen, abs=len(kept))
    finally:
        gc.unfreeze()


def test_a_compiled_program_leaves_next_to_nothing_to_collect():
    job = TrainingJob(model="gpt2-124m", precision="amp_bf16", checkpointing="full")
    structure = structure_of(job, resolve(job).architecture)
    gc.collect()
    with without_collections():
        program = compiled.__wrapped__(structure)
        assert gc.collect() < 200
    assert len(program.size_of) > 200
