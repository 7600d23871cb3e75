"""How an answer looks on a terminal and in JSON: pure functions of its record.

May import: tss_bench.{answer_steps,api,types} (layer L3 of the design).
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tss_bench import __version__
from tss_bench.answer_steps import AnswerStep
from tss_bench.api import Answer

WIDTH = 100
_BAR = 40
_STEPS = 200
_GREEN, _RESET = "\x1b[32m", "\x1b[0m"


def step_text(step: AnswerStep, color: bool) -> str:
    """The step's text, accepted drafts in green. Control characters are spelt out, so that an
    answer cannot steer a terminal."""
    parts = []
    for piece in step.pieces:
        text = visible(piece.text)
        green = color and text and piece.source == "draft"
        parts.append(f"{_GREEN}{text}{_RESET}" if green else text)
    return "".join(parts)


def visible(text: str) -> str:
    """`text` with its control characters, but for line breaks and tabs, as escapes."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" or not _controls(letter)
        else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )  # fmt: skip


def _controls(letter: str) -> bool:
    return ord(letter) < 32 or 127 <= ord(letter) < 160


def summary(answer: Answer, target: str) -> str:
    """Accept length of each step, their histogram, counts, speed and skip set of an answer;
    `target` names the target."""
    lengths, stats, figures = answer.stats.accept_lengths, answer.stats, answer.figures
    shares = ("accept_len", "accepted_per_step", "accept_rate")
    lines = []
    if lengths:
        lines += [_lengths(lengths), *_histogram(lengths)]
    if counts := [f"{name} {figures[name]:.2f}" for name in shares if name in figures]:
        lines.append(", ".join(counts))
    speed = f": {figures['tokens_per_second']:.1f} tokens/s" if stats.wall_s else ""
    lines.append(
        f"{stats.new_tokens} new tokens in {stats.wall_s:.2f} s{speed}, {stats.verify_steps} "
        f"verification steps behind {stats.prompt_tokens} prompt tokens, stop: {stats.stop}"
    )
    layers = f"skips {answer.skip} of" if len(answer.skip) else "runs all"
    lines.append(
        f"{answer.model}: {layers} {answer.skip.num_layers} layers of {target} ({answer.why}; "
        f"scope {answer.scope}, protocol {answer.protocol})"
    )
    return "\n".join(map(_fill, lines))


def _lengths(lengths: Sequence[int]) -> str:
    shown = " ".join(map(str, lengths[:_STEPS]))
    left = len(lengths) - _STEPS
    return f"accept lengths {shown}" + (f" … and {left} more" if left > 0 else "")


def _histogram(lengths: Sequence[int]) -> list[str]:
    """A line for each accept length up to the longest: its bar, scaled to the most frequent."""
    counts = Counter(lengths)
    most, digits = max(counts.values()), len(str(max(counts)))
    return [
        f"  {length:>{digits}} {'#' * -(-counts[length] * _BAR // most):<{_BAR}} {counts[length]}"
        for length in range(1, max(counts) + 1)
    ]


def comparison(answer: Answer, plain: Answer, dtype: str, temperature: float) -> dict[str, Any]:
    """How an answer stands to plain decoding's of the same prompt.

    `same_text`; `parts_at`, the place of the first other id, None where there is none; `speed_up`,
    the ratio of tokens/s; `reason`, why the texts may differ.
    """
    at = next(
        (place for place, (a, b) in enumerate(zip(answer.ids, plain.ids, strict=False)) if a != b),
        min(len(answer.ids), len(plain.ids)) if len(answer.ids) != len(plain.ids) else None,
    )
    if len(answer.skip):
        reason = "layers are skipped, so the target is another function than the dense model"
    elif temperature > 0:
        reason = "both are sampled"
    elif dtype in ("bfloat16", "float16"):
        reason = f"ids whose logits are equal up to {dtype}'s rounding may change places"
    else:
        reason = "greedy answers of one target should be equal"
    one, other = (each.figures.get("tokens_per_second") for each in (answer, plain))
    return {
        "with": plain.model,
        "same_text": answer.text == plain.text,
        "parts_at": at,
        "reason": None if at is None else reason,
        "speed_up": one / other if one and other else None,
        "tokens_per_second": [one, other],
        "text": plain.text,
    }


def comparison_text(found: dict[str, Any], model: str) -> str:
    """The comparison in words, labelled as the look that it is."""
    same = "the same text" if found["same_text"] else f"another text: {found['reason']}"
    if found["parts_at"] is not None:
        same += f" (the ids part at place {found['parts_at']})"
    lines = [f"{found['with']} gives {same}"]
    if found["speed_up"] is not None:
        one, other = found["tokens_per_second"]
        lines.append(
            f"{model} makes {found['speed_up']:.2f}x its tokens/s ({one:.1f} against {other:.1f}): "
            f"one prompt, a look and no measurement (tss-bench bench domains measures)"
        )
    return "\n".join(map(_fill, lines))


def _fill(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def record(answer: Answer, target: str, dtype: str, device: str) -> dict[str, Any]:
    """All there is to know of an answer, as JSON types; times in seconds."""
    return {
        "version": __version__,
        "model": answer.model,
        "target": target,
        "dtype": dtype,
        "device": device,
        "text": answer.text,
        "ids": list(answer.ids),
        "steps": [
            [{"id": piece.id, "text": piece.text, "source": piece.source} for piece in step.pieces]
            for step in answer.steps
        ],
        "stats": dataclasses.asdict(answer.stats),
        "figures": answer.figures,
        "skip": list(answer.skip),
        "num_layers": answer.skip.num_layers,
        "scope": answer.scope,
        "protocol": answer.protocol,
        "domain": answer.domain,
        "why": answer.why,
    }
