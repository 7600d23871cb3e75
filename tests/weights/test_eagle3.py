"""EAGLE-3 heads on disk: the official names and shapes, strictly, in both formats."""

from __future__ import annotations

import dataclasses
import os
import pickle

import pytest
import torch

from tests import eagle3
from tests.eagle3 import as_speculators, write
from tss_bench.decoding.drafters.eagle3_head import LAYER_IDS, Eagle3Head
from tss_bench.weights.eagle import check_eagle_head, eagle_notes, load_eagle_head
from tss_bench.weights.loading import ModelInfo

V, DRAFTS = 20, 6
CONFIG = eagle3.official_config(V, DRAFTS)
STATE = eagle3.official_state(V, DRAFTS)
TARGET = {"target_hidden_size": eagle3.H, "target_vocab_size": V}
INFO = ModelInfo("tiny-chat", 8, "r", False, "llama", eagle3.H, V, 64)


def no_tokenizer():
    pytest.fail("the target's tokenizer was loaded")


def both(path, **target):
    """Checked and loaded, as an adapter does it."""
    assert check_eagle_head(path, INFO, no_tokenizer) is False
    return load_eagle_head(path, **{**TARGET, **target})


@pytest.mark.parametrize("as_pickle", [False, True])
@pytest.mark.parametrize("speculators", [False, True])
def test_official_files(tmp_path, as_pickle, speculators):
    config, state = as_speculators(CONFIG, STATE) if speculators else (CONFIG, STATE)
    head = both(write(tmp_path / "head", config, state, as_pickle=as_pickle))
    assert isinstance(head, Eagle3Head)
    assert head.embed_tokens is None
    assert not head.training
    loaded = head.state_dict()
    assert loaded.keys() == STATE.keys() - {"t2d"}
    assert all(torch.equal(loaded[name], STATE[name]) for name in loaded)
    assert head.draft_rows.tolist() == STATE["t2d"].nonzero()[:, 0].tolist()


def test_names_tell_the_format_where_the_config_does_not(tmp_path):
    plain = {**CONFIG, "architectures": ["LlamaForCausalLM"]}
    assert isinstance(both(write(tmp_path / "a", plain, STATE)), Eagle3Head)
    renamed = {name.replace("midlayer.", "layers.0."): t for name, t in STATE.items()}
    path = write(tmp_path / "b", plain, renamed, as_pickle=True)
    assert isinstance(both(path), Eagle3Head)


@pytest.mark.parametrize("speculators", [False, True])
def test_missing_and_extra_keys_are_named_as_the_file_has_them(tmp_path, speculators):
    config, state = CONFIG, {**STATE, "fc.bias": torch.ones(eagle3.H)}
    del state["midlayer.hidden_norm.weight"], state["d2t"]
    block = r"midlayer\."
    if speculators:
        (config, state), block = as_speculators(config, state), r"layers\.0\."
    path = write(tmp_path / "head", config, state)
    message = rf"no EAGLE-3 head: missing d2t, {block}hidden_norm\.weight; extra fc\.bias"
    with pytest.raises(ValueError, match=message):
        load_eagle_head(path, **TARGET)
    with pytest.raises(ValueError, match=message):
        check_eagle_head(path, INFO, no_tokenizer)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("fc.weight", (32, 64), r"fc\.weight has shape \[32, 64\], config\.json means \[32, 96\]"),
        (
            "midlayer.self_attn.k_proj.weight",
            (16, 32),
            r"midlayer\.self_attn\.k_proj\.weight has shape \[16, 32\].* means \[16, 64\]",
        ),
        ("lm_head.weight", (V, 32), r"lm_head\.weight has shape \[20, 32\].* means \[6, 32\]"),
        ("t2d", (V + 1,), r"t2d has shape \[21\], config\.json means \[20\]"),
    ],
)
def test_wrong_shapes_show_both(tmp_path, name, shape, message):
    kind = STATE[name].dtype
    path = write(tmp_path / "head", CONFIG, {**STATE, name: torch.ones(shape).to(kind)})
    with pytest.raises(ValueError, match=message):
        check_eagle_head(path, INFO, no_tokenizer)


def test_the_mask_may_be_missing(tmp_path):
    state = {name: tensor for name, tensor in STATE.items() if name != "t2d"}
    assert torch.equal(both(write(tmp_path / "head", CONFIG, state)).d2t, STATE["d2t"])


def test_offsets_and_mask_must_agree(tmp_path):
    mask = torch.ones(V, dtype=torch.bool)
    path = write(tmp_path / "head", CONFIG, {**STATE, "t2d": mask})
    left_out = int((~STATE["t2d"]).nonzero()[0])
    with pytest.raises(ValueError, match=rf"different target ids: 14 .* such as {left_out}$"):
        load_eagle_head(path, **TARGET)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 0, 0, 0, 0, 15], "target ids 0 to 20, allowed are 0 to 19"),
        ([1, 0, 0, 0, 0, 0], "same target id twice"),
    ],
)
def test_bad_draft_ids(tmp_path, offsets, message):
    path = write(tmp_path / "head", CONFIG, {**STATE, "d2t": torch.tensor(offsets)})
    with pytest.raises(ValueError, match=message):
        load_eagle_head(path, **TARGET)


def test_a_vocabulary_of_full_size_needs_no_mapping(tmp_path):
    """The authors' code does not look at the tables then, which were never filled."""
    config, state = eagle3.official_config(V, V), eagle3.official_state(V, V)
    state |= {"d2t": torch.full((V,), 7), "t2d": torch.zeros(V, dtype=torch.bool)}
    assert both(write(tmp_path / "a", config, state)).draft_rows is None
    del state["d2t"], state["t2d"]
    assert both(write(tmp_path / "b", config, state)).draft_rows is None
    del config["draft_vocab_size"]
    assert both(write(tmp_path / "c", config, state)).draft_rows is None


@pytest.mark.parametrize("rows", [V - 2, V + 3])
def test_rows_that_pad_a_vocabulary_are_not_drafted(tmp_path, rows):
    config, state = eagle3.official_config(V, V), eagle3.official_state(V, V)
    del state["d2t"], state["t2d"]
    path = write(tmp_path / "head", config, state)
    head = load_eagle_head(
        path, target_hidden_size=eagle3.H, target_vocab_size=rows, same_tokenizer=True
    )
    known = min(V, rows)
    assert head.draft_rows.tolist() == list(range(known))
    assert torch.equal(head.lm_head.weight, state["lm_head.weight"][:known])


def test_an_embedding_of_its_own(tmp_path):
    state = {**STATE, "embed_tokens.weight": torch.ones(V, eagle3.H)}
    head = both(write(tmp_path / "head", CONFIG, state), target_vocab_size=V + 1)
    assert head.embed_tokens.weight.sum(dim=1).tolist() == [eagle3.H] * V + [0]


def test_a_head_narrower_than_its_target_brings_its_embedding(tmp_path):
    config = {**CONFIG, "target_hidden_size": 40}
    state = {**STATE, "fc.weight": torch.ones(eagle3.H, 3 * 40)}
    info = dataclasses.replace(INFO, hidden_size=40)
    path = write(tmp_path / "a", config, state)
    with pytest.raises(ValueError, match=r"missing embed_tokens\.weight$"):
        check_eagle_head(path, info, no_tokenizer)
    state["embed_tokens.weight"] = torch.ones(V, eagle3.H)
    path = write(tmp_path / "b", config, state)
    assert check_eagle_head(path, info, no_tokenizer) is False
    head = load_eagle_head(path, target_hidden_size=40, target_vocab_size=V)
    assert head.fuse(torch.ones(1, 120)).shape == (1, eagle3.H)
    with pytest.raises(ValueError, match="hidden_size 40, the target has 32"):
        check_eagle_head(path, INFO, no_tokenizer)


def test_a_norm_before_fc_is_a_tensor_more(tmp_path):
    config, state = as_speculators(CONFIG, STATE, norm_before_fc=True)
    with pytest.raises(ValueError, match=r"missing input_norm\.weight"):
        check_eagle_head(write(tmp_path / "a", config, state), INFO, no_tokenizer)
    state["input_norm.weight"] = torch.full((3 * eagle3.H,), 2.0)
    head = both(write(tmp_path / "b", config, state))
    assert torch.equal(head.input_norm.weight, state["input_norm.weight"])


def test_speculators_fields_are_read_from_where_they_are(tmp_path):
    more = {"norm_before_residual": True, LAYER_IDS: [1, 3, 7], "verbose": True}
    config, state = as_speculators({**CONFIG, "rope_theta": 5e5}, STATE, **more)
    shape = both(write(tmp_path / "head", config, state)).config
    assert (shape.norm_before_residual, shape.rope_theta) == (True, 5e5)
    assert shape.draft_vocab_size == DRAFTS
    assert shape.feature_layers(8) == (1, 3, 7)


def test_speculators_files_leave_llama_s_defaults_out(tmp_path):
    """A head for Llama-3.1-8B: 4096 wide with 32 heads, neither of which its file says."""
    config, state = as_speculators(CONFIG, STATE)
    block = config["transformer_layer_config"]
    del block["hidden_size"], block["num_attention_heads"]
    path = write(tmp_path / "head", config, state)
    with pytest.raises(ValueError, match="hidden_size 4096, the target has 32"):
        check_eagle_head(path, INFO, no_tokenizer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speculators_model_type": "mlp"}, "type 'mlp' in the speculators format; .* 'eagle3'"),
        ({"transformer_layer_config": None}, "lacks transformer_layer_config"),
        ({"transformer_layer_config": {"model_type": "qwen3"}}, "model_type 'qwen3'; 'llama' is"),
        ({"transformer_layer_config": {"num_hidden_layers": 2}}, "has num_hidden_layers 2"),
    ],
)
def test_other_speculators(tmp_path, change, message):
    config, state = as_speculators(CONFIG, STATE, **change)
    with pytest.raises(ValueError, match=message):
        check_eagle_head(write(tmp_path / "head", config, state), INFO, no_tokenizer)


def test_what_two_systems_assume_differently_must_be_said(tmp_path):
    config, state = as_speculators(CONFIG, STATE)
    del config["norm_before_residual"]
    with pytest.raises(ValueError, match=r"lacks norm_before_residual.* add it as true or false"):
        check_eagle_head(write(tmp_path / "head", config, state), INFO, no_tokenizer)


@pytest.mark.parametrize("name", ["owner/tiny-chat", "other/Tiny-Chat/", None])
def test_the_verifier_s_name_may_say_that_it_is_the_target(tmp_path, name):
    config, state = as_speculators(CONFIG, STATE)
    config["speculators_config"]["verifier"]["name_or_path"] = name
    assert eagle_notes(write(tmp_path / "head", config, state), INFO) == []


def test_another_verifier_is_a_note(tmp_path):
    path = write(tmp_path / "head", *as_speculators(CONFIG, STATE))
    adapted = dataclasses.replace(INFO, id="tuned", base="tiny-chat")
    assert eagle_notes(path, adapted) == []
    (note,) = eagle_notes(path, dataclasses.replace(INFO, id="other"))
    assert "trained for owner/tiny-chat, the target is other" in note
    assert eagle_notes(write(tmp_path / "own", CONFIG, STATE), INFO) == []


def test_a_target_with_too_few_layers(tmp_path):
    path = write(tmp_path / "head", CONFIG, STATE)
    with pytest.raises(ValueError, match="from L = 7 on; the target has 6 layers"):
        check_eagle_head(path, dataclasses.replace(INFO, num_layers=6), no_tokenizer)


def test_pickle_with_code_is_not_run(tmp_path):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    path = write(tmp_path / "head", CONFIG, {}, as_pickle=True)
    (path / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Harmful()}, protocol=2))
    with pytest.raises(ValueError, match="a pickle can run code"):
        check_eagle_head(path, INFO, no_tokenizer)
    assert not (tmp_path / "harm").exists()


def test_the_check_reads_no_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("tss_bench.weights.eagle_files.load_file", lambda _: pytest.fail("read"))
    check_eagle_head(write(tmp_path / "head", CONFIG, STATE), INFO, no_tokenizer)
