"""Rows of a pinned dataset, and the bundled ones where it does not answer."""

import json

import pytest

from trainmem.results import RowError, published_rows
from trainmem.results.remote import choose_rows, rows_from

PINNED = "someone/rows@" + "a" * 40


def answering(repo, revision):
    assert (repo, revision) == ("someone/rows", "a" * 40)
    return (json.dumps(published_rows()[0].data) + "\n").encode()


def broken(repo, revision):
    raise OSError("no route to host")


def test_a_pinned_dataset_is_read():
    source = choose_rows({"TRAINMEM_DATASET": PINNED}, answering)
    assert source.rows == published_rows()[:1]
    assert source.origin == PINNED


@pytest.mark.parametrize(
    "pinned", ["someone/rows", "someone/rows@main", "rows@" + "a" * 40, "a/b@" + "A" * 40]
)
def test_only_a_full_commit_is_a_pin(pinned):
    with pytest.raises(RowError, match="TRAINMEM_DATASET"):
        rows_from(pinned, answering)
    source = choose_rows({"TRAINMEM_DATASET": pinned}, answering)
    assert source.rows == published_rows()
    assert source.note


def test_the_bundled_rows_stand_in_when_the_hub_cannot_be_reached():
    source = choose_rows({"TRAINMEM_DATASET": PINNED}, broken)
    assert source.rows == published_rows()
    assert "no route" in (source.note or "")


def test_nothing_is_asked_when_offline_or_when_no_dataset_is_named():
    assert (
        choose_rows({"TRAINMEM_DATASET": PINNED, "HF_HUB_OFFLINE": "1"}, broken).note
        == "HF_HUB_OFFLINE is set"
    )
    assert choose_rows({}, broken).note is None


def test_an_answer_that_is_no_rows_is_not_shown():
    source = choose_rows({"TRAINMEM_DATASET": PINNED}, lambda repo, revision: b"<html>")
    assert source.rows == published_rows()
    assert "not JSON" in (source.note or "")
