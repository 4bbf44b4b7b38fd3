"""The quiz in a terminal, as a sheet, and as JSON."""

from __future__ import annotations

import io
import json

import pytest

from trainmem.cli import main
from trainmem.quiz import by_name, key_text
from trainmem.whiteboard.logits import BYTES_PER_LOGIT
from trainmem.whiteboard.sharding import zero_bytes_per_parameter
from trainmem.whiteboard.states import bytes_per_parameter


@pytest.fixture
def answers(monkeypatch):
    def give(*lines: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return give


def test_five_questions_are_asked_and_judged(answers, capsys):
    answers(*["skip"] * 5)
    assert main(["quiz", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "1 of 5" in out
    assert "5 of 5" in out
    assert out.count("Skipped. The answer is ") == 5
    assert "trainmem quiz, five quick ones: ·····  0 of 5 in " in out


def test_a_right_answer_shows_the_sum_and_the_link(answers, capsys):
    question = by_name("states.total").question(7)
    answers(key_text(question))
    assert main(["quiz", "--question", "states.total~7"]) == 0
    out = capsys.readouterr().out
    assert f"Right: {key_text(question)}." in out
    assert question.steps[-1].substituted in out
    assert f"?{question.link}" in out


def test_an_unreadable_answer_is_asked_again(answers, capsys):
    answers("banana", "skip")
    main(["quiz", "--question", "states.total~7"])
    out = capsys.readouterr().out
    assert "Not read: 'banana' has no number" in out
    assert out.count("1 of 1") == 1
    assert "Skipped. The answer is " in out


def test_charts_are_drawn(answers, capsys):
    answers("quit")
    main(["quiz", "--question", "timelines.name-phase~1"])
    assert "│" in capsys.readouterr().out


def test_spoken_answers_are_ticked(answers, capsys):
    rubric = by_name("spoken.zero").question(1).key
    answers("", *["y"] * (len(rubric.must) + len(rubric.senior) + 1))
    main(["quiz", "--question", "spoken.zero~1"])
    out = capsys.readouterr().out
    assert rubric.model_answer in out
    assert "the usual mistake avoided." in out


def test_the_interview_shows_its_clock(answers, capsys):
    answers("skip", "quit")
    main(["quiz", "--mode", "interview", "--seed", "1"])
    out = capsys.readouterr().out
    assert "10:00 left" in out
    assert "mock interview: ·  0 of 1" in out


def test_progress_is_kept_in_a_file_of_the_learners_own(answers, capsys, tmp_path):
    file = tmp_path / "progress.json"
    answers("skip", "skip")
    main(["quiz", "--mode", "topic", "--topic", "adapters", "--count", "2", "--progress", str(file)])
    assert len(json.loads(file.read_text())["attempts"]) == 2
    answers("quit")
    assert main(["quiz", "--mode", "weak", "--progress", str(file)]) == 0
    file.write_text("{}")
    assert main(["quiz", "--progress", str(file)]) == 2
    assert capsys.readouterr().err.startswith("trainmem quiz: progress: not an object")


def test_progress_that_cannot_be_kept_is_refused_before_the_first_question(answers, capsys, tmp_path):
    answers("skip")
    file = tmp_path / "nowhere" / "progress.json"
    assert main(["quiz", "--question", "states.total~7", "--progress", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"trainmem quiz: progress: {file} cannot be written: no such file or directory\n"
    assert main(["quiz", "--progress", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"trainmem quiz: progress: {tmp_path} is not an ordinary file\n"


def test_a_sheet_has_questions_and_answers(capsys):
    assert main(["quiz", "--sheet", "--seed", "7"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# Training memory, sheet 7\n")
    assert "# Answers to sheet 7" in out
    main(["quiz", "--sheet", "--seed", "7", "--json"])
    assert json.loads(capsys.readouterr().out)["sheet"] + "\n" == out


def test_json_is_one_object_with_a_schema(capsys):
    assert main(["quiz", "--json", "--mode", "today", "--date", "2026-11-29"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "trainmem.quiz/1"
    assert len(body["questions"]) == 3
    for question in body["questions"]:
        assert {"id", "prompt", "kind", "answer", "steps", "job", "link"} <= set(question)


def test_an_answer_can_be_judged_in_one_go(capsys):
    question = by_name("states.total").question(7)
    right = ["quiz", "--question", "states.total~7", "--answer", key_text(question), "--json"]
    assert main(right) == 0
    assert json.loads(capsys.readouterr().out)["grade"]["correct"] is True
    assert main([*right[:4], "1 byte"]) == 1
    assert "too little" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--topic", "knitting"], "topic: 'knitting' is not one of bytes per parameter"),
        (["--mode", "topic"], "topic: missing; --mode topic needs --topic"),
        (["--date", "tomorrow"], "date: 'tomorrow' is not a day"),
        (["--sheet", "--topic", "adapters"], "topic: --sheet asks about every topic"),
        (["--mode", "interview", "--topic", "adapters"], "topic: --mode interview asks about every topic"),
        (["--question", "states.total~7", "--answer", "banana"], "answer: Not read: 'banana' has no number"),
        (["--count", "0"], "count: 0 is not from 1 to 60"),
        (["--question", "states.total"], "question: 'states.total' is not a name and a seed"),
        (["--question", "nothing~1"], "question: 'nothing' is not a template"),
        (["--answer", "3"], "answer: needs --question"),
        (["--question", "spoken.zero~1", "--answer", "3"], "answer: spoken.zero~1 is spoken"),
    ],
)
def test_wrong_input_is_one_line(arguments, line, capsys):
    assert main(["quiz", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"trainmem quiz: {line}")
    assert err.count("\n") == 1


def test_an_empty_line_is_asked_again_and_skips_nothing(answers, capsys):
    answers("", "skip")
    main(["quiz", "--question", "states.total~7"])
    out = capsys.readouterr().out
    assert out.count("Nothing typed: give an answer, or say skip or quit.") == 1
    assert out.count("Skipped. The answer is ") == 1


def test_a_skipped_choice_is_named_by_its_letter(answers, capsys):
    question = by_name("levers.price").question(3)
    answers("skip")
    main(["quiz", "--question", question.id])
    letter = "ABCDEFGHIJ"[question.key.right]
    assert f"Skipped. The answer is {letter}: {key_text(question).rstrip('.')}." in capsys.readouterr().out


def test_the_card_says_the_formulas_and_asks_nothing(capsys):
    assert main(["quiz", "--card"]) == 0
    out = capsys.readouterr().out
    for precision in ("fp32", "amp_bf16", "bf16_master", "bf16"):
        assert f"P × {bytes_per_parameter(precision):g} B" in out
    assert "34 s b h (GPT)" in out
    assert f"{BYTES_PER_LOGIT} s b V B" in out
    for mode, equation in (("zero1", "2 + 2 + 12/N"), ("zero2", "2 + 14/N"), ("zero3", "16/N")):
        assert equation in out
        assert eval(equation.replace("N", "8")) == zero_bytes_per_parameter(mode, 8)
    assert main(["quiz", "--card", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["card"]) == 10
