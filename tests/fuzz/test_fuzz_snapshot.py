"""Mutated real snapshots and made-up structures: whatever comes, an answer that adds up or one line."""

from __future__ import annotations

import io
import json
import pickle
import random

import pytest
import snapshot_files as make
from hypothesis import strategies as st

from trainmem.snapshot.analysis import analyse
from trainmem.snapshot.child import wire
from trainmem.snapshot.child.refusal import Refusal
from trainmem.snapshot.child.tabulate import Budget, tabulate
from trainmem.snapshot.document import document_of
from trainmem.snapshot.limits import WEB
from trainmem.snapshot.page import render_page
from trainmem.snapshot.reader import SnapshotRejected, delivered, read_snapshot

ORIGINALS = {name: make.example_bytes(name) for name in ("graph", "oom", "ring")}


def answer(data: bytes) -> None:
    try:
        analysis = analyse(read_snapshot(data, WEB))
    except SnapshotRejected as rejected:
        if str(rejected).isprintable():
            return
        raise
    sound(analysis)


def sound(analysis: object) -> None:
    for found in analysis.devices:  # type: ignore[attr-defined]
        make.check(found)
    json.dumps(document_of(analysis), allow_nan=False).encode("ascii")  # type: ignore[arg-type]
    assert render_page(analysis).count("<script") == 2  # type: ignore[arg-type]


def test_bytes_changed_at_random(fuzz) -> None:
    fuzz(
        change_bytes,
        st.sampled_from(sorted(ORIGINALS)),
        st.integers(1, 40),
        st.integers(0, 2**32),
        examples=25,
    )


def change_bytes(name: str, changes: int, seed: int) -> None:
    dice = random.Random(seed)
    data = bytearray(ORIGINALS[name])
    for _ in range(changes):
        at = dice.randrange(max(len(data), 1))
        match dice.randrange(5):
            case 0:
                data[at : at + 1] = dice.randbytes(1)
            case 1:
                del data[at : at + dice.randrange(1, 20)]
            case 2:
                data[at:at] = dice.randbytes(dice.randrange(1, 9))
            case 3:
                data[at : at + 4] = data[at : at + 8]
            case _:
                data = data[: max(at, 64)]
    answer(bytes(data))


def test_events_dropped_doubled_and_shuffled(fuzz) -> None:
    """Files that unpickle well and say things that cannot be."""
    fuzz(change_events, st.integers(0, 2**32), st.integers(1, 30), examples=25)


def change_events(seed: int, changes: int) -> None:
    dice = random.Random(seed)
    content = pickle.loads(ORIGINALS[dice.choice(sorted(ORIGINALS))])
    events = content["device_traces"][0]
    values = (0, 1, 511, 1 << 20, (1 << 63) - 1, (1 << 64) - 1)
    for _ in range(changes):
        at = dice.randrange(len(events))
        match dice.randrange(9):
            case 0:
                del events[at : at + dice.randrange(1, 200)]
                events = events or [{"action": "alloc", "addr": 1, "size": 1}]
            case 1:
                events[at:at] = events[at : at + dice.randrange(1, 50)]
            case 2:
                events[at] = {
                    **events[at],
                    dice.choice(("addr", "size", "time_us", "stream")): dice.choice(values),
                }
            case 3:
                events[at] = {
                    **events[at],
                    "action": dice.choice(("alloc", "free_requested", "segment_free", "oom")),
                }
            case 4:
                other = dice.randrange(len(events))
                events[at], events[other] = events[other], events[at]
            case 5:
                end = at + dice.choice((10, 1000, len(events)))
                events[at:end] = events[at:end][::-1]
            case 6:
                end = at + dice.choice((10, 1000, len(events)))
                events[at:end] = dice.sample(events[at:end], len(events[at:end]))
            case 7:
                del content["segments"][:: dice.randrange(2, 9)]
            case _ if content["segments"]:
                part = dice.choice(content["segments"])
                part["address"] = dice.choice(values)
    answer(pickle.dumps(content))


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 1 << 66),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        ["alloc", "free_requested", "free_completed", "segment_alloc", "segment_map", "segment_unmap"]
    ),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
)
addresses = st.integers(0, 40).map(lambda n: make.BASE + n * 512 * 1024)
sizes = st.one_of(st.integers(0, 4 << 20), st.integers(0, (1 << 64) - 1))
frames = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(
                ["forward", "step", "backward", "zero_grad", "cross_entropy", "__init__"]
            ),
            "filename": st.sampled_from(["site-packages/torch/optim/adam.py", "/home/a/x.py", "??"]),
            "line": st.integers(0, 9),
        }
    ),
    max_size=3,
)
events = st.fixed_dictionaries(
    {
        "action": st.sampled_from(
            [
                "alloc",
                "alloc",
                "free_requested",
                "free_completed",
                "free",
                "oom",
                "annotate",
                "snapshot",
                "other",
                "segment_alloc",
                "segment_free",
                "segment_map",
                "segment_unmap",
            ]
        ),
        "addr": addresses,
        "size": sizes,
    },
    optional={
        "stream": st.integers(0, 3),
        "time_us": st.integers(0, 100),
        "frames": frames,
        "device_free": sizes,
        "forward_frames": st.lists(st.text(max_size=5), max_size=2),
        "pool_id": st.tuples(st.integers(0, 2), st.integers(0, 2)),
        "category": st.text(max_size=3),
        "extra": anything,
    },
)
blocks = st.fixed_dictionaries(
    {
        "size": st.integers(0, 4 << 20),
        "state": st.sampled_from(["inactive", "active_allocated", "active_pending_free", "?"]),
    },
    optional={"address": addresses, "requested_size": sizes, "frames": frames},
)
segments = st.fixed_dictionaries(
    {"address": addresses, "total_size": st.integers(0, 8 << 20), "blocks": st.lists(blocks, max_size=4)},
    optional={"device": st.integers(0, 3), "is_expandable": st.booleans(), "segment_pool_id": anything},
)
marks = st.fixed_dictionaries(
    {
        "stage": st.sampled_from(["START", "END", "?"]),
        "name": st.sampled_from(["forward", "backward", "optimizer", "Optimizer.zero_grad#A"]),
        "device": st.integers(0, 2),
        "time_us": st.integers(0, 100),
    }
)
snapshots = st.fixed_dictionaries(
    {
        "segments": st.lists(segments, max_size=5),
        "device_traces": st.lists(st.lists(events, max_size=60), max_size=3),
    },
    optional={
        "external_annotations": st.lists(marks, max_size=8),
        "allocator_settings": st.dictionaries(st.text(max_size=8), anything, max_size=3),
        "host_traces": st.lists(st.lists(events, max_size=10), max_size=2),
        "host_segments": st.lists(segments, max_size=2),
    },
)


def through_the_wire(content: object) -> None:
    """Everything but the unpickling, in this process."""
    try:
        header, columns = tabulate(content, Budget(1 << 20, 1 << 20))
    except Refusal:
        return
    header["source"] = {"format": "test", "gzip": False, "bytes": 1}
    out = io.BytesIO()
    wire.encode(out, wire.READ, header, columns)
    try:
        analysis = analyse(delivered(out.getvalue(), "fuzz"))
    except SnapshotRejected:
        # Sizes near 2^64 may add up to more than can be counted.
        return
    sound(analysis)


def test_snapshots_that_could_be(fuzz) -> None:
    fuzz(through_the_wire, snapshots, examples=150)


def test_structures_that_could_not(fuzz) -> None:
    tops = st.fixed_dictionaries({"segments": anything, "device_traces": anything})
    fuzz(through_the_wire, st.one_of(anything, tops), examples=150)


def test_an_answer_from_the_process_is_not_trusted_either(fuzz) -> None:
    fuzz(answer_with_noise, st.binary(max_size=200), examples=150)


def answer_with_noise(noise: bytes) -> None:
    for data in (noise, wire.READ + noise, wire.READ + len(noise).to_bytes(8, "little") + noise):
        with pytest.raises(SnapshotRejected):
            delivered(data, "fuzz")
