"""Files made to run code, to fill memory, to burn time or to crash the reader: all are turned away in one
line.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import snapshot_files as make

from trainmem.snapshot.analysis import analyse
from trainmem.snapshot.limits import WEB, Limits
from trainmem.snapshot.reader import SnapshotRejected, read_snapshot

PICKLE = b"\x80\x04"
RUNS_CODE = {
    "GLOBAL and REDUCE": b"cos\nsystem\n(S'touch {marker}'\ntR.",
    "STACK_GLOBAL and REDUCE": PICKLE + b"\x8c\x05posix\x8c\x06system\x93\x8c{length}touch {marker}\x85R.",
    "INST": b"(S'touch {marker}'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'touch {marker}'\no.",
    "NEWOBJ": PICKLE + b"c_io\nFileIO\n\x8c{length}touch {marker}\x85\x81.",
    "NEWOBJ_EX": PICKLE + b"cos\nsystem\n)}\x92.",
    "BUILD": b"cos\nenviron\n}S'a'\nS'b'\nsb.",
    "BUILD on a dictionary": PICKLE + b"}}\x8c\x01ak\x00sb.".replace(b"k\x00", b"K\x00"),
    "EXT1": PICKLE + b"\x82\x01.",
    "EXT2": PICKLE + b"\x83\x01\x00.",
    "EXT4": PICKLE + b"\x84\x01\x00\x00\x00.",
    "PERSID": b"P1\n.",
    "BINPERSID": PICKLE + b"K\x01Q.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
    "READONLY_BUFFER": b"\x80\x05\x97\x98.",
    "builtins by name": b"cbuiltins\nset\n)R.",
    "a class that looks harmless": b"ccollections\nOrderedDict\n)R.",
}


def rejected(data: bytes, limits: Limits = WEB) -> str:
    with pytest.raises(SnapshotRejected) as caught:
        analyse(read_snapshot(data, limits))
    text = str(caught.value)
    assert "\n" not in text
    assert text.isprintable()
    return text


@pytest.mark.parametrize("name", RUNS_CODE)
def test_nothing_is_called(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    command = f"touch {marker}".encode()
    data = (
        RUNS_CODE[name].replace(b"{length}", bytes([len(command)])).replace(b"{marker}", str(marker).encode())
    )
    rejected(data)
    assert not marker.exists()


def test_a_real_object_is_refused_whatever_it_is() -> None:
    for value in (complex(1, 2), bytearray(b"x"), frozenset({1}), Path("a"), struct.Struct("i").__class__):
        assert "by name" in rejected(pickle.dumps({"segments": value}, 2))


def collisions(count: int) -> bytes:
    """A dictionary whose keys all have the same hash."""
    prime = (1 << 61) - 1
    body = b"".join(
        b"\x8a" + bytes([len(raw)]) + raw + b"K\x00"
        for raw in (
            (k * prime).to_bytes(((k * prime).bit_length() + 8) // 8, "little") for k in range(1, count)
        )
    )
    return PICKLE + b"}(" + body + b"u."


def laughs(levels: int) -> bytes:
    """Lists of ten times the list before: 10 to the power of ``levels`` elements in a few bytes."""
    body = b"]q\x00"
    for level in range(levels):
        body += b"](" + b"h" + bytes([level]) * 1 + (b"h" + bytes([level])) * 9 + b"eq" + bytes([level + 1])
    return PICKLE + body + b"."


def shared_events(lists: int, events: int) -> bytes:
    """One list of events, referred to again and again."""
    trace = [{"action": "alloc", "addr": 1, "size": 1, "frames": []}] * events
    return pickle.dumps({"segments": [], "device_traces": [trace] * lists}, 4)


FILLS_MEMORY = {
    "a memo index of 50 million": PICKLE + b"Nr" + struct.pack("<I", 50_000_000) + b".",
    "a memo index of 2^32 - 1": PICKLE + b"Nr" + struct.pack("<I", 0xFFFFFFFF) + b".",
    "a string that claims 2^62 bytes": PICKLE + b"\x8d" + struct.pack("<Q", 1 << 62) + b"a.",
    "bytes that claim 2^40 bytes": PICKLE + b"\x8e" + struct.pack("<Q", 1 << 40) + b"a.",
    "a byte array that claims 2^40 bytes": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"a.",
    "a frame that claims 2^40 bytes": PICKLE + b"\x95" + struct.pack("<Q", 1 << 40) + b"N.",
    "8 million empty sets": PICKLE + b"(" + b"\x8f" * 8_000_000 + b"l.",
    "20 million empty lists": PICKLE + b"(" + b"]" * 20_000_000 + b"l.",
    "8 million empty dictionaries": PICKLE + b"(" + b"}" * 8_000_000 + b"l.",
    "64 million events in 2 MB": shared_events(640, 100_000),
    "lists of lists, 10^9 elements": laughs(9),
    "the same by DUP": PICKLE + b"]" + b"2\x86" * 60 + b".",
    "an integer of a megabyte": PICKLE + b"\x8b" + struct.pack("<i", 1_000_000) + b"\x01" * 1_000_000 + b".",
}


@pytest.mark.parametrize("name", FILLS_MEMORY)
def test_memory_is_bounded(name: str) -> None:
    rejected(FILLS_MEMORY[name])


def test_an_integer_of_a_megabyte_is_no_address() -> None:
    tape = make.Tape()
    tape.add("alloc", 1 << 8_000_000, 1)
    assert "2^64" in rejected(pickle.dumps(make.snap(tape)))


BREAKS_THE_READER = {
    "150,000 nested tuples as a key": PICKLE + b"}N" + b"\x85" * 150_000 + b"Ns.",
    "a list five million deep": PICKLE + b"]" * 5_000_000 + b"a" * 4_999_999 + b".",
    "a list that holds itself": PICKLE + b"]q\x00h\x00a.",
    "keys that all collide": collisions(40_000),
    "more after the end": pickle.dumps(make.snap()) + b"cos\nsystem\n",
    "cut off": make.example_bytes("graph")[:-100],
    "one byte": b"\x80",
    "an unknown protocol": b"\x80\x63.",
    "an empty stack": PICKLE + b".",
    "MARK missing": PICKLE + b"e.",
    "keys that cannot be": PICKLE + b"}]Ns.",
    "nested JSON": b"[" * 200_000,
    "a JSON integer of 10,000 digits": b'{"segments": [{"address": ' + b"9" * 10_000 + b"}]}",
    "JSON that ends": b'{"segments": [',
    "no snapshot": pickle.dumps({"weights": [1, 2, 3]}),
    "a number": pickle.dumps(7),
    "not a pickle": b"import os\n",
    "a page without a snapshot": b"<!DOCTYPE html><html></html>",
    "a page with other base64": b'<html>"base64": "AAAAAAAAAAAA"</html>',
    "zstd": b"\x28\xb5\x2f\xfd\0\0\0\0",
    "gzip in gzip": gzip.compress(gzip.compress(b"x")),
    "gzip cut off": gzip.compress(os.urandom(1000))[:500],
}


@pytest.mark.parametrize("name", BREAKS_THE_READER)
def test_the_reader_may_die_and_the_caller_does_not(name: str) -> None:
    rejected(BREAKS_THE_READER[name])


def test_lists_that_hold_themselves_within_a_snapshot() -> None:
    frames: list[object] = []
    frames.append(frames)
    blocks: list[object] = []
    blocks.append({"size": 512, "blocks": blocks, "state": "inactive"})
    tape = make.Tape()
    tape.add("alloc", make.BASE, 512, frames)
    assert "frames" in rejected(pickle.dumps(make.snap(tape)))
    loop: list[object] = []
    loop.append(loop)
    assert "device_traces" in rejected(pickle.dumps({"device_traces": loop}))
    assert read_snapshot(pickle.dumps({"segments": [{"address": 0, "total_size": 512, "blocks": blocks}]}))
    itself = PICKLE + b"}q\x00\x8c\x08segments](h\x00es."
    assert analyse(read_snapshot(itself)).devices[0].peak_allocated_bytes == 0


def test_a_gzip_bomb_is_stopped_at_the_limit() -> None:
    bomb = gzip.compress(b"\0" * 60_000_000)
    assert "decompressed" in rejected(bomb, Limits(most_bytes=50_000_000, most_rows=1000))


def test_a_zip_archive_is_named() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("data.pkl", b"x")
    assert "zip archive" in rejected(archive.getvalue())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("addr", -1),
        ("addr", 1 << 64),
        ("addr", [1]),
        ("size", -5),
        ("size", 1 << 70),
        ("size", 1.5),
        ("size", float("nan")),
        ("size", float("inf")),
        ("size", "many"),
        ("time_us", {}),
        ("action", 7),
        ("action", None),
        ("action", ["alloc"]),
        ("frames", "text"),
        ("frames", [1, 2]),
        ("frames", {"name": "f"}),
    ],
)
def test_values_of_the_wrong_kind(field: str, value: object) -> None:
    event = {"action": "alloc", "addr": make.BASE, "size": 512, "stream": 0, "frames": [], field: value}
    rejected(pickle.dumps(make.snap([event])))


@pytest.mark.parametrize(
    "top", [{"segments": 5}, {"segments": [5]}, {"segments": [{"blocks": 3}]}, {"device_traces": "x"}]
)
def test_containers_of_the_wrong_kind(top: object) -> None:
    rejected(pickle.dumps(top))


def test_bounds_on_bytes_and_rows() -> None:
    data = pickle.dumps(make.snap(make.training()))
    assert "MB" in rejected(data, Limits(most_bytes=1000, most_rows=1000))
    assert "limit" in rejected(data, Limits(most_bytes=1_000_000, most_rows=10))


def test_only_ordinary_files_are_opened(tmp_path: Path) -> None:
    for path in (Path("/dev/zero"), tmp_path, tmp_path / "missing"):
        with pytest.raises(SnapshotRejected):
            read_snapshot(path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    opened = os.open(fifo, os.O_RDWR)
    try:
        with pytest.raises(SnapshotRejected, match="not an ordinary file"):
            read_snapshot(fifo)
    finally:
        os.close(opened)


def test_the_folder_it_runs_in_is_not_imported_from(tmp_path: Path) -> None:
    """Modules that lie about in an untrusted folder, or on PYTHONPATH, are never loaded by the reading
    process.
    """
    marker = tmp_path / "ran"
    for name in (
        "pickle",
        "child",
        "resource",
        "sitecustomize",
        "usercustomize",
        "zlib",
        "array",
        "binascii",
    ):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    file = tmp_path / "graph.pickle"
    file.write_bytes(make.example_bytes("graph"))
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]; from trainmem.snapshot.reader import read_snapshot; import "
        "os; os.environ['PYTHONPATH'] = os.getcwd(); print(len(read_snapshot(sys.argv[1]).traces))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-S", "-c", program, str(file), *sys.path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "1", done.stderr
    assert not marker.exists()


def test_the_reading_process_can_open_nothing_and_start_nothing() -> None:
    """Once confined: no file, no socket, no more memory than allowed, and nothing heavy was imported."""
    folder = Path(sys.modules["trainmem.snapshot.reader"].__file__ or "").parent / "child"
    program = f"""
import sys, types
package = types.ModuleType("child"); package.__path__ = [{str(folder)!r}]; sys.modules["child"] = package
import child.main, socket
from child.confine import confine, shut_descriptors
confine(1000)
shut_descriptors()
def fails(action):
    try:
        action()
    except (OSError, MemoryError):
        return True
    return False
assert fails(lambda: open("/dev/null"))
assert fails(lambda: socket.socket())
assert fails(lambda: bytearray(1 << 30))
heavy = {{"torch", "numpy", "asyncio", "ssl", "http", "trainmem"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_regions_on_top_of_each_other_take_no_longer() -> None:
    """A hundred thousand regions, each around all events."""
    tape = make.training(40)
    last = tape.events[-1]["time_us"]
    marks = [
        {"stage": stage, "name": "forward", "device": 0, "time_us": time_us}
        for stage, times in (("START", range(50_000)), ("END", range(last, last + 50_000)))
        for time_us in times
    ]
    data = pickle.dumps(make.snap(tape, external_annotations=marks))
    assert analyse(read_snapshot(data)).devices[0].timetable.spans


def test_a_stack_and_a_step_for_every_block() -> None:
    """Thousands of call sites times thousands of steps are no table of all of them."""
    tape = make.Tape()
    for number in range(4000):
        site = [make.frame("forward", f"/home/alice/run/m{number}.py", number + 1), make.CALL]
        tape.alloc(4096, site)
        tape.alloc(512, make.STEP)
    found = make.device(make.snap(tape))
    assert found.timetable.steps == 4000
