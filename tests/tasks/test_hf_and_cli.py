"""The tasks with lm-eval's own `hf` model, and through its command line."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from lm_eval.__main__ import cli_evaluate

from tss_bench.task_paths import task_directory

TASKS = [
    "specbench_translation",
    "specbench_summarization",
    "specbench_qa",
    "specbench_rag",
    "specbench_math_reasoning",
    "specbench_mt_bench",
    "tss_mmlu",
    "tss_mmlu_ll",
    "tss_nq_open",
    "specbench_translation_fewshot",
    "specbench_qa_fewshot",
    "specbench_rag_fewshot",
    "tss_mmlu_fewshot",
    "tss_nq_open_fewshot",
]


@pytest.fixture
def tiny_hf() -> Any:
    """lm-eval's HFLM around a random Llama of one layer that reads and writes bytes."""
    import torch
    from lm_eval.models.huggingface import HFLM
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<end>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=0,
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    return HFLM(pretrained=LlamaForCausalLM(config), tokenizer=fast, device="cpu")


def test_every_task_runs_with_the_hf_model(evaluate: Callable[..., Any], tiny_hf: Any):
    results = evaluate(TASKS, tiny_hf, limit=2, gen_kwargs={"max_gen_toks": 4})
    for task in TASKS:
        shown = {key.partition(",")[0] for key in results["results"][task] if ",none" in key}
        assert "scored" in shown
        assert not shown & {"accept_len", "tokens_per_second"}


def run_cli(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lm_eval", *arguments])
    cli_evaluate()


@pytest.mark.slow
def test_validate_finds_every_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    names = ",".join([*TASKS, "specbench", "tss_paper"])
    run_cli(["validate", "--tasks", names, "--include_path", str(task_directory())], monkeypatch)
    assert "All tasks found and valid" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("form", ["split=calibration", '{"split": "calibration"}'])
def test_both_forms_of_metadata_reach_the_task(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    arguments = ["run", "--model", "dummy", "--tasks", "specbench_translation", "--limit", "2"]
    arguments += ["--include_path", str(task_directory()), "--metadata", form]
    run_cli(arguments, monkeypatch)
    printed = capsys.readouterr().out
    assert "specbench_translation (mini, calibration)" in printed
    assert "sentence_bleu" in printed
