"""Every task through lm-eval: tables, metrics, splits, names, and models without statistics."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable, make_table

from tss_bench.data.resolve import NEEDS, resolve
from tss_bench.data.rows import DataError
from tss_bench.data.split import split_rows
from tss_bench.task_paths import task_directory
from tss_bench.types import GeneratedText, GenerationStats

GENERATION = {
    "specbench_translation": ({"sentence_bleu", "bleu", "chrf"}, 96),
    "specbench_summarization": ({"rouge1", "rouge2", "rougeL"}, 96),
    "specbench_qa": ({"f1", "exact_match", "f1_joined"}, 96),
    "specbench_rag": ({"f1", "exact_match", "f1_joined"}, 96),
    "specbench_math_reasoning": ({"acc"}, 256),
    "specbench_mt_bench": (set(), 256),
    "tss_mmlu": ({"acc"}, 32),
    "tss_nq_open": ({"f1", "exact_match", "f1_joined"}, 64),
}
FEWSHOT = {
    "specbench_translation_fewshot": ({"sentence_bleu", "bleu", "chrf"}, 96),
    "specbench_qa_fewshot": ({"f1", "exact_match", "f1_joined"}, 96),
    "specbench_rag_fewshot": ({"f1", "exact_match", "f1_joined"}, 96),
    "tss_mmlu_fewshot": ({"acc"}, 32),
    "tss_nq_open_fewshot": ({"f1", "exact_match", "f1_joined"}, 64),
}
ALL = {**GENERATION, **FEWSHOT, "tss_mmlu_ll": ({"acc"}, None)}
POOLED = {
    "accept_len",
    "accepted_per_step",
    "accept_rate",
    "tokens_per_second",
    "decode_tokens_per_second",
    "steps_per_second",
    "verify_ms",
}
Evaluate = Callable[..., dict[str, Any]]


def shown(results: dict[str, Any], task: str) -> dict[str, Any]:
    """The metrics of a task as lm-eval's table shows them."""
    return {
        key.partition(",")[0]: value
        for key, value in results["results"][task].items()
        if "," in key and "_stderr" not in key
    }


def stats(lengths: tuple[int, ...], drafted: int = 0, prefill: float = 0.5) -> GenerationStats:
    """A request of `lengths` steps, each 0.25 s of verifying and 0.25 s of drafting."""
    steps = len(lengths)
    return GenerationStats(
        prompt_tokens=10,
        new_tokens=1 + sum(lengths),
        verify_steps=steps,
        drafted=drafted,
        accepted=sum(lengths) - steps,
        accept_lengths=lengths,
        prefill_s=prefill,
        draft_s=0.25 * steps,
        verify_s=0.25 * steps,
        wall_s=prefill + 0.5 * steps,
        stop="eos",
    )


@pytest.mark.parametrize("model", ["dummy", "answering"])
def test_every_task_runs_without_statistics(model: str, evaluate: Evaluate, answering: Any):
    lm = model if model == "dummy" else answering(lambda doc: "")
    results = evaluate(list(ALL), lm, limit=3)
    for task, (metrics, _) in ALL.items():
        found = shown(results, task)
        assert set(found) == metrics | {"scored"}
        assert not any(math.isnan(value) for value in found.values())
        assert found["scored"] == (3 if metrics else 0)
        assert results["results"][task]["alias"] == f"{task} (mini)"
        assert results["n-samples"][task]["effective"] == 3
        assert f"{task} (mini)" in make_table(results)


def test_every_task_runs_with_statistics(evaluate: Evaluate, answering: Any):
    lm = answering(lambda doc: GeneratedText("x", (stats((2, 3), drafted=8),)))
    tasks = [*GENERATION, *FEWSHOT]
    results = evaluate(tasks, lm, limit=3)
    for task in tasks:
        found = shown(results, task)
        assert set(found) == ALL[task][0] | {"scored"} | POOLED
        assert found["accept_len"] == pytest.approx(2.5)
        assert found["accepted_per_step"] == pytest.approx(1.5)
        assert found["accept_rate"] == pytest.approx(3 / 8)
        assert found["tokens_per_second"] == pytest.approx(6 / 1.5)
        assert found["decode_tokens_per_second"] == pytest.approx(6 / 1.0)
        assert found["steps_per_second"] == pytest.approx(2 / 1.0)
        assert found["verify_ms"] == pytest.approx(250)
    json.dumps(results, default=handle_non_serializable)
    assert results["higher_is_better"]["specbench_qa"]["verify_ms"] is False


def test_figures_are_pooled_over_requests(evaluate: Evaluate, answering: Any):
    answers = iter([(5, 5), (2,) * 45])
    lm = answering(lambda doc: GeneratedText("x", (stats(next(answers), drafted=100),)))
    found = shown(evaluate(["specbench_qa"], lm, limit=2), "specbench_qa")
    assert found["accept_len"] == pytest.approx((10 + 90) / (2 + 45))


def test_turns_of_one_request_are_added_up(evaluate: Evaluate, answering: Any):
    turns = (stats((4,), drafted=5), stats((1, 1), drafted=5))
    lm = answering(lambda doc: GeneratedText("x", turns, ("w", "x")))
    found = shown(evaluate(["specbench_mt_bench"], lm, limit=2), "specbench_mt_bench")
    assert found["accept_len"] == pytest.approx(6 / 3)
    assert found["scored"] == 0


def test_requests_without_a_step_add_nothing_and_no_step_at_all_omits_the_row(
    evaluate: Evaluate, answering: Any
):
    answers = iter([(), (3, 3), ()])
    lm = answering(lambda doc: GeneratedText("x", (stats(next(answers), drafted=9),)))
    found = shown(evaluate(["specbench_qa"], lm, limit=3), "specbench_qa")
    assert found["accept_len"] == pytest.approx(3.0)
    none = shown(
        evaluate(
            ["specbench_qa"], answering(lambda doc: GeneratedText("x", (stats(()),))), limit=3
        ),
        "specbench_qa",
    )
    assert "accept_len" not in none
    assert "accept_rate" not in none
    assert none["tokens_per_second"] == pytest.approx(2.0)


def test_plain_decoding_has_no_accept_rate(evaluate: Evaluate, answering: Any):
    lm = answering(lambda doc: GeneratedText("x", (stats((1, 1, 1)),)))
    found = shown(evaluate(["specbench_qa"], lm, limit=3), "specbench_qa")
    assert found["accept_len"] == 1.0
    assert "accept_rate" not in found


def test_a_row_without_a_reference_counts_for_accept_length_only(
    evaluate: Evaluate, answering: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    rows = [
        {"question_id": i, "category": "qa", "turns": [f"What is number {i}?"]} for i in range(10)
    ]
    answers = [{"question": f"what is number {i}", "answer": ["right"]} for i in range(0, 10, 2)]
    for name, records in {"specbench/question": rows, "nq_open/validation": answers}.items():
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir()
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    monkeypatch.setenv("TSS_BENCH_DATA", str(tmp_path))

    def answer(doc: dict[str, Any]) -> str:
        even = int(doc["id"]) % 2 == 0
        assert bool(doc["references"]) == even
        return GeneratedText("right", (stats((4,) if even else (2,), drafted=9),))

    results = evaluate(["specbench_qa"], answering(answer), {"split": "all"})
    found = shown(results, "specbench_qa")
    assert found["scored"] == 5
    assert found["f1"] == 1.0
    assert found["accept_len"] == pytest.approx(3.0)
    assert results["results"]["specbench_qa"]["alias"] == "specbench_qa (custom, all)"


@pytest.mark.parametrize("split", ["calibration", "test", "all"])
def test_metadata_chooses_the_split(split: Any, evaluate: Evaluate, answering: Any):
    lm = answering(lambda doc: "")
    results = evaluate(["specbench_rag"], lm, {"split": split, "pretrained": "some/model"})
    rows, source = resolve("rag")
    expected = split_rows(rows, split)
    docs = [request.doc for request in lm.requests]
    assert [doc["id"] for doc in docs] == [row.id for row in expected]
    assert [doc["content_hash"] for doc in docs] == [row.content_hash for row in expected]
    stored = results["configs"]["specbench_rag"]["metadata"]
    assert stored["split"] == split
    assert stored["data"] == {
        "kind": "mini",
        "sha256": source.sha256,
        "revision": "",
        "rows": len(expected),
    }
    marks = "mini" if split == "test" else f"mini, {split}"
    assert results["results"]["specbench_rag"]["alias"] == f"specbench_rag ({marks})"


def test_calibration_and_test_share_no_document(evaluate: Evaluate, answering: Any):
    seen = {}
    for split in ("calibration", "test"):
        lm = answering(lambda doc: "")
        evaluate(["tss_mmlu"], lm, {"split": split})
        seen[split] = {request.doc["content_hash"] for request in lm.requests}
    assert (len(seen["calibration"]), len(seen["test"])) == (8, 32)
    assert not seen["calibration"] & seen["test"]


def test_an_unknown_split_is_refused(evaluate: Evaluate):
    with pytest.raises(DataError, match="split='train' is unknown; choose calibration, test, all"):
        evaluate(["specbench_qa"], "dummy", {"split": "train"})


@pytest.mark.parametrize("task", [*GENERATION, *FEWSHOT])
def test_limits_stop_rules_and_documents(task: str, evaluate: Evaluate, answering: Any):
    lm = answering(lambda doc: "")
    evaluate([task], lm, limit=2)
    fewshot = task in FEWSHOT
    for request in lm.requests:
        prompt, options = request.args
        assert options == {
            "until": ["\n"] if fewshot else [],
            "max_gen_toks": ALL[task][1],
        }
        assert prompt == request.doc["turns"][0]
        assert request.doc["prompt_style"] == ("completion" if fewshot else "chat")
        assert request.doc["data_source"] == "mini"


def test_domains_are_those_of_the_data():
    manager = TaskManager(include_path=str(task_directory()), include_defaults=False)
    tasks = manager.load(list(ALL))["tasks"]
    domains = {name: task.eval_docs[0]["domain"] for name, task in tasks.items()}
    assert domains == {
        name: next(domain for domain in NEEDS if f"_{domain}" in name) for name in ALL
    }


def prompt_of(task: str, evaluate: Evaluate, answering: Any) -> tuple[str, dict[str, Any]]:
    lm = answering(lambda doc: "")
    evaluate([task], lm, limit=1)
    return lm.requests[0].args[0], lm.requests[0].doc


def test_mmlu_prompt(evaluate: Evaluate, answering: Any):
    prompt, doc = prompt_of("tss_mmlu", evaluate, answering)
    question, *options, instruction = prompt.split("\n")
    a, b, c, d = doc["choices"]
    assert options == [f"A. {a}", f"B. {b}", f"C. {c}", f"D. {d}"]
    assert instruction == "Respond with only the letter."
    assert question in {row.turns[0] for row in resolve("mmlu")[0]}


def test_nq_open_prompt(evaluate: Evaluate, answering: Any):
    prompt, _ = prompt_of("tss_nq_open", evaluate, answering)
    first, second = prompt.split("\n")
    assert first == "Answer the question concisely."
    assert second.removeprefix("Question: ") in {row.turns[0] for row in resolve("nq_open")[0]}


@pytest.mark.parametrize("task", FEWSHOT)
def test_fewshot_prompts_show_three_examples_of_their_own(
    task: str, evaluate: Evaluate, answering: Any
):
    prompt, doc = prompt_of(task, evaluate, answering)
    *examples, question = prompt.split("\n\n")
    assert len(examples) == 3
    mark = "English:" if "translation" in task else "Answer:"
    assert question.endswith(mark)
    assert all(example.split("\n")[-1].startswith(f"{mark} ") for example in examples)
    for row in resolve(doc["domain"])[0]:
        assert not any(row.turns[0] in example for example in examples)


def test_mt_bench_documents_have_two_turns_and_ask_the_first(evaluate: Evaluate, answering: Any):
    prompt, doc = prompt_of("specbench_mt_bench", evaluate, answering)
    assert len(doc["turns"]) == 2
    assert prompt == doc["turns"][0]


def test_loglikelihood_form_asks_for_each_letter(evaluate: Evaluate, answering: Any):
    lm = answering(lambda doc: "")
    results = evaluate(["tss_mmlu_ll"], lm)
    assert [request.args[1] for request in lm.requests[:4]] == [" A", " B", " C", " D"]
    assert lm.requests[0].args[0].endswith("\nAnswer:")
    # AnsweringLM finds A the most likely letter of every row.
    first = [row.answer == "A" for row in split_rows(resolve("mmlu")[0])]
    assert shown(results, "tss_mmlu_ll")["acc"] == pytest.approx(sum(first) / len(first))


@pytest.mark.parametrize(
    ("task", "templated"),
    [("specbench_qa", True), ("specbench_qa_fewshot", False), ("tss_mmlu_ll", False)],
)
def test_completion_prompts_stay_plain_under_apply_chat_template(
    task: str, templated: bool, evaluate: Evaluate, answering: Any
):
    lm = answering(lambda doc: "")
    evaluate([task], lm, limit=1, apply_chat_template=True)
    assert lm.requests[0].args[0].startswith("<chat>") == templated
    if task == "tss_mmlu_ll":
        assert lm.requests[0].args[1] == " A"


def test_gen_kwargs_win_over_the_task(evaluate: Evaluate, answering: Any):
    lm = answering(lambda doc: "")
    evaluate(["specbench_qa"], lm, limit=1, gen_kwargs={"max_gen_toks": 5})
    assert lm.requests[0].args[1]["max_gen_toks"] == 5


def test_num_fewshot_cannot_change_the_prompt(evaluate: Evaluate, answering: Any):
    plain = prompt_of("specbench_qa", evaluate, answering)[0]
    lm = answering(lambda doc: "")
    evaluate(["specbench_qa"], lm, limit=1, num_fewshot=2)
    assert lm.requests[0].args[0] == plain


def test_outputs_only(evaluate: Evaluate):
    results = evaluate(["specbench_qa", "tss_mmlu_ll"], "dummy", limit=2, predict_only=True)
    assert set(shown(results, "specbench_qa")) == {"bypass"}


def test_groups_have_the_tasks_of_their_papers():
    manager = TaskManager(include_path=str(task_directory()), include_defaults=False)
    loaded = manager.load(["specbench"])
    assert loaded["group_map"]["specbench"] == [
        f"specbench_{domain}"
        for domain in ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
    ]
    assert manager.load(["tss_paper"])["group_map"]["tss_paper"] == [
        "specbench_translation",
        "specbench_summarization",
        "specbench_rag",
        "tss_nq_open",
        "tss_mmlu",
    ]


def test_a_group_runs_and_shows_its_tasks(evaluate: Evaluate):
    results = evaluate(["tss_paper"], "dummy", limit=2)
    table = make_table(results)
    for task in ("specbench_translation", "tss_nq_open", "tss_mmlu"):
        assert f"- {task} (mini)" in table


def test_the_source_is_printed_once(evaluate: Evaluate, capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        evaluate(["specbench_summarization"], "dummy", {"split": "calibration"}, limit=1)
    printed = capsys.readouterr().err.splitlines()
    assert [line for line in printed if line.startswith("tss_bench: ")] == [
        "tss_bench: specbench_summarization uses the packaged mini set, split calibration, "
        "8 of 40 rows; TSS_BENCH_DATA=mini"
    ]


def test_official_rows_keep_the_plain_name(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, evaluate: Evaluate, answering: Any
):
    monkeypatch.setenv("TSS_BENCH_DATA", str(data_dir))
    lm = answering(lambda doc: doc["references"][0] if doc["references"] else "x")
    results = evaluate(["specbench_qa", "specbench_translation", "tss_mmlu"], lm)
    qa, translation = (shown(results, f"specbench_{name}") for name in ("qa", "translation"))
    assert results["results"]["specbench_qa"]["alias"] == "specbench_qa"
    assert results["n-samples"]["specbench_qa"]["effective"] == 64
    assert qa["scored"] == sum(bool(row.references) for row in split_rows(resolve("qa")[0]))
    assert 0 < qa["scored"] < 64
    assert qa["f1"] == qa["exact_match"] == 1.0
    assert translation["scored"] == 64
    assert translation["bleu"] == pytest.approx(1.0)
    assert shown(results, "tss_mmlu")["acc"] == 1.0
    data = results["configs"]["specbench_translation"]["metadata"]["data"]
    assert data["kind"] == "official"
    assert data["revision"].startswith("github.com/hemingkx/Spec-Bench@")


def test_official_rows_are_prompted_with_their_own_instruction(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, evaluate: Evaluate, answering: Any
):
    monkeypatch.setenv("TSS_BENCH_DATA", str(data_dir))
    lm = answering(lambda doc: "")
    evaluate(["specbench_translation"], lm)
    turns = {row.turns[0] for row in resolve("translation")[0]}
    assert len(lm.requests) == 64
    assert {request.args[0] for request in lm.requests} < turns


@pytest.fixture
def own_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the YAML of a task that includes one of ours, and its ten rows."""
    row = {"category": "law", "reference": ["right"]}
    rows = [{**row, "question_id": i, "turns": [f"Is {i} legal?"]} for i in range(10)]
    (tmp_path / "law.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "law.yaml").write_text(
        f"include: {task_directory() / 'specbench_qa.yaml'}\n"
        "task: law_qa\n"
        "dataset_kwargs:\n"
        "  rows: law\n"
        "  file: law.jsonl\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_task_of_ones_own_with_rows_of_ones_own(own_task: Path, answering: Any):
    lm = answering(lambda doc: GeneratedText("right", (stats((3,), drafted=4),)))
    manager = TaskManager(include_path=str(own_task), include_defaults=False)
    results = simple_evaluate(lm, tasks=["law_qa"], task_manager=manager)
    found = shown(results, "law_qa")
    # Two of ten rows are calibration, the others test.
    assert found["scored"] == 8
    assert (found["f1"], found["accept_len"]) == (1.0, 3.0)
    assert results["results"]["law_qa"]["alias"] == "law_qa (custom)"
    assert {request.doc["domain"] for request in lm.requests} == {"law"}
    assert results["configs"]["law_qa"]["metadata"]["data"]["kind"] == "custom"


def test_a_missing_file_of_rows_is_named(own_task: Path):
    (own_task / "law.jsonl").unlink()
    manager = TaskManager(include_path=str(own_task), include_defaults=False)
    with pytest.raises(DataError, match=r"file=law\.jsonl: .*cannot be read"):
        manager.load(["law_qa"])
