"""The router's index and rule, by vectors whose distances are known by hand.

May import: pytest, numpy, safetensors, tss_bench.routing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tss_bench.routing import IndexFileError, Router, RouterIndex


def at(degrees: float, length: float = 1.0) -> list[float]:
    """A vector of the plane; the cosine distance of two is 1 - cos of the angle between them."""
    turned = np.deg2rad(degrees)
    return [length * float(np.cos(turned)), length * float(np.sin(turned))]


def apart(degrees: float) -> float:
    return 1 - float(np.cos(np.deg2rad(degrees)))


def index(*entries: tuple[str, float], rows: str = "", forms: str = "") -> RouterIndex:
    """Entries (domain, angle), of different lengths, each a row of its own."""
    return RouterIndex(
        np.array([at(angle, 1 + place) for place, (_, angle) in enumerate(entries)], np.float32),
        tuple(domain for domain, _ in entries),
        tuple(forms or "c" * len(entries)),
        tuple(rows or map(str, range(len(entries)))),
        "print",
        {domain: "mini" for domain, _ in entries},
    )


def feature(degrees: float) -> np.ndarray:
    return np.array(at(degrees, 7.0), np.float32)


def test_the_nearest_entry_decides_by_angle_alone() -> None:
    route = Router(index(("qa", 0), ("rag", 90)), neighbours=1, threshold=2.0)(feature(30))
    assert route.domain == route.nearest == "qa"
    assert route.distance == pytest.approx(apart(30), abs=1e-6)


def test_more_votes_win_over_a_nearer_entry() -> None:
    entries = index(("qa", 10), ("rag", 20), ("rag", 30), ("qa", 90))
    assert Router(entries, 1, 2.0)(feature(0)).nearest == "qa"
    route = Router(entries, 3, 2.0)(feature(0))
    assert route.nearest == "rag"
    # Of the domain that won, not of the nearest entry.
    assert route.distance == pytest.approx(apart(20), abs=1e-6)


def test_of_equal_votes_the_nearest_wins_and_of_equal_distances_the_first() -> None:
    entries = index(("rag", 20), ("qa", 10), ("rag", 30), ("qa", 40))
    assert Router(entries, 2, 2.0)(feature(0)).nearest == "qa"
    assert Router(entries, 4, 2.0)(feature(0)).nearest == "qa"
    same = index(("rag", 10), ("qa", 10))
    for neighbours in (1, 2):
        assert Router(same, neighbours, 2.0)(feature(0)).nearest == "rag"


def test_a_stranger_is_what_lies_beyond_the_threshold() -> None:
    entries = index(("qa", 0), ("rag", 90))
    near, far = (Router(entries, 1, apart(30))(feature(angle)) for angle in (29, 31))
    assert (near.domain, near.nearest) == ("qa", "qa")
    assert (far.domain, far.nearest) == (None, "qa")
    assert far.threshold == pytest.approx(apart(30))
    assert Router(entries, 1, 0.0)(feature(0)).domain == "qa"


def test_a_threshold_is_calibrated_by_other_rows_of_the_same_domain() -> None:
    entries = index(("qa", 0), ("qa", 10), ("qa", 30), ("rag", 44), ("qa", 45), ("rag", 46))
    # From each entry to the nearest one of its domain, in order.
    nearest = [apart(degrees) for degrees in (10, 10, 15, 2, 15, 2)]
    expected = np.quantile(nearest, 0.9)
    assert Router(entries, 1).threshold == pytest.approx(expected, abs=1e-6)


def test_an_entry_of_the_same_row_calibrates_nothing() -> None:
    entries = index(("qa", 0), ("qa", 1), ("qa", 40), rows="aab")
    # 0 and 1 are one row: their nearest other row is at 40 and 39 degrees, that of 40 at 39.
    expected = np.quantile([apart(40), apart(39), apart(39)], 0.9)
    assert Router(entries, 1).threshold == pytest.approx(expected, abs=1e-6)


def test_a_domain_of_one_row_calibrates_nothing() -> None:
    found = Router(index(("qa", 0), ("qa", 10), ("rag", 90)), 1).threshold
    assert found == pytest.approx(apart(10), abs=1e-6)
    with pytest.raises(ValueError, match="no threshold can be calibrated; give router_threshold"):
        Router(index(("qa", 0), ("rag", 90)), 1)


def test_a_domain_and_a_form_can_be_taken_out() -> None:
    entries = index(("qa", 0), ("rag", 50), ("qa", 10), forms="cpp")
    assert Router(entries.without("qa"), 1, 2.0)(feature(0)).nearest == "rag"
    plain = entries.of_form("p")
    assert (plain.domains, plain.rows, plain.forms) == (("rag", "qa"), ("1", "2"), ("p", "p"))
    assert Router(plain, 1, 2.0)(feature(0)).distance == pytest.approx(apart(10), abs=1e-6)
    assert entries.without("rag").sources == {"qa": "mini"}


@pytest.mark.parametrize("neighbours", [0, 3])
def test_more_neighbours_than_entries_are_refused(neighbours: int) -> None:
    with pytest.raises(ValueError, match=rf"1 to 2, .* of form c .* got {neighbours}"):
        Router(index(("qa", 0), ("rag", 90)), neighbours, 2.0)


@pytest.mark.parametrize("bad", [[0.0, 0.0], [1.0, 0.0, 0.0], [float("nan"), 1.0]])
def test_a_feature_that_cannot_be_compared_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match=r"the index holds features \[2\]"):
        Router(index(("qa", 0), ("rag", 90)), 1, 2.0)(np.array(bad, np.float32))


def test_an_index_without_entries_or_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="an index needs entries"):
        index(("qa", 0)).without("qa")
    with pytest.raises(ValueError, match="entry 0 of qa has no direction"):
        RouterIndex(np.zeros((1, 2), np.float32), ("qa",), ("c",), ("r",), "print", {})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "index.safetensors"
    index(("qa", 0), ("rag", 90), forms="cp").save(path)
    return path


def test_a_saved_index_comes_back_whole(saved: Path) -> None:
    wanted, found = index(("qa", 0), ("rag", 90), forms="cp"), RouterIndex.load(saved, "print")
    assert np.array_equal(found.features, wanted.features)
    assert found.features.dtype == np.float32
    for name in ("domains", "forms", "rows", "fingerprint", "sources"):
        assert getattr(found, name) == getattr(wanted, name)
    assert [path.name for path in saved.parent.iterdir()] == ["index.safetensors"]


def test_the_index_of_another_model_is_refused(saved: Path) -> None:
    with pytest.raises(IndexFileError, match="router index of another model or other rows"):
        RouterIndex.load(saved, "other")


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_torn_file_is_refused(saved: Path, kept: int) -> None:
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(IndexFileError, match=r"index\.safetensors is no whole router index"):
        RouterIndex.load(saved, "print")


def test_a_missing_file_is_just_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RouterIndex.load(tmp_path / "none.safetensors", "print")
