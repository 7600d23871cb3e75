"""Spec-Bench answer files: round trip, comparison as its speed.py does it, what is refused.

May import: pytest, tss_bench and the standard library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tss_bench import cli
from tss_bench.report.spec_bench import (
    Answer,
    AnswerFileError,
    Choice,
    compare,
    read_answers,
    write_answers,
)


def answer(
    question: int | str,
    category: str = "qa",
    tokens: tuple[int, ...] = (10,),
    seconds: tuple[float, ...] = (2.0,),
    lengths: tuple[int, ...] = (4, 5),
    text: str = "ja",
) -> Answer:
    turns = (text,) * len(tokens)
    steps = (1,) * len(tokens)
    choice = Choice(0, turns, steps, tokens, seconds, lengths)
    return Answer(question, category, f"id-{question}", "m", (choice,), 12.5)


def line(**changes: Any) -> dict[str, Any]:
    """A line as Spec-Bench's eval.py writes it."""
    choice = {
        "index": 0,
        "turns": ["one", "two"],
        "decoding_steps": [3, 2],
        "new_tokens": [7, 5],
        "wall_time": [0.5, 0.25],
        "accept_lengths": [3, 2, 1, 4, 1],
    }
    choice |= {name: value for name, value in changes.items() if name in choice}
    whole = {
        "question_id": 81,
        "category": "writing",
        "answer_id": "abc",
        "model_id": "vicuna-7b",
        "choices": [{name: value for name, value in choice.items() if value is not None}],
        "tstamp": 1.0,
    }
    whole |= {name: value for name, value in changes.items() if name not in choice}
    return {name: value for name, value in whole.items() if value is not None}


def write_lines(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    answers = [answer(81, "writing", (3, 4), (0.5, 1.0), (1, 2)), answer("x-1", text="Größe\u2028")]
    path = tmp_path / "deep" / "a.jsonl"
    write_answers(path, answers)
    assert read_answers(path) == answers
    first = json.loads(path.read_text("utf-8").split("\n")[0])
    assert list(first) == ["question_id", "category", "answer_id", "model_id", "choices", "tstamp"]
    assert first["choices"][0] == {
        "index": 0,
        "turns": ["ja", "ja"],
        "decoding_steps": [1, 1],
        "new_tokens": [3, 4],
        "wall_time": [0.5, 1.0],
        "accept_lengths": [1, 2],
    }


def test_a_file_of_its_tools_is_read(tmp_path: Path) -> None:
    (read,) = read_answers(write_lines(tmp_path / "a.jsonl", line()))
    (choice,) = read.choices
    assert (read.question_id, read.task, read.model_id) == (81, "mt_bench", "vicuna-7b")
    assert (choice.tokens, choice.seconds) == (12, 0.75)
    assert choice.accept_lengths == (3, 2, 1, 4, 1)


def test_two_files_are_compared_as_speed_py_does_it() -> None:
    """Means over questions of tokens / s, and the mean of all steps' lengths."""
    method = [
        answer(1, "qa", (30,), (1.0,), (4, 2)),
        answer(2, "qa", (10,), (1.0,), (3,)),
        answer(3, "math", (20, 20), (0.5, 0.5), (5, 5)),
    ]
    base = [
        answer(3, "writing", (10,), (1.0,), (1, 1)),
        answer(1, "qa", (20,), (2.0,), (1,)),
        answer(2, "qa", (5,), (1.0,), ()),
    ]
    chat, qa, overall = compare(method, base)
    assert (chat["category"], qa["category"], overall["category"]) == ("mt_bench", "qa", "overall")
    assert [row["questions"] for row in (chat, qa, overall)] == [1, 2, 3]
    assert (qa["tokens_per_second"], qa["baseline_tokens_per_second"]) == (20.0, 7.5)
    assert qa["speedup"] == pytest.approx(20 / 7.5)
    # 40 tokens in 2 s against 25 in 3.
    assert qa["pooled_speedup"] == pytest.approx(20 / (25 / 3))
    assert (qa["accept_len"], qa["baseline_accept_len"]) == (3.0, 1.0)
    assert chat["speedup"] == 4.0
    assert overall["speedup"] == pytest.approx(((30 + 10 + 40) / 3) / ((10 + 10 + 5) / 3))
    assert overall["accept_len"] == pytest.approx((4 + 2 + 3 + 5 + 5) / 5)


def test_a_category_without_a_step_has_no_length() -> None:
    (row, _) = compare([answer(1, lengths=())], [answer(1, tokens=(0,))])
    assert row["accept_len"] is None
    assert row["speedup"] is None


def test_files_of_different_questions_are_refused_by_name() -> None:
    first = [answer(n) for n in (1, 2, 3)]
    with pytest.raises(AnswerFileError, match=r"the baseline lacks 2 questions \(1, 3\); compare"):
        compare(first, [answer(2)])
    with pytest.raises(AnswerFileError, match=r"the first file lacks 1 questions \(4\)"):
        compare(first, [answer(n) for n in (1, 2, 3, 4)])
    many = [answer(n) for n in range(20)]
    with pytest.raises(AnswerFileError, match=r"lacks 19 questions \(1, .*8 and 11 more\)"):
        compare(many, [answer(0)])
    with pytest.raises(AnswerFileError, match=r"disagree about the category of 1 questions \(1\)"):
        compare([answer(1, "qa")], [answer(1, "rag")])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"new_tokens": [7]}, "2 turns, 2 decoding_steps, 1 new_tokens, 2 wall_time"),
        ({"wall_time": [0.5, 0.2, 0.1]}, "3 wall_time"),
        ({"turns": [], "decoding_steps": [], "new_tokens": [], "wall_time": []}, "0 turns"),
        ({"wall_time": [0.0, 0.0]}, "wall_time must be seconds above 0"),
        ({"wall_time": [float("nan"), 1.0]}, "wall_time must be seconds"),
        ({"new_tokens": [7, -1]}, "whole numbers"),
        ({"accept_lengths": [1, 2.5]}, "whole numbers"),
        ({"accept_lengths": None}, "field 'accept_lengths' is missing"),
        ({"category": None}, "field 'category' is missing"),
        ({"question_id": [1]}, "question_id"),
        ({"choices": []}, "there are no choices"),
        ({"choices": 3}, "is no answer of Spec-Bench's form"),
    ],
)
def test_a_bad_line_is_refused_with_its_place(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = write_lines(tmp_path / "a.jsonl", line(question_id=80), {**line(**change)})
    with pytest.raises(AnswerFileError) as caught:
        read_answers(path)
    assert named in str(caught.value)
    assert f"{path}, line 2" in str(caught.value)


def test_a_torn_file_a_missing_one_and_a_question_twice_are_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", line(), line(question_id="81"))
    with pytest.raises(AnswerFileError, match="question 81 stands twice"):
        read_answers(path)
    path.write_text(json.dumps(line())[:-9], encoding="utf-8")
    with pytest.raises(AnswerFileError, match="line 1 is no whole JSON object"):
        read_answers(path)
    with pytest.raises(AnswerFileError, match=r"nothing\.jsonl cannot be read"):
        read_answers(tmp_path / "nothing.jsonl")
    with pytest.raises(AnswerFileError, match="question 5 stands twice"):
        write_answers(tmp_path / "b.jsonl", [answer(5), answer("5")])
    assert not (tmp_path / "b.jsonl").exists()


def test_the_command_prints_a_table_and_says_what_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write_answers(first, [answer(1), answer(2, text="ERROR")])
    write_answers(second, [answer(1, lengths=()), answer(2, tokens=(5,), lengths=())])
    assert cli.main(["spec-bench", "compare", str(first), str(second)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{first}: 1 answers are ERROR")
    (overall,) = [row for row in lines if row.startswith("| overall")]
    cells = [cell.strip() for cell in overall.split("|")[1:-1]]
    assert cells == ["overall", "2", "5.00", "3.75", "1.33", "1.33", "4.50", "–"]
    assert json.loads(lines[-1])["results"][-1]["questions"] == 2
    write_answers(second, [answer(1)])
    assert cli.main(["spec-bench", "compare", str(first), str(second)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
