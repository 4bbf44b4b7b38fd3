"""Text out of a file is only ever text, and says where the code is and not whose it is."""

from __future__ import annotations

import json
import pickle
import re

import pytest
import snapshot_files as make
from hypothesis import given
from hypothesis import strategies as st
from snapshot_files import MIB, Tape, snap, understood

from trainmem.snapshot.document import document_of
from trainmem.snapshot.page import render_page
from trainmem.snapshot.paths import shorten_paths
from trainmem.snapshot.text import clean, csv_cell

HARMFUL = "\x00\x07\x1b\x7f\x9b\r\n\t\u200b\u200e\u202e\u2066\ufeff\ud800\U000e0041"


@given(st.text(max_size=50))
def test_cleaned_text_is_one_visible_line(text: str) -> None:
    cleaned = clean(text + HARMFUL)
    assert not any(character in cleaned for character in HARMFUL)
    cleaned.encode("utf-8")
    assert clean(cleaned) == cleaned


def test_long_text_is_cut() -> None:
    assert clean("a" * 1000, most_characters=10) == "a" * 9 + "…"


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1"])
def test_no_cell_is_a_formula(value: str) -> None:
    assert csv_cell(value).startswith("\"'")


def test_cells_are_quoted() -> None:
    assert csv_cell('a "b", c') == '"a ""b"", c"'
    assert csv_cell(-5) == "-5"


def test_paths_start_at_the_package_or_the_project() -> None:
    paths = [
        "/home/alice/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py",
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "/opt/conda/lib/python3.11/threading.py",
        "/home/alice/secret-project/train.py",
        "/home/alice/secret-project/models/gpt.py",
        "/mnt/bob/solo.py",
        "C:\\Users\\carol\\work\\run.py",
        "C:\\Users\\carol\\work\\env\\Lib\\site-packages\\torch\\optim\\adam.py",
        "<frozen importlib._bootstrap>",
        "forward",
        'File "/home/dave/x.py", line 3',
        "site-packages/peft/tuners/lora.py",
    ]
    assert shorten_paths(paths) == [
        "torch/nn/modules/module.py",
        "numpy/core.py",
        "threading.py",
        "train.py",
        "models/gpt.py",
        "solo.py",
        "run.py",
        "torch/optim/adam.py",
        "<frozen importlib._bootstrap>",
        "forward",
        'File "/home/~/x.py", line 3',
        "peft/tuners/lora.py",
    ]


def hostile(trick: str) -> bytes:
    tape = Tape()
    tape.alloc(MIB, [make.frame(trick, f"/home/alice/{trick}", 7)])
    tape.add(trick, 0, 1)
    marks = [{"stage": "START", "name": trick, "device": 0, "time_us": 1}]
    return pickle.dumps(
        snap(tape, external_annotations=marks, allocator_settings={trick: trick, "a": {trick: trick}})
    )


@pytest.mark.parametrize(
    "trick",
    [
        "<script>alert(1)</script>",
        "</script><script>alert(1)</script>",
        "</style><img src=x onerror=alert(1)>",
        "\x1b]0;title\x07\x1b[2J",
        "gnp.\u202eexe",
        "nul\x00",
        "\ud83d",
        "-->",
        "\u2028alert(1)",
    ],
)
def test_pages_and_documents_hold_text_alone(trick: str) -> None:
    analysis = understood(hostile(trick))
    text = json.dumps(document_of(analysis), ensure_ascii=False)
    page = render_page(analysis)
    for output in (text, page):
        output.encode("utf-8")
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\ud800-\udfff]", output)
        assert "alice" not in output
    assert page.count("<script") == page.count("</script>") == 2
    assert page.count("<style") == page.count("</style>") == 1
    assert "<img" not in page
    assert "default-src 'none'" in page


def test_no_home_folder_reaches_the_outside() -> None:
    content = snap(make.training(2))
    text = json.dumps(document_of(understood(content))) + render_page(understood(content))
    assert "alice" not in text
    assert "site-packages" not in text
