"""`tss-bench domains show`: the lines of a map, from what a search leaves in it.

May import: pytest, tss_bench.
"""

from __future__ import annotations

from typing import Any

import pytest

from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.map_report import map_lines
from tss_bench.types import SkipSet

DENSE = {"accept": 1.7, "metric": 0.2}


def lines(provenance: dict[str, Any]) -> dict[str, str]:
    """The line of each domain, runs of blanks made one."""
    found = DomainMap(
        model="m",
        drafter="eagle",
        num_layers=4,
        domains={
            "rag": DomainConfig(SkipSet.of([1, 3], 4), 1.904, 0.2164),
            "specbench_translation_fewshot": DomainConfig(SkipSet.dense(4), 1.5, 0.0214),
            "mt_bench": DomainConfig(SkipSet.dense(4)),
        },
        provenance=provenance,
    )
    head, *rest = [" ".join(line.split()) for line in map_lines(found)]
    assert head == "model m (4 layers)"
    assert rest[:3] == ["drafter eagle", "scope verify", "protocol strict"]
    return {line.split()[0]: line.partition(" ")[2] for line in rest[3:]}


def record(**more: Any) -> dict[str, Any]:
    return {"strategy": "tss_beam", "metric_name": "f1", "dense": DENSE, **more}


def test_a_searched_domain_has_its_figures_strategy_and_why_it_is_dense() -> None:
    floor = "the dense metric 0.0214 is at its floor (below 0.05)"
    shown = lines(
        {
            "search": {
                "rag": record(reason="triple_win among 2 of 9 sets that qualify"),
                "specbench_translation_fewshot": record(
                    metric_name="sentence_bleu", reason=f"dense kept: {floor}", metric_floor=floor
                ),
            }
        }
    )
    assert shown == {
        "rag": "skip {1,3} 50.0% of the layers "
        "A 1.90 (dense 1.70), f1 0.216 (dense 0.200); tss_beam",
        "specbench_translation_fewshot": "skip {} 0.0% of the layers "
        f"A 1.50, sentence_bleu 0.021; tss_beam; dense kept: {floor}",
        "mt_bench": "skip {} 0.0% of the layers not searched",
    }


def test_a_set_chosen_at_the_floor_says_so() -> None:
    shown = lines({"search": {"rag": record(metric_floor="no row has a reference")}})
    assert shown["rag"].endswith("; tss_beam; chosen on A alone: no row has a reference")


@pytest.mark.parametrize("provenance", [{}, {"search": "by hand"}, {"search": {"rag": 3}}])
def test_a_map_of_another_hand_shows_what_it_has(provenance: dict[str, Any]) -> None:
    shown = lines(provenance)
    assert shown["rag"] == "skip {1,3} 50.0% of the layers A 1.90, M 0.216"
    assert shown["mt_bench"] == "skip {} 0.0% of the layers"
