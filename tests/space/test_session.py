"""The scenario left behind, and the pins."""

import pytest

from trainmem.job import Lora, Sharding, TrainingJob
from trainmem_space.session import MOST_PINS, Session, changed_levers

START = TrainingJob(model="gpt2-774m", micro_batch=8)


def shown(*jobs):
    session = Session()
    for job in jobs:
        session.show(job)
    return session


def test_the_first_scenario_has_no_ghost():
    session = shown(START)
    assert (session.job, session.ghost, session.serial) == (START, None, 1)


def test_the_scenario_just_left_is_the_ghost():
    session = shown(START, START.with_(micro_batch=4))
    assert session.ghost == START
    assert session.moved == ("micro_batch",)


def test_while_one_lever_moves_the_ghost_stays_where_it_began():
    session = shown(START, START.with_(micro_batch=80), START.with_(micro_batch=81))
    assert session.ghost == START


def test_another_lever_makes_a_new_ghost():
    halved = START.with_(micro_batch=4)
    session = shown(START, halved, halved.with_(checkpointing="full"))
    assert session.ghost == halved
    assert session.moved == ("checkpointing",)


def test_going_back_leaves_no_ghost():
    assert shown(START, START.with_(micro_batch=4), START).ghost is None


def test_showing_the_same_again_keeps_the_ghost():
    other = START.with_(micro_batch=4)
    assert shown(START, other, other).ghost == START


class Clock:
    """Stands in for `time`: a test says how long each scenario stood."""

    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr("trainmem_space.session.time", found)
    return found


def typed(session, clock, *batches):
    for batch in batches:
        clock.now += 0.2
        session.show(session.job.with_(micro_batch=batch))
    clock.now += 0.2


def test_what_is_typed_through_is_no_scenario_to_stay_at(clock):
    session = shown(START)
    clock.now += 60
    typed(session, clock, 1, 10, 104)
    assert session.before_typing("micro_batch") == START
    session.show(START)
    assert session.before_typing("micro_batch") is None
    typed(session, clock, 1)
    assert session.before_typing("micro_batch") == START


def test_what_stood_for_a_while_stays(clock):
    session = shown(START)
    clock.now += 60
    typed(session, clock, 1, 16)
    clock.now += 60
    assert session.before_typing("micro_batch") is None
    typed(session, clock, 160)
    assert session.before_typing("micro_batch") == START.with_(micro_batch=16)


def test_a_lever_just_moved_is_not_taken_back_for_a_mistake_in_another(clock):
    session = shown(START)
    clock.now += 60
    session.show(START.with_(checkpointing="full"))
    assert session.before_typing("micro_batch") is None


def test_pins_are_few_and_distinct():
    session = shown(START)
    session.pin()
    session.pin()
    assert session.pins == [START]
    for batch in range(1, 8):
        session.show(START.with_(micro_batch=batch))
        session.pin()
    assert len(session.pins) == MOST_PINS
    session.unpin(0)
    session.unpin(99)
    session.unpin(-1)
    assert len(session.pins) == MOST_PINS - 1
    assert START not in session.pins


def test_changed_levers_look_inside_the_sharding():
    after = START.with_(sharding=Sharding(mode="zero3", data_parallel=8), lora=Lora(rank=8), device="h200")
    assert changed_levers(START, after) == ("lora", "sharding.mode", "sharding.data_parallel", "device")


def test_the_model_before_a_pasted_config_is_remembered():
    pasted = TrainingJob(config={"model_type": "gpt2"})
    assert shown(START, pasted).named == "gpt2-774m"
