"""What an answer quotes of its row becomes a gap.

May import: pytest, tss_bench and the standard library.
"""

from __future__ import annotations

import pytest

from tss_bench.quotes import GAP, SHORTEST, without_quotes
from tss_bench.run_files import without_docs

TEXT = "The ferry to the island leaves at nine, and nobody is let on board later."
LEAST = "The ferry to the island leave"
"""Its first `SHORTEST` letters."""


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        ("", ""),
        ("The ferry leaves at nine.", "The ferry leaves at nine."),
        (TEXT, GAP),
        (f"It says: {TEXT} So hurry, {LEAST}!", f"It says: {GAP} So hurry, {GAP}!"),
        (LEAST[:-1], LEAST[:-1]),
        (TEXT[:40] + TEXT[20:60], GAP),
        (TEXT[:36] + "øø" + TEXT[36:], f"{GAP}øø{GAP}"),
        # Set in another way: case, line breaks, a space before a comma, quotation marks.
        (TEXT.upper(), f"{GAP}."),
        (f"* {TEXT}".replace(" ", chr(10)).replace(",", " ,"), f"*{chr(10)}{GAP}."),
        ("So: “the FERRY to the island – leaves at nine”?", f"So: “{GAP}”?"),
    ],
)
def test_a_quotation_becomes_a_gap(answer: str, left: str) -> None:
    assert sum(c.isalnum() for c in LEAST) == SHORTEST
    assert without_quotes(answer, ["a short one", TEXT]) == left
    assert without_quotes(answer, []) == answer


def test_a_formula_is_a_quotation_though_it_has_few_letters() -> None:
    formula = "3*(x-1)+4*(y+2)-7*(z/2)=0; 2*(x+1)-(y-2)=5"
    assert without_quotes(f"So {formula}, then.", [f"Solve {formula}."]) == f"So{GAP}, then."
    assert without_quotes(f"So {formula[:31]}", [formula]) == f"So {formula[:31]}"


def test_a_letter_that_folds_into_two_is_found_and_its_place_kept() -> None:
    text = "Die Straße ist weiß, und es heißt, sie sei lang."
    assert without_quotes("Also: DIE STRASSE IST WEISS, UND ES HEISST!", [text]) == f"Also: {GAP}!"
    assert without_quotes(f"x {text} y", [text.upper()]) == f"x {GAP}. y"


def test_a_sample_without_docs_quotes_nothing_and_keeps_its_ids() -> None:
    answer = f"Sure. {TEXT}"
    line = {
        "doc_id": 3,
        "doc": {"id": "9", "turns": [TEXT], "content_hash": "c", "data_source": "official"},
        "target": "",
        "arguments": {"gen_args_0": {"arg_0": f"Text:\n{TEXT}"}},
        "resps": [[answer]],
        "filtered_resps": [answer],
        "metrics": ["f1"],
        "f1": 0.5,
        "tss": {"turns": [answer], "ids": [[4, 5]], "references": [TEXT]},
    }
    kept = without_docs(line)
    assert (kept["resps"], kept["filtered_resps"]) == ([[f"Sure. {GAP}"]], [f"Sure. {GAP}"])
    assert kept["tss"] == {"turns": [f"Sure. {GAP}"], "ids": [[4, 5]]}
    assert kept["f1"] == 0.5
    failed = {**line, "resps": [[""]], "filtered_resps": [""], "tss": {"failed": "ValueError"}}
    assert without_docs(failed)["tss"] == {"failed": "ValueError"}
