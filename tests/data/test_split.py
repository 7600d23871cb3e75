"""The split of the TSS paper: seed 42, a pool of 80, 16 calibration and 64 test rows."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tss_bench.data.rows import DataError, Row
from tss_bench.data.split import SPLITS, check_split, split_rows


def make_rows(texts: list[str]) -> list[Row]:
    return [Row(str(i), "qa", (text,), ()) for i, text in enumerate(texts)]


def ids(rows: list[Row]) -> list[str]:
    return [row.id for row in rows]


def test_eighty_rows_split_16_to_64_in_the_order_of_the_seed():
    order = [str(i) for i in range(80)]
    random.Random(42).shuffle(order)
    rows = make_rows([f"text {i}" for i in range(80)])
    assert ids(split_rows(rows, "calibration")) == order[:16]
    assert ids(split_rows(rows, "test")) == order[16:]
    assert ids(split_rows(rows, "all")) == order


def test_the_pool_is_the_first_80_of_all_shuffled_rows():
    order = [str(i) for i in range(500)]
    random.Random(42).shuffle(order)
    rows = make_rows([f"text {i}" for i in range(500)])
    assert ids(split_rows(rows, "all")) == order[:80]
    assert len(split_rows(rows, "calibration")) == 16


def test_a_small_set_keeps_the_shares():
    rows = make_rows([f"text {i}" for i in range(20)])
    assert [len(split_rows(rows, split)) for split in SPLITS] == [4, 16, 20]


def test_test_is_the_default_split():
    rows = make_rows([f"text {i}" for i in range(20)])
    assert split_rows(rows) == split_rows(rows, "test")


@given(st.lists(st.sampled_from("abcdefghij"), min_size=5, max_size=100))
def test_rows_with_the_same_text_are_in_the_same_split(texts: list[str]):
    rows = make_rows(texts)
    everything = split_rows(rows, "all")
    calibration = split_rows(rows, "calibration")
    seen = {row.content_hash for row in calibration}
    rest = [row for row in everything if row.content_hash not in seen]
    assert sorted(ids(calibration) + ids(rest)) == sorted(ids(everything))
    if rest:
        assert split_rows(rows, "test") == rest
    else:
        with pytest.raises(DataError, match=r"'test' of .* rows is empty"):
            split_rows(rows, "test")


def test_a_copy_with_other_white_space_follows_its_twin():
    order = list(range(80))
    random.Random(42).shuffle(order)
    texts = [f"text {i}" for i in range(80)]
    twin, original = order[40], order[0]
    texts[twin] = f" text  {original}\n"
    rows = make_rows(texts)
    assert str(twin) in ids(split_rows(rows, "calibration"))
    assert len(split_rows(rows, "test")) == 63


@pytest.mark.parametrize("name", ["train", "", None, 1])
def test_an_unknown_split_is_refused_with_the_three_there_are(name: object):
    with pytest.raises(DataError, match="is unknown; choose calibration, test, all"):
        check_split(name)


def test_too_few_rows_for_a_split_are_an_error():
    with pytest.raises(DataError, match="'calibration' of 4 rows is empty"):
        split_rows(make_rows(list("abcd")), "calibration")
