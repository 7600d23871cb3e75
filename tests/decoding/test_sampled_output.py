"""At temperature 1 every drafter leaves the sparse target's distribution as it is.

A long answer is sampled with the drafter. Hugging Face's own pass over it then gives, at every
place, the distribution that plain sampling has there; the id that came is turned into a number
that is uniform on [0, 1) and independent of all before it, if it was drawn from that distribution
(Rosenblatt's transform). The ids that were drafted at a place come first in its order, so that
drafts accepted too often or too seldom pile the numbers up at one end. Chi-square does the rest.

Nothing here knows how a drafter works: a new one is one line of `DRAFTERS`.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests import eagle3, tiny
from tss_bench.decoding.drafters.base import Drafter, Step
from tss_bench.decoding.drafters.draft_model import DraftModel
from tss_bench.decoding.drafters.eagle import DynamicTree, Eagle
from tss_bench.decoding.drafters.eagle3_head import Eagle3Config, Eagle3Head
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.decoding.drafters.layerskip import LayerSkip
from tss_bench.decoding.drafters.none import NoDraft
from tss_bench.decoding.drafters.prompt_lookup import PromptLookup
from tss_bench.decoding.drafters.suffix_automaton import MatchRules, SamDecoding
from tss_bench.decoding.drafters.token_recycling import TokenRecycling
from tss_bench.decoding.drafters.tree_template import TreeTemplate
from tss_bench.decoding.generate import DecodingOptions, generate
from tss_bench.decoding.target import Target
from tss_bench.decoding.tree import DraftTree
from tss_bench.decoding.verify import Acceptance, Sampling, verify
from tss_bench.types import GenerationStats, SkipSet

VOCAB, LAYERS, ANSWER, BINS = 6, 2, 500, 10
PROMPT = [1, 2, 3, 4, 5, 0, 1, 2]
SKIP = SkipSet.of([0], LAYERS)
SHAPE = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
WIDE = TreeTemplate.from_dict({"paths": [[0], [1], [0, 0], [0, 1], [1, 0]]}, "wide")

DRAFTERS: dict[str, Callable[[Target], Drafter]] = {
    "none": lambda target: NoDraft(),
    # Siblings, an id twice, and all ids there are.
    "adversary": lambda target: tiny.Adversary(
        [([4, 4, 1], [0, 0, 1]), ([*range(VOCAB), 2], [0] * VOCAB + [2])]
    ),
    "token recycling": lambda target: TokenRecycling(VOCAB, WIDE),
    "eagle, dynamic tree": lambda target: Eagle(head(), target, DynamicTree(7, 2, 3)),
    "eagle, static tree": lambda target: Eagle(head(), target, WIDE),
    "eagle-3": lambda target: Eagle(head3(), target, DynamicTree(7, 2, 3)),
    "prompt lookup": lambda target: PromptLookup(num_pred_tokens=4),
    "sam": lambda target: SamDecoding(TokenRecycling(VOCAB, WIDE), MatchRules(4, 2)),
    "layerskip": lambda target: LayerSkip(1, 3),
    "draft model": lambda target: DraftModel(Target(sparse_model()), VOCAB, 2),
}


@lru_cache
def model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        **SHAPE,
        vocab_size=VOCAB,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        max_position_embeddings=len(PROMPT) + ANSWER,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


def sparse_model() -> LlamaForCausalLM:
    """`model` without the skipped blocks."""
    sparse = copy.deepcopy(model())
    sparse.model.layers = torch.nn.ModuleList(sparse.model.layers[layer] for layer in SKIP.active)
    sparse.config.num_hidden_layers = len(SKIP.active)
    return sparse


def head() -> EagleHead:
    torch.manual_seed(4)
    return EagleHead(EagleConfig(16, 32, 2, 1, 8, vocab_size=VOCAB)).eval()


def head3() -> Eagle3Head:
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 1, LAYERS], "intermediate_size": 32}
    config = eagle3.official_config(VOCAB, VOCAB, **SHAPE, **layers)
    torch.manual_seed(4)
    return Eagle3Head(Eagle3Config.from_dict({**config, "draft_vocab_size": None})).eval()


def watch(drafter: Drafter) -> list[list[int]]:
    """A list that fills with what is drafted at each place of the answer from the second on."""
    drafted: list[list[int]] = []
    learn = drafter.observe

    def observe(step: Step) -> None:
        tokens, children = step.tree.tokens, step.tree.children
        drafted.extend([tokens[child] for child in children[node]] for node in step.acceptance.path)
        learn(step)

    drafter.observe = observe  # type: ignore[method-assign]
    return drafted


def sample(drafter: Drafter) -> tuple[list[int], list[list[int]], GenerationStats]:
    """A sampled answer, what was drafted at the places behind its first id, and its counts."""
    drafted = watch(drafter)
    options = DecodingOptions(ANSWER, frozenset(), temperature=1.0, seed=5, scope="all")
    made = generate(Target(model()), drafter, PROMPT, SKIP, options, tiny.tokenizer())
    return list(made.ids), drafted, made.stats


def distributions(ids: list[int]) -> Tensor:
    """Plain sampling's chances at each place of an answer, [n, V]."""
    with torch.no_grad():
        logits = sparse_model()(torch.tensor([PROMPT + ids]), use_cache=False).logits[0]
    return logits[len(PROMPT) - 1 : -1].double().softmax(dim=-1)


def uniform_numbers(ids: list[int], drafted: list[list[int]]) -> list[float]:
    """One number for each of the places that `drafted` tells of."""
    chance = distributions(ids).tolist()
    draw = random.Random(6).random
    numbers = []
    for place, drafts in enumerate(drafted, start=1):
        order = [*dict.fromkeys(drafts), *(id for id in range(VOCAB) if id not in drafts)]
        before = sum(chance[place][id] for id in order[: order.index(ids[place])])
        within = draw() * chance[place][ids[place]]
        numbers.append(min(before + within, 1 - 1e-9))
    return numbers


def p_value(drafter: Drafter) -> tuple[float, GenerationStats]:
    ids, drafted, stats = sample(drafter)
    assert len(ids) == ANSWER
    counts = Counter(int(number * BINS) for number in uniform_numbers(ids, drafted))
    return float(chisquare([counts[place] for place in range(BINS)]).pvalue), stats


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_sampled_answer_has_the_targets_distribution(name: str) -> None:
    value, stats = p_value(DRAFTERS[name](Target(model())))
    assert value > 1e-3
    if name != "none":
        # Both outcomes happened often enough to be seen.
        assert stats.accepted > 30
        assert stats.drafted - stats.accepted > 30


def too_easy(tree: DraftTree, logits: Tensor, sampling: Sampling) -> Acceptance:
    """Accepts drafts of a flatter distribution."""
    return verify(tree, logits * 0.7, sampling) if len(tree) > 1 else verify(tree, logits, sampling)


def greedy_drafts(tree: DraftTree, logits: Tensor, sampling: Sampling) -> Acceptance:
    """Accepts as greedy decoding does, and samples the bonus."""
    path = verify(tree, logits, Sampling()).path
    return Acceptance(path, verify(DraftTree.root(0), logits[list(path[-1:])], sampling).bonus)


def whole_bonus(tree: DraftTree, logits: Tensor, sampling: Sampling) -> Acceptance:
    """Draws the bonus from all ids, also from drafts that were just refused."""
    path = verify(tree, logits, sampling).path
    return Acceptance(path, verify(DraftTree.root(0), logits[list(path[-1:])], sampling).bonus)


@pytest.mark.parametrize("wrong", [too_easy, greedy_drafts, whole_bonus])
def test_wrong_acceptance_is_seen(
    wrong: Callable[..., Acceptance], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tss_bench.decoding.generate.verify", wrong)
    value, _ = p_value(DRAFTERS["draft model"](Target(model())))
    assert value < 1e-4
