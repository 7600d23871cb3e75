"""Skip sets, statistics records and answers that carry them.

May import: pytest and tss_bench.types.
"""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict, replace

import pytest

from tss_bench.types import GeneratedText, GenerationStats, SkipSet, parse_layers

STATS = GenerationStats(
    prompt_tokens=7,
    new_tokens=6,
    verify_steps=2,
    drafted=8,
    accepted=3,
    accept_lengths=(3, 2),
    prefill_s=0.5,
    draft_s=0.25,
    verify_s=1.0,
    wall_s=2.0,
    stop="eos",
)


@pytest.mark.parametrize(
    ("value", "layers"),
    [
        ("[3,25,30]", (3, 25, 30)),
        ("{3,25}", (3, 25)),
        ("(3, 25)", (3, 25)),
        ("3,25", (3, 25)),
        ("3+25+30", (3, 25, 30)),
        ("3 25", (3, 25)),
        (" 7 ", (7,)),
        (7, (7,)),
        ([3, "25"], (3, 25)),
        ((3, 25), (3, 25)),
        (None, ()),
        ("[]", ()),
        ("{}", ()),
        ("dense", ()),
        ("None", ()),
    ],
)
def test_every_written_form_of_layers_is_read(value: object, layers: tuple[int, ...]) -> None:
    assert parse_layers(value) == layers  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", ["3,x", "3..5", "1.5", "[3", "", " ", True, [True], [1.0], 3.0, {3: 1}]
)
def test_what_is_no_layer_is_named(value: object) -> None:
    with pytest.raises(ValueError, match=r"layer|layers"):
        parse_layers(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", [-1, 4, 99])
def test_a_layer_outside_the_target_is_refused_with_the_range(layer: int) -> None:
    with pytest.raises(ValueError, match=rf"skip layer {layer} .*4 layers.*0 to 3"):
        SkipSet.of([0, layer], 4)


def test_first_last_and_all_layers_may_be_skipped() -> None:
    assert SkipSet.of([0], 3).active == (1, 2)
    assert SkipSet.of([2], 3).active == (0, 1)
    assert SkipSet.of([2, 0, 1], 3).active == ()


def test_sparsity_is_skipped_over_all_layers() -> None:
    assert SkipSet.of([3, 25, 30], 32).sparsity == 3 / 32
    assert SkipSet.dense(32).sparsity == 0.0


def test_text_form_is_sorted_and_reads_back() -> None:
    skip = SkipSet.of([30, 3, 25, 3], 32)
    assert str(skip) == "{3,25,30}"
    assert SkipSet.parse(str(skip), 32) == skip
    assert list(skip) == [3, 25, 30]
    assert len(skip) == 3
    assert 25 in skip
    assert 24 not in skip


def test_union_keeps_the_target() -> None:
    assert SkipSet.of([1], 4) | SkipSet.of([3], 4) == SkipSet.of([1, 3], 4)
    with pytest.raises(ValueError, match="4 and 5 layers"):
        SkipSet.of([1], 4) | SkipSet.of([1], 5)


def test_equal_sets_have_equal_hashes_and_depth_counts() -> None:
    assert len({SkipSet.of([1, 2], 4), SkipSet.of([2, 1], 4), SkipSet.of([1, 2], 5)}) == 2


def test_a_target_has_a_layer() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        SkipSet.dense(0)


def test_every_step_has_an_accept_length() -> None:
    with pytest.raises(ValueError, match="2 accept lengths for 3 verify steps"):
        replace(STATS, verify_steps=3)


@pytest.mark.parametrize(
    "copied",
    [
        lambda text: pickle.loads(pickle.dumps(text)),
        lambda text: pickle.loads(pickle.dumps(text, protocol=2)),
        copy.copy,
        copy.deepcopy,
    ],
)
def test_an_answer_is_a_text_that_keeps_its_record(copied: object) -> None:
    config = {"skip": [3], "scope": "verify"}
    ids = ((5, 6), (7, 2))
    answer = GeneratedText("second", (STATS, STATS), ("first", "second"), config, ids)
    again = copied(answer)  # type: ignore[operator]
    assert type(again) is GeneratedText
    assert again == "second"
    assert again.stats == (STATS, STATS)
    assert again.turns == ("first", "second")
    assert again.config == config
    assert again.ids == ids


def test_an_answer_of_one_turn_has_itself_as_its_turns() -> None:
    answer = GeneratedText("only")
    assert answer.turns == ("only",)
    assert answer.stats == ()
    assert answer.config == {}
    assert answer.ids == ()
    assert json.dumps(answer) == '"only"'


def test_statistics_come_back_from_json() -> None:
    stats = replace(STATS, prompt_truncated=True)
    record = json.loads(json.dumps(asdict(stats)))
    assert record["accept_lengths"] == [3, 2]
    assert GenerationStats.from_dict(record) == stats
    old = {key: value for key, value in record.items() if key != "prompt_truncated"}
    assert GenerationStats.from_dict(old) == STATS


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"speed": 3.0}, TypeError),
        ({"accept_lengths": None}, TypeError),
        ({"accept_lengths": [5]}, ValueError),
    ],
)
def test_other_fields_are_no_statistics(change: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        GenerationStats.from_dict({**asdict(STATS), **change})


def test_missing_fields_are_no_statistics() -> None:
    for name in ("accept_lengths", "stop"):
        record = {key: value for key, value in asdict(STATS).items() if key != name}
        with pytest.raises(TypeError, match=name):
            GenerationStats.from_dict(record)
