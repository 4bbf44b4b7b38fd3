"""The bar is drawn on terminals only, and leaves what others print there whole."""

import io
import sys

import pytest

from trainmem.cli.bar import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> list[str]:
        """The lines as a reader sees them: what follows a carriage return writes over what stood there."""
        lines = []
        for line in self.getvalue().split("\n"):
            shown = ""
            for part in line.split("\r"):
                shown = part + shown[len(part) :]
            lines.append(shown.rstrip())
        return lines


def opened(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Both streams on one terminal; from within the test, because the runner sets its own before each."""
    both = Terminal()
    monkeypatch.setattr(sys, "stdout", both)
    monkeypatch.setattr(sys, "stderr", both)
    return both


def test_a_script_s_lines_are_not_written_into_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    with progress_bar("tracing") as progress:
        progress(0.33)
        print("0 1.0 2357570560")
        progress(0.66)
        assert terminal.screen[-1].endswith("66%")
        print("a warning", file=sys.stderr)
    assert terminal.screen == ["0 1.0 2357570560", "a warning", ""]
    assert sys.stdout is terminal


def test_an_unfinished_line_is_not_drawn_over(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    with progress_bar("tracing") as progress:
        print("loss", end=" ")
        progress(0.5)
        print("1.0")
        progress(1.0)
    assert terminal.screen == ["loss 1.0", ""]


def test_an_error_leaves_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = opened(monkeypatch)
    with pytest.raises(ZeroDivisionError), progress_bar("tracing") as progress:
        progress(1 / 0)
    assert terminal.screen == [""]


def test_a_file_gets_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("tracing") as progress:
        progress(0.5)
        print("kept")
    assert capsys.readouterr() == ("kept\n", "")
