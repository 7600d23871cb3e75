"""The 'counting' cases of shared/cases.json and their kind, on the stop rule alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tss_bench.protocols import Cut, StopRule
from tss_bench.types import Protocol

EOS = 2


def rule(
    limit: int = 99, protocol: Protocol = "strict", eos: frozenset[int] = frozenset({EOS})
) -> StopRule:
    return StopRule(eos, limit, "length", protocol)


def never(kept: int) -> None:
    return None


def test_end_of_text_inside_an_accepted_block_ends_there() -> None:
    assert rule().cut([11, 12, EOS, 14, 15, 16], 0, never) == Cut(3, "eos")


def test_end_of_text_before_the_limit_wins() -> None:
    assert rule(limit=5).cut([10, 11, EOS, 20, 21, 22], 0, never) == Cut(3, "eos")


def test_limit_inside_a_block() -> None:
    assert rule(limit=96).cut([5] * 6, 94, never) == Cut(2, "length")


def test_limit_hit_exactly_by_the_end_of_text_is_an_end_of_text() -> None:
    assert rule(limit=3).cut([5, 6, EOS, 7], 0, never) == Cut(3, "eos")


def test_several_end_of_text_ids() -> None:
    both = rule(eos=frozenset({2, 32007}))
    assert both.cut([5, 32007, 6, 2, 9], 0, never) == Cut(2, "eos")


def test_stop_string_before_end_of_text_wins_and_after_it_does_not() -> None:
    block = [5, 6, 7, EOS]
    assert rule().cut(block, 0, lambda kept: 2) == Cut(2, "stop_string")
    assert rule().cut([5, EOS, 7], 0, lambda kept: None if kept <= 2 else 3) == Cut(2, "eos")


def test_stop_string_completed_by_the_last_allowed_id() -> None:
    assert rule(limit=2).cut([5, 6, 7], 0, lambda kept: kept) == Cut(2, "stop_string")


def test_paper_checks_the_bonus_alone_and_overshoots() -> None:
    paper = rule(limit=4, protocol="paper")
    assert paper.cut([5, EOS, 7], 0, never) == Cut(3, None)
    assert paper.cut([5, 6, EOS], 0, never) == Cut(3, "eos")
    assert paper.cut([5, 6, 7], 3, never) == Cut(3, "length")


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.integers(0, 20),
    st.integers(1, 20),
)
def test_strict_never_emits_past_the_end_or_the_limit(
    block: list[int], emitted: int, more: int
) -> None:
    limit = emitted + more
    cut = rule(limit=limit).cut(block, emitted, never)
    assert 1 <= cut.kept <= len(block)
    assert emitted + cut.kept <= limit
    assert EOS not in block[: cut.kept - 1]
    assert (cut.stop == "eos") == (block[cut.kept - 1] == EOS)
    if cut.stop is None:
        assert cut.kept == len(block)


@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_plain_decoding_is_the_same_under_both_protocols(protocol: Protocol) -> None:
    assert rule(3, protocol).cut([EOS], 0, never) == Cut(1, "eos")
    assert rule(3, protocol).cut([4], 1, never) == Cut(1, None)
    assert rule(3, protocol).cut([4], 2, never) == Cut(1, "length")
