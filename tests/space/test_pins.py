"""Pins between two visits: links in the browser, and whatever else may stand there."""

import pytest

from trainmem.job import TrainingJob
from trainmem_space.pins import from_browser, to_browser
from trainmem_space.session import MOST_PINS

PINS = [
    TrainingJob(model="gpt2-774m", micro_batch=8),
    TrainingJob(config={"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4}),
]


def test_pins_come_back_as_they_were():
    assert from_browser(to_browser(PINS)) == PINS


def test_a_pin_too_large_for_a_link_is_not_kept():
    large = TrainingJob(config={"model_type": "llama", "note": "0" * 300_000})
    assert to_browser([large, *PINS]) == to_browser(PINS)


@pytest.mark.parametrize(
    "stored",
    [None, "model=gpt2-774m", 7, {"a": 1}, [None], [["x"]], ["model=nope"], ["micro_batch=2"], ["\ud800"]],
)
def test_what_is_no_pin_is_left_out(stored, caplog):
    assert from_browser(stored) == []
    assert caplog.records == []


def test_there_are_never_more_than_four_and_never_two_alike():
    links = [f"model=gpt2-774m&micro_batch={batch}" for batch in (1, 1, 2, 3, 4, 5)]
    found = from_browser(links)
    assert len(found) <= MOST_PINS
    assert len(set(found)) == len(found)
