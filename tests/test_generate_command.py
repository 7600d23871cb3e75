"""`tss-bench generate` on a tiny model: what it prints, in colour and as JSON, and refuses."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.model_adapters.conftest import TEMPLATE, save_model
from tss_bench import api, cli
from tss_bench.answer_view import visible
from tss_bench.generate_command import use_color

# With layer 3 skipped this prompt's answer repeats itself, so that drafts are accepted.
PROMPT, SKIP = "The sky", "3"


@pytest.fixture(scope="module")
def model_args(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = save_model(tmp_path_factory.mktemp("models") / "tiny-chat", TEMPLATE)
    return f"pretrained={directory},dtype=float32,device=cpu"


@pytest.fixture(scope="module")
def answer(model_args: str) -> api.Answer:
    """What Python gives for the same prompt."""
    given = dict(piece.split("=") for piece in model_args.split(","))
    decoder = api.load("tss_token_recycling", **given)
    return decoder.generate(PROMPT, max_new_tokens=40, skip_layers=SKIP)


def command(model_args: str, *words: str, model: str = "tss_token_recycling") -> list[str]:
    chosen = ("--model", model, "--model_args", model_args)
    return ["generate", *chosen, "--max-new-tokens", "40", *words]


def test_the_text_comes_first_then_what_it_cost(
    model_args: str, answer: api.Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--prompt", PROMPT, "--skip-layers", SKIP)
    assert cli.main(command(model_args, *words)) == 0
    out = capsys.readouterr().out
    lengths = " ".join(map(str, answer.stats.accept_lengths))
    assert out.startswith(f"{visible(answer.text)}\n\naccept lengths {lengths}\n")
    assert "tss_token_recycling: skips {3} of 4 layers of tiny-chat" in out
    assert "\x1b" not in out


def test_colours_mark_the_accepted_drafts(
    model_args: str, answer: api.Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--prompt", PROMPT, "--skip-layers", SKIP, "--color", "always")
    assert cli.main(command(model_args, *words)) == 0
    shown = capsys.readouterr().out.split("\n\naccept lengths")[0]
    drafts = [
        visible(piece.text)
        for step in answer.steps
        for piece in step.pieces
        if piece.source == "draft" and piece.text
    ]
    assert drafts
    assert re.findall("\x1b\\[32m(.*?)\x1b\\[0m", shown, re.DOTALL) == drafts
    assert re.sub("\x1b\\[[0-9]+m", "", shown) == visible(answer.text)


@pytest.mark.parametrize(
    ("wish", "terminal", "no_color", "expected"),
    [
        ("auto", True, None, True),
        ("auto", True, "", True),
        ("auto", True, "1", False),
        ("auto", False, None, False),
        ("always", False, "1", True),
        ("never", True, None, False),
    ],
)
def test_colour_is_for_terminals_unless_no_color(
    monkeypatch: pytest.MonkeyPatch, wish: str, terminal: bool, no_color: str | None, expected: bool
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert use_color(wish) is expected


def test_json_is_one_object_with_the_comparison(
    model_args: str,
    answer: api.Answer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(f"{PROMPT}\n", encoding="utf-8")
    words = ("--prompt-file", str(path), "--skip-layers", "dense", "--json", "--compare")
    assert cli.main(command(model_args, *words)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stats"]["prompt_tokens"] == answer.stats.prompt_tokens
    # float32: plain decoding of the same dense target gives the same ids.
    assert (found["compare"]["with"], found["compare"]["same_text"]) == ("native_ar", True)
    assert found["compare"]["parts_at"] is None
    assert found["compare"]["speed_up"] > 0


def test_a_prompt_may_be_piped_in_and_compared(
    model_args: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PROMPT}\n"))
    words = ("--skip-layers", SKIP, "--compare", "--temperature", "0")
    assert cli.main(command(model_args, *words)) == 0
    out = capsys.readouterr().out
    assert "native_ar gives another text: layers are skipped" in out
    assert "one prompt, a look and no measurement" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "model", "message"),
    [
        (("--prompt", ""), "tss_ar", "the prompt is empty"),
        (("--prompt", "x" * 300), "tss_ar", "leaves no room in the context of 256"),
        (("--prompt", "x"), "tss_er", "did you mean 'tss_ar'?"),
        (("--prompt", "x", "--temperature", "-1"), "tss_ar", "temperature must be 0"),
        (("--prompt", "x", "--task", "q"), "tss_ar", "task 'q' is no domain"),
        (("--prompt", "x", "--compare"), "native_ar", "--compare holds a model against native_ar"),
        (("--prompt-file", "nowhere.txt"), "tss_ar", "nowhere.txt: No such file"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_loaded(
    model_args: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    model: str,
    message: str,
) -> None:
    def load(*args: Any, **kwargs: Any) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr("tss_bench.weights.load_model", load)
    assert cli.main(command(model_args, *words, model=model)) == 2
    error = capsys.readouterr().err
    assert error.startswith("tss-bench: error: ")
    assert message in error
    assert error.count("\n") == 1
