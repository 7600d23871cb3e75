"""EAGLE heads on disk: the official names and shapes, strictly; the target must fit."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.weights import eagle
from tss_bench.weights.eagle import (
    check_eagle_head,
    eagle_notes,
    load_eagle_head,
    resolve_eagle,
    save_eagle_head,
)
from tss_bench.weights.loading import ModelInfo

H, INNER, V = 8, 12, 20
CONFIG = {
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": V,
    "num_hidden_layers": 1,
}
TARGET = {"target_hidden_size": H, "target_vocab_size": V}
INFO = ModelInfo("tiny", 2, "r", False, "llama", H, V, 64)
# The official file's keys and shapes: two query heads, one key head, four dimensions a head.
SHAPES = {
    "fc.weight": (H, 2 * H),
    "layers.0.self_attn.q_proj.weight": (H, H),
    "layers.0.self_attn.k_proj.weight": (4, H),
    "layers.0.self_attn.v_proj.weight": (4, H),
    "layers.0.self_attn.o_proj.weight": (H, H),
    "layers.0.mlp.gate_proj.weight": (INNER, H),
    "layers.0.mlp.up_proj.weight": (INNER, H),
    "layers.0.mlp.down_proj.weight": (H, INNER),
    "layers.0.post_attention_layernorm.weight": (H,),
}


def official_state(**more):
    generator = torch.Generator().manual_seed(1)
    state = {key: torch.randn(shape, generator=generator) for key, shape in SHAPES.items()}
    return {**state, **more}


def write(directory, state, config=None, *, as_pickle=False):
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    if as_pickle:
        torch.save(state, directory / "pytorch_model.bin")
    else:
        save_file(state, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("as_pickle", [False, True])
def test_official_file_without_bias(tmp_path, as_pickle):
    state = official_state()
    head = load_eagle_head(write(tmp_path / "head", state, as_pickle=as_pickle), **TARGET)
    assert head.fc.bias is None
    assert head.embed_tokens is None
    assert not head.training
    loaded = head.state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[key], state[key]) for key in state)


def test_official_file_with_bias_and_embedding(tmp_path):
    more = {"fc.bias": torch.ones(H), "embed_tokens.weight": torch.ones(V, H)}
    head = load_eagle_head(write(tmp_path / "head", official_state(**more)), **TARGET)
    assert torch.equal(head.fc.bias, torch.ones(H))
    assert torch.equal(head.embed_tokens.weight, torch.ones(V, H))


def test_half_precision_files_become_float32(tmp_path):
    state = {key: value.half() for key, value in official_state().items()}
    head = load_eagle_head(write(tmp_path / "head", state), **TARGET)
    assert head.fc.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("config", "theta"),
    [
        ({}, 10000.0),
        ({"rope_theta": 500000.0}, 500000.0),
        ({"rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"}}, 100000.0),
    ],
)
def test_rope_base(tmp_path, config, theta):
    head = load_eagle_head(write(tmp_path / "head", official_state(), config), **TARGET)
    assert head.config.rope_theta == theta


def test_rotary_tables_of_old_files_are_ignored(tmp_path):
    table = {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    load_eagle_head(write(tmp_path / "head", official_state(**table)), **TARGET)


def test_missing_and_extra_keys_are_named_together(tmp_path):
    state = official_state(**{"norm.weight": torch.ones(H)})
    del state["layers.0.mlp.up_proj.weight"]
    with pytest.raises(
        ValueError, match=r"missing layers\.0\.mlp\.up_proj\.weight; extra norm\.weight"
    ):
        load_eagle_head(write(tmp_path / "head", state), **TARGET)


def test_bias_that_the_config_denies_is_refused(tmp_path):
    state = official_state(**{"fc.bias": torch.ones(H)})
    with pytest.raises(ValueError, match=r"extra fc\.bias"):
        load_eagle_head(write(tmp_path / "head", state, {"bias": False}), **TARGET)


def test_wrong_shape_shows_both(tmp_path):
    state = official_state(**{"fc.weight": torch.ones(H, 3 * H)})
    with pytest.raises(ValueError, match=r"fc\.weight has shape \[8, 24\].*means \[8, 16\]"):
        load_eagle_head(write(tmp_path / "head", state), **TARGET)


def test_values_that_are_not_finite(tmp_path):
    state = official_state(**{"layers.0.post_attention_layernorm.weight": torch.full((H,), 1.0)})
    state["fc.weight"][0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"fc\.weight holds values that are not finite"):
        load_eagle_head(write(tmp_path / "head", state), **TARGET)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"target_hidden_size": 16, "target_vocab_size": V}, "hidden_size 8, the target has 16"),
        ({"target_hidden_size": H, "target_vocab_size": 19}, "vocab_size 20, the target has 19"),
    ],
)
def test_head_of_another_target(tmp_path, target, message):
    with pytest.raises(ValueError, match=message):
        load_eagle_head(write(tmp_path / "head", official_state()), **target)


def test_a_head_with_fewer_rows_gets_the_target_s(tmp_path):
    state = official_state(**{"embed_tokens.weight": torch.ones(V, H)})
    head = load_eagle_head(
        write(tmp_path / "head", state), target_hidden_size=H, target_vocab_size=V + 3
    )
    assert head.config.vocab_size == V + 3
    assert head.embed_tokens.weight.sum(dim=1).tolist() == [H] * V + [0] * 3


def test_a_head_with_more_rows_loses_them_if_the_tokenizer_is_the_same(tmp_path):
    rows = torch.arange(V)[:, None].expand(V, H).float()
    path = write(tmp_path / "head", official_state(**{"embed_tokens.weight": rows}))
    target = {"target_hidden_size": H, "target_vocab_size": V - 2}
    with pytest.raises(ValueError, match="vocab_size 20, the target has 18"):
        load_eagle_head(path, **target)
    head = load_eagle_head(path, **target, same_tokenizer=True)
    assert head.config.vocab_size == V - 2
    assert torch.equal(head.embed_tokens.weight, rows[:-2])


def test_draft_ids_in_padded_rows_are_refused(tmp_path):
    state = official_state(d2t=torch.tensor([2, 2, 17]))
    path = write(tmp_path / "head", state, {"draft_vocab_size": 3})
    load_eagle_head(path, **TARGET)
    with pytest.raises(ValueError, match="target ids 2 to 19, allowed are 0 to 18"):
        load_eagle_head(path, target_hidden_size=H, target_vocab_size=V - 1, same_tokenizer=True)


def no_tokenizer():
    pytest.fail("the target's tokenizer was loaded")


def of_target(**sizes):
    return dataclasses.replace(INFO, **sizes)


@pytest.mark.parametrize("vocab", [V, V + 5])
def test_a_fitting_head_passes_the_check(tmp_path, vocab):
    head = write(tmp_path / "head", official_state())
    assert check_eagle_head(head, of_target(vocab_size=vocab), no_tokenizer) is False


@pytest.mark.parametrize("as_pickle", [False, True])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hidden_size": 16}, "hidden_size 8, the target has 16"),
        ({"vocab_size": 19}, "vocab_size 20, the target has 19"),
    ],
)
def test_the_check_refuses_a_head_of_another_target(tmp_path, as_pickle, sizes, message):
    head = write(tmp_path / "head", official_state(), as_pickle=as_pickle)
    with pytest.raises(ValueError, match=message):
        check_eagle_head(head, of_target(**sizes), no_tokenizer)


@pytest.mark.parametrize(
    ("state", "config", "message"),
    [
        ({}, {"speculators_model_type": "eagle"}, "speculators format"),
        ({}, {"num_hidden_layers": 32}, "has num_hidden_layers 32"),
    ],
)
def test_the_check_refuses_heads_of_other_kinds(tmp_path, state, config, message):
    head = write(tmp_path / "head", state, config)
    with pytest.raises(ValueError, match=message):
        check_eagle_head(head, INFO, no_tokenizer)


def test_the_check_refuses_incomplete_directories(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        check_eagle_head(tmp_path, INFO, no_tokenizer)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ValueError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        check_eagle_head(tmp_path, INFO, no_tokenizer)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="cannot read the weights"):
        check_eagle_head(tmp_path, INFO, no_tokenizer)


@pytest.mark.parametrize("rows", [V - 4, V, V + 4])
def test_an_equal_tokenizer_allows_any_padding(tmp_path, make_tokenizer, rows):
    """cases.json vocab-mismatch: padded rows do not count, in either direction."""
    head = write(tmp_path / "head", official_state())
    make_tokenizer().save_pretrained(head)
    assert check_eagle_head(head, of_target(vocab_size=rows), make_tokenizer) is True


@pytest.mark.parametrize("rows", [V, V + 4])
def test_another_tokenizer_is_refused_whatever_the_sizes(tmp_path, make_tokenizer, rows):
    head = write(tmp_path / "head", official_state())
    make_tokenizer(("a", "b", "d")).save_pretrained(head)
    with pytest.raises(ValueError, match=r"head' has another tokenizer than target 'tiny'"):
        check_eagle_head(head, of_target(vocab_size=rows), make_tokenizer)


def test_reduced_vocabulary(tmp_path):
    state = official_state(d2t=torch.tensor([2, 2, 5]))
    head = load_eagle_head(write(tmp_path / "head", state, {"draft_vocab_size": 3}), **TARGET)
    # target id = draft id + offset: 0+2, 1+2, 2+5
    assert head.draft_rows.tolist() == [2, 3, 7]
    assert head.d2t.dtype == torch.int64


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 0, 18], "target ids 0 to 20, allowed are 0 to 19"),
        ([-1, 0, 0], "target ids -1 to 2"),
        ([1, 0, 0], "same target id twice"),
    ],
)
def test_bad_draft_ids(tmp_path, offsets, message):
    state = official_state(d2t=torch.tensor(offsets))
    with pytest.raises(ValueError, match=message):
        load_eagle_head(write(tmp_path / "head", state, {"draft_vocab_size": 3}), **TARGET)


def test_reduced_vocabulary_needs_its_table(tmp_path):
    with pytest.raises(ValueError, match="missing d2t"):
        load_eagle_head(write(tmp_path / "a", official_state(), {"draft_vocab_size": 3}), **TARGET)
    state = official_state(d2t=torch.tensor([2, 2, 5]))
    with pytest.raises(ValueError, match="extra d2t"):
        load_eagle_head(write(tmp_path / "b", state), **TARGET)


def test_draft_vocabulary_of_full_size_needs_no_table(tmp_path):
    path = write(tmp_path / "head", official_state(), {"draft_vocab_size": V})
    assert load_eagle_head(path, **TARGET).draft_rows is None


def test_pickle_with_code_is_not_run(tmp_path):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    path = write(tmp_path / "head", {}, as_pickle=True)
    (path / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Harmful()}, protocol=2))
    with pytest.raises(ValueError, match="a pickle can run code"):
        load_eagle_head(path, **TARGET)
    assert not (tmp_path / "harm").exists()


def test_safetensors_win_over_a_pickle(tmp_path):
    path = write(tmp_path / "head", official_state())
    (path / "pytorch_model.bin").write_bytes(b"never read")
    load_eagle_head(path, **TARGET)


@pytest.mark.parametrize(
    ("state", "config", "message"),
    [
        ({"fc.weight": torch.ones(2)}, {"speculators_model_type": "eagle"}, "speculators format"),
        ({"fc.weight": torch.ones(2)}, {"num_hidden_layers": 32}, "has num_hidden_layers 32"),
        ({"fc.weight": torch.ones(2)}, {"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_heads_of_other_kinds(tmp_path, state, config, message):
    with pytest.raises(ValueError, match=message):
        load_eagle_head(write(tmp_path / "head", state, config), **TARGET)


def test_incomplete_directories(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json"):
        load_eagle_head(tmp_path, **TARGET)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        load_eagle_head(tmp_path, **TARGET)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ValueError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        load_eagle_head(tmp_path, **TARGET)
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="cannot read the weights"):
        load_eagle_head(tmp_path, **TARGET)


@pytest.mark.parametrize("draft_vocab", [None, 3])
def test_saved_head_comes_back(tmp_path, draft_vocab):
    config = EagleConfig.from_dict(
        {**CONFIG, "rope_theta": 1e5, "rms_norm_eps": 1e-5, "draft_vocab_size": draft_vocab}
    )
    head = EagleHead(config)
    if draft_vocab:
        head.d2t.copy_(torch.tensor([2, 2, 5]))
    save_eagle_head(head, tmp_path / "head", {"seed": 7, "tokens": 100})
    again = load_eagle_head(tmp_path / "head", **TARGET)
    assert again.config == config
    assert all(
        torch.equal(value, head.state_dict()[key]) for key, value in again.state_dict().items()
    )
    provenance = json.loads((tmp_path / "head" / "provenance.json").read_text())
    assert provenance == {"seed": 7, "tokens": 100}
    assert sorted(p.name for p in (tmp_path / "head").iterdir()) == [
        "config.json",
        "model.safetensors",
        "provenance.json",
    ]


@pytest.mark.parametrize(
    ("record", "info"),
    [
        ({"target": "tiny", "target_revision": "r"}, INFO),
        # The same weights under another name, and a LoRA with its base's head.
        ({"target": "small", "target_revision": "r"}, INFO),
        (
            {"target": "tiny", "target_revision": "r"},
            dataclasses.replace(INFO, id="tuned", revision="t", base="tiny"),
        ),
        ({"seed": 7}, INFO),
        ([], INFO),
    ],
)
def test_a_head_of_the_target_is_no_note(tmp_path, record, info):
    write(tmp_path, official_state())
    assert eagle_notes(tmp_path, info) == []
    (tmp_path / "provenance.json").write_text(json.dumps(record))
    assert eagle_notes(tmp_path, info) == []


def test_a_head_of_another_target_is_a_note(tmp_path):
    write(tmp_path, official_state())
    record = {"target": "tiny", "target_revision": "b" * 40}
    (tmp_path / "provenance.json").write_text(json.dumps(record))
    (note,) = eagle_notes(tmp_path, INFO)
    assert f"trained for tiny (revision {'b' * 12}), the target is tiny (revision r): " in note
    tuned = dataclasses.replace(INFO, id="tuned", revision="t", base="other")
    (note,) = eagle_notes(tmp_path, tuned)
    assert f"trained for tiny (revision {'b' * 12}), the target is tuned (revision t): " in note


def test_head_is_saved_in_its_own_dtype(tmp_path):
    head = EagleHead(EagleConfig.from_dict(CONFIG)).to(torch.bfloat16)
    save_eagle_head(head, tmp_path, {})
    stored = load_file(tmp_path / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}


def test_auto_finds_the_packaged_head(tmp_path, monkeypatch):
    monkeypatch.setattr(eagle, "packaged_heads", lambda: tmp_path)
    write(tmp_path / "tiny", official_state())
    assert resolve_eagle("auto", INFO) == tmp_path / "tiny"


def test_a_lora_without_a_head_of_its_own_takes_its_bases(tmp_path, monkeypatch):
    monkeypatch.setattr(eagle, "packaged_heads", lambda: tmp_path)
    write(tmp_path / "tiny", official_state())
    adapted = dataclasses.replace(INFO, id="adapted", base="tiny")
    assert resolve_eagle("auto", adapted) == tmp_path / "tiny"
    write(tmp_path / "adapted", official_state())
    assert resolve_eagle("auto", adapted) == tmp_path / "adapted"


def test_auto_without_a_packaged_head_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(eagle, "packaged_heads", lambda: tmp_path)
    with pytest.raises(
        ValueError, match=r"'tiny'; train one with `tss-bench train eagle` or .*dra"
    ):
        resolve_eagle("auto", INFO)


def test_a_directory_is_taken_as_it_is(tmp_path):
    assert resolve_eagle(str(tmp_path), INFO) == tmp_path


@pytest.mark.parametrize("draft", ["", "nothing", "./nowhere", "a/b/c"])
def test_missing_draft(draft):
    with pytest.raises(ValueError, match="is no directory of an EAGLE head"):
        resolve_eagle(draft, INFO)


def test_which_head_files_are_fetched_from_the_hub():
    names = ["README.md", "config.json", "model.safetensors", "pytorch_model.bin"]
    assert eagle._head_files(names) == ["config.json", "model.safetensors"]
    assert eagle._head_files(names[:2] + names[3:]) == ["config.json", "pytorch_model.bin"]
    assert eagle._head_files([*names[:3], "tokenizer.json"])[-1] == "tokenizer.json"


def test_the_hub_s_revision_is_asked_for(monkeypatch, tmp_path):
    asked = []

    def directory(name, revision, select):
        asked.append((name, revision))
        return tmp_path, "commit"

    monkeypatch.setattr(eagle, "hub_directory", directory)
    assert resolve_eagle("owner/head", INFO, "v2") == tmp_path
    assert asked == [("owner/head", "v2")]


@pytest.mark.parametrize("draft", ["auto", "."])
def test_a_revision_of_what_is_not_on_the_hub(draft):
    with pytest.raises(ValueError, match=r"draft_revision='v2' does not apply to draft="):
        resolve_eagle(draft, INFO, "v2")
