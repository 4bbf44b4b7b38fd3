"""Borders worked out beforehand are what the allocator answers, and the page is exact at once where they are."""

import json
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.borders import takes, text_of

from trainmem.device import devices
from trainmem.fit.borders import borders, example_rung, figures, models
from trainmem.fit.family import DEFAULT_FAMILY, FAMILIES, ladder
from trainmem.fit.frontier import what_fits
from trainmem.fit.methods import METHODS
from trainmem.fit.outcome import outcome
from trainmem.fit.published import FILE, PAGE, published_borders
from trainmem.fit.room import room

TEXT = resources.files("trainmem").joinpath("fit", FILE).read_text(encoding="utf-8")
DEVICES = [found.name for found in devices() if found.cuda]
CURVES = [found.key for found in FAMILIES if takes(found.key, PAGE)]


def asked(rungs, border, like, at):
    """What the allocator says of the largest size that is said to fit, and of the next."""
    if border.count:
        found = outcome(rungs[border.count - 1].job(like), at)
        assert (found.fits, found.tight) == (True, border.tight)
    if border.count < len(rungs):
        assert not outcome(rungs[border.count].job(like), at).fits


@settings(max_examples=30, deadline=None)
@given(
    device=st.sampled_from(DEVICES),
    curve=st.sampled_from(CURVES),
    method=st.sampled_from(METHODS),
)
def test_a_published_border_is_where_the_allocator_puts_it(device, curve, method):
    at, like = room(device), PAGE.with_(device=device)
    found = published_borders(method, like, at, curve)
    like = method.apply(like)
    asked(ladder(curve), found.curve, like, at)
    asked(models(like.sequence_length), found.models, like, at)
    if found.example is not None:
        asked((example_rung(),), found.example, like, at)
        assert found.example.figures == figures(example_rung().job(like), at, "exact")
    if found.models.count:
        largest = models(like.sequence_length)[found.models.count - 1]
        assert found.models.figures == figures(largest.job(like), at, "exact")


@pytest.mark.parametrize("device", ["spark", "rtx-4090", "h100-80gb"])
def test_the_search_finds_what_was_published(device):
    at, like = room(device), PAGE.with_(device=device)
    for method in METHODS:
        assert borders(method, like, at, DEFAULT_FAMILY, "exact") == published_borders(
            method, like, at, DEFAULT_FAMILY
        )


def test_every_device_method_and_family_is_there():
    data = json.loads(TEXT)
    assert list(data["devices"]) == DEVICES
    for name, rows in data["devices"].items():
        assert rows["limit_bytes"] == room(name).limit_bytes
        assert list(rows["curves"]) == CURVES
        for found in (rows["models"], *rows["curves"].values()):
            assert list(found) == [method.key for method in METHODS]


def test_the_file_is_as_its_command_writes_it():
    assert text_of(json.loads(TEXT)["devices"]) == TEXT


def test_the_page_is_exact_at_once_where_its_borders_are_published():
    for same in (PAGE, PAGE.with_(model="gpt2-124m", precision="bf16", device="t4")):
        assert what_fits(room("l40s"), same, detail="fast").detail == "exact"
    for at, other in (
        (room("l40s", "40GiB"), PAGE),
        (room("l40s"), PAGE.with_(micro_batch=2)),
        (room("l40s"), PAGE.with_(sequence_length=1024)),
        (room("l40s"), PAGE.with_(loss="liger_fused")),
        (room("l40s"), PAGE.with_(checkpointing="sqrt")),
    ):
        assert what_fits(at, other, detail="fast").detail == "fast"
