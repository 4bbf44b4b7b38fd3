"""What the command line refuses before it does anything, and how: one line that names the option and the file."""

import subprocess
import sys
from pathlib import Path

import pytest

from trainmem.cli import main

FULL = Path("/dev/full")
needs_a_full_device = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full on this system")


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line on standard error of a command that is refused."""
    status = main(argv)
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    return err.removeprefix(f"trainmem {argv[0]}: ")


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (("-m", "gpt2-124m"), "model: --model"),
        (("-b", "4"), "micro_batch: -b"),
        (("-s", "4"), "sequence_length: -s"),
        (("-d", "h200"), "device: --device"),
        (("--no-reshard-after-forward",), "no_reshard_after_forward: --no-reshard-after-forward"),
        (("--snapshot", "out.pickle"), "snapshot: --snapshot"),
        (("--capacity", "24GiB"), "capacity: --capacity"),
    ],
)
def test_a_file_of_jobs_takes_no_flag_of_one_job(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: tuple[str, ...], field: str
) -> None:
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text("{}\n")
    said = refused(capsys, "estimate", "--jobs", str(jobs), *flags)
    assert said.startswith(f"{field} goes with one job")


def test_no_capacity_makes_a_device_without_cuda_run_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "estimate", "-m", "gpt2-124m", "-d", "m4-pro", "--capacity", "24GiB")
    assert said.startswith("device: m4-pro has no CUDA")


def test_no_file_is_written_over_another(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    example = ("snapshot", "example:graph", "--html", out)
    assert refused(capsys, *example, "--csv", out) == "csv: out is the file of --html; give another name\n"
    assert refused(capsys, "snapshot", out, "--csv", out) == "csv: out is being read; give another name\n"
    assert refused(capsys, *example, "--compare", out).startswith("html: out is being read")


@needs_a_full_device
@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (("estimate", "-m", "gpt2-124m", "-s", "64"), "snapshot"),
        (("snapshot", "example:graph"), "html"),
        (("snapshot", "example:graph"), "csv"),
    ],
)
def test_a_file_that_cannot_be_written_is_named(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], option: str
) -> None:
    said = refused(capsys, *argv, f"--{option}", str(FULL))
    assert said == f"{option}: {FULL} cannot be written: no space left on device\n"


def test_a_snapshot_of_too_many_bytes_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "huge.json"
    events = [{"action": "alloc", "addr": 4096 * n, "size": 1 << 62} for n in range(3)]
    file.write_text(f'{{"segments": [], "device_traces": [{events}]}}'.replace("'", '"'))
    assert refused(capsys, "snapshot", str(file)).startswith("huge.json: not opened: its sizes add up")


def redirected(redirection: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "trainmem", *argv],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("argv", "status"), [("models", 0), ("quiz --seed 3", 0), ("models zzz", 2)])
def test_a_closed_stream_is_one_with_nothing_in_it(redirection: str, argv: str, status: int) -> None:
    done = redirected(redirection, *argv.split())
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    assert "fault" not in done.stderr


@needs_a_full_device
@pytest.mark.parametrize("argv", ["--help", "models", "quiz --sheet --seed 3"])
def test_output_that_cannot_be_written_is_said_once(argv: str) -> None:
    done = redirected(f">{FULL}", *argv.split())
    assert (done.returncode, done.stderr) == (2, "trainmem: standard output: no space left on device\n")
    assert redirected(f"2>{FULL}", "models", "zzz").returncode == 2


def test_a_terminal_of_few_characters_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = redirected("", "quiz", "--sheet", "--seed", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
