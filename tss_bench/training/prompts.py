"""A recipe of diverse prompts from the templates and word lists in assets/prompts.

Every prompt is composed here: no row of an evaluation set is read, except to refuse a prompt
that shares thirteen words in a row with one. The recipe depends on the seed and the count only.

May import: the standard library only.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

OVERLAP_WORDS = 13
LETTERS = "ABCD"

SHARES: Mapping[str, int] = {
    "translation": 18,
    "summarization": 10,
    "articles": 5,
    "questions": 17,
    "contexts": 10,
    "passages": 5,
    "choices": 7,
    "sums": 14,
    "code": 5,
    "chat": 9,
}
"""Parts of the recipe in percent. `articles` and `passages` are long: several texts in one."""

_SLOT = re.compile(r"\{(?:(\w+):)?(\d+)-(\d+)\}|\{([A-Za-z]\w*)\}")
_BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=[aeio](?!ne\b|u)|u(?!n|s|r))")
# First words of a sentence that may follow "However, " in lower case: they are no names.
_JOINABLE = ("The ", "It ", "They ", "Some ", "Most ", "About ", "Around ", "Part ", "Two ")
_TRIES = 60


@dataclass(frozen=True)
class Prompt:
    """One user message and the part of the recipe that it comes from."""

    kind: str
    text: str


def make_prompts(
    count: int,
    seed: int = 0,
    *,
    kinds: Sequence[str] = tuple(SHARES),
    excluded: Iterable[str] = (),
) -> list[Prompt]:
    """`count` different prompts, shuffled over the kinds; equal arguments give an equal list.

    `kinds` are keys of SHARES, which sets their proportions. `excluded` are texts of evaluation
    rows: no prompt is one of them or shares `OVERLAP_WORDS` words in a row with one. Raises
    ValueError for an unknown kind and when the templates cannot give that many different prompts.
    """
    if count < 1:
        raise ValueError(f"the number of prompts must be at least 1, got {count}")
    check_kinds(kinds)
    rng = random.Random(f"tss_bench prompts {seed}")
    taken = Overlap(excluded)
    seen: set[str] = set()
    prompts = [
        _new_prompt(kind, rng, seen, taken, count)
        for kind, share in allot(count, kinds).items()
        for _ in range(share)
    ]
    rng.shuffle(prompts)
    return prompts


def check_kinds(kinds: Sequence[str]) -> None:
    """Raises ValueError unless `kinds` are different keys of SHARES, at least one."""
    unknown = [kind for kind in kinds if kind not in SHARES]
    if unknown or not kinds or len(set(kinds)) < len(kinds):
        problem = f"unknown kind of prompt {unknown[0]!r}" if unknown else "kinds must differ"
        raise ValueError(f"{problem}; name one or more of {', '.join(SHARES)}")


def allot(count: int, kinds: Sequence[str] = tuple(SHARES)) -> dict[str, int]:
    """How many of `count` prompts each kind gets; the largest remainders are rounded up."""
    shares = {kind: SHARES[kind] for kind in SHARES if kind in kinds}
    exact = {kind: count * share / sum(shares.values()) for kind, share in shares.items()}
    parts = {kind: int(value) for kind, value in exact.items()}
    by_remainder = sorted(exact, key=lambda kind: parts[kind] - exact[kind])
    for kind in by_remainder[: count - sum(parts.values())]:
        parts[kind] += 1
    return parts


class Overlap:
    """Which texts are too close to rows that must stay unseen."""

    def __init__(self, texts: Iterable[str], words: int = OVERLAP_WORDS) -> None:
        self._words = words
        self._runs: set[tuple[str, ...]] = set()
        self._whole: set[tuple[str, ...]] = set()
        for text in texts:
            folded = fold(text)
            self._whole.add(folded)
            self._runs.update(_runs(folded, words))

    def __contains__(self, text: object) -> bool:
        folded = fold(str(text))
        if folded in self._whole:
            return True
        return not self._runs.isdisjoint(_runs(folded, self._words))


def fold(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, letters and digits only."""
    return tuple(re.findall(r"\w+", text.lower()))


def _runs(words: Sequence[str], size: int) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


def _new_prompt(
    kind: str, rng: random.Random, seen: set[str], taken: Overlap, count: int
) -> Prompt:
    for _ in range(_TRIES):
        text = _MAKERS[kind](rng)
        if text not in seen and text not in taken:
            seen.add(text)
            return Prompt(kind, text)
    raise ValueError(
        f"the templates of {kind!r} give no more new prompts for a recipe of {count}; "
        f"ask for fewer prompts or extend assets/prompts"
    )


def fill(template: str, rng: random.Random, lists: Mapping[str, Any], bound: dict[str, str]) -> str:
    """`template` with its slots filled; a slot's value stays the same for all uses of `bound`.

    `{city}` and `{city2}` are two different picks of the list `city`; `{3-9}` is a fresh
    number, `{a:3-9}` one with a name. Raises ValueError for a slot without a list.
    """

    def value(match: re.Match[str]) -> str:
        name, low, high, word = match.groups()
        if word is None:
            number = str(rng.randint(int(low), int(high)))
            return bound.setdefault(name, number) if name else number
        if word not in bound:
            bound[word] = _pick(word, rng, lists, bound)
        return bound[word]

    return _BEFORE_VOWEL.sub(r"\1n ", _SLOT.sub(value, template))


def _pick(word: str, rng: random.Random, lists: Mapping[str, Any], bound: Mapping[str, str]) -> str:
    base = word.rstrip("0123456789")
    if base not in lists:
        raise ValueError(f"no word list {base!r} for the slot {{{word}}}")
    used = {value for key, value in bound.items() if key.rstrip("0123456789") == base}
    return rng.choice([choice for choice in lists[base] if choice not in used])


@cache
def _lists(name: str) -> Any:
    """The packaged lists and templates of one kind."""
    path = files("tss_bench") / "assets" / "prompts" / f"{name}.json"
    return json.loads(path.read_text("utf-8"))


def _translation(rng: random.Random) -> str:
    parts = _lists("german")
    sentence = german_sentence(rng)
    if rng.random() < 0.25:
        sentence += " " + rng.choice(parts["second"]).replace("{n}", str(rng.randint(3, 95)))
    return str(rng.choice(parts["instruction"]).replace("{s}", sentence))


def german_sentence(rng: random.Random) -> str:
    """One German sentence: a short phrase, or a clause with the verb in second place."""
    parts = _lists("german")
    if rng.random() < 0.12:
        phrase = rng.choice(parts["fragment"])
        return str(phrase.replace("{w}", rng.choice(parts["fragment_noun"])))
    plural = rng.random() < 0.25
    theme = parts["plural"] if plural else rng.choice(parts["themes"])
    subject = rng.choice(theme["subject"])
    verb, rest, participle = rng.choice(theme["predicate"])
    time, place = rng.choice(parts["time"]), rng.choice(parts["place"])
    order = rng.random()
    if participle and order < 0.4:
        helper = "haben" if plural else "hat"
        words = [subject, helper, time, place, rest, participle]
    elif order < 0.7 and " " not in verb:
        words = [time[0].upper() + time[1:], verb, subject[0].lower() + subject[1:], place, rest]
    else:
        middle = [time, place] if " " not in verb else []
        words = [subject, *verb.split(), *middle, rest]
    sentence = " ".join(word for word in words if word)
    if rng.random() < 0.45:
        sentence += ", " + rng.choice(parts["clause"])
    return sentence + "."


def _article(rng: random.Random, words: int) -> str:
    bank = _lists("articles")
    lists = {**_lists("words"), "river": bank["river"]}
    sentences = list(bank["themes"][rng.choice(sorted(bank["themes"]))]["sentences"])
    body = sentences[1:]
    first_half = body[: len(body) // 2]
    second_half = body[len(body) // 2 :]
    rng.shuffle(first_half)
    rng.shuffle(second_half)
    bound: dict[str, str] = {}
    text = [fill(sentences[0], rng, lists, bound)]
    for sentence in [*first_half, *second_half]:
        if sum(len(part.split()) for part in text) >= words:
            break
        text.append(fill(sentence, rng, lists, bound))
        if text[-1].startswith(_JOINABLE) and rng.random() < 0.3:
            text[-1] = rng.choice(bank["join"]) + text[-1][0].lower() + text[-1][1:]
    return " ".join(text)


def _summarization(rng: random.Random) -> str:
    text = _article(rng, rng.choice((80, 90, 100, 110, 120, 140, 170)))
    if rng.random() < 0.12:
        text += " In other news: " + _article(rng, 140)
    return str(rng.choice(_lists("articles")["instruction"]).replace("{t}", text))


def _articles(rng: random.Random) -> str:
    """A summary of one long text: articles on different themes, a paragraph or more each."""
    parts = [_article(rng, rng.choice((140, 180, 240))) for _ in range(rng.randint(2, 4))]
    if rng.random() < 0.5:
        instruction = str(rng.choice(_lists("articles")["instruction"]))
    else:
        instruction = "Summarize: {t}"
    return instruction.replace("{t}", rng.choice((" ", "\n\n")).join(parts))


def _passages(rng: random.Random) -> str:
    """A question on one of several passages: profiles with news articles among them."""
    bank = _lists("contexts")
    lists = {**_lists("words"), **bank["words"]}
    texts, questions = [], []
    for profile in rng.sample(bank["profiles"], rng.randint(2, 4)):
        bound: dict[str, str] = {}
        facts = [profile["facts"][0], *rng.sample(profile["facts"][1:], rng.randint(6, 9))]
        texts.append(" ".join(fill(fact, rng, lists, bound) for fact in facts))
        questions.append(fill(rng.choice(profile["questions"]), rng, lists, bound))
    texts += [_article(rng, rng.choice((110, 170))) for _ in range(rng.randint(0, 2))]
    rng.shuffle(texts)
    instruction = str(rng.choice(bank["instruction"]))
    return instruction.replace("{c}", "\n".join(texts)).replace("{q}", rng.choice(questions))


def _contexts(rng: random.Random) -> str:
    bank = _lists("contexts")
    lists = {**_lists("words"), **bank["words"]}
    profile = rng.choice(bank["profiles"])
    bound: dict[str, str] = {}
    order = [profile["facts"][0], *rng.sample(profile["facts"][1:], rng.randint(5, 9))]
    text = " ".join(fill(fact, rng, lists, bound) for fact in order)
    question = fill(rng.choice(profile["questions"]), rng, lists, bound)
    if rng.random() < 0.3:
        other = rng.choice(bank["profiles"])
        text += "\n" + " ".join(
            fill(fact, rng, lists, dict[str, str]()) for fact in other["facts"][:3]
        )
    return str(rng.choice(bank["instruction"]).replace("{c}", text).replace("{q}", question))


def _questions(rng: random.Random) -> str:
    bank = _lists("questions")
    question = fill(rng.choice(bank["templates"]), rng, _lists("words"), {})
    return str(rng.choice(bank["instruction"]).replace("{q}", question))


def _choices(rng: random.Random) -> str:
    bank = _lists("choices")
    if rng.random() < 0.25:
        question, options = _arithmetic_choice(rng, bank["arithmetic"])
    else:
        question, options = _category_choice(rng, bank)
    rng.shuffle(options)
    lines = "\n".join(
        f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=True)
    )
    return str(rng.choice(bank["instruction"]).replace("{q}", question).replace("{o}", lines))


def _category_choice(rng: random.Random, bank: Mapping[str, Any]) -> tuple[str, list[str]]:
    categories = bank["categories"]
    category = rng.choice(sorted(categories))
    right = rng.choice(categories[category])
    others = [
        word
        for name in rng.sample(sorted(set(categories) - {category}), 9)
        for word in categories[name]
        if word not in categories[category]
    ]
    wrong = rng.sample(sorted(set(others)), 3)
    return rng.choice(bank["question"]).replace("{c}", category), [right, *wrong]


def _arithmetic_choice(rng: random.Random, templates: Sequence[str]) -> tuple[str, list[str]]:
    a, b = rng.randint(11, 60), rng.randint(2, 10)
    template = rng.choice(templates)
    result = a + b if "plus" in template else a * b if "times" in template else a - b
    options = [result, *(result + d for d in rng.sample([-10, -3, -2, -1, 1, 2, 3, 10], 3))]
    return template.replace("{a}", str(a)).replace("{b}", str(b)), [str(o) for o in options]


def _templated(name: str, slot: str) -> Callable[[random.Random], str]:
    def make(rng: random.Random) -> str:
        bank = _lists(name)
        text = fill(rng.choice(bank["templates"]), rng, _lists("words"), {})
        return str(rng.choice(bank["instruction"]).replace(slot, text))

    return make


def _code(rng: random.Random) -> str:
    bank = _lists("code")
    template = rng.choice(bank["instruction"])
    language, task = rng.choice(bank["language"]), rng.choice(bank["task"])
    return str(template.replace("{language}", language).replace("{task}", task))


def _chat(rng: random.Random) -> str:
    return fill(rng.choice(_lists("chat")["templates"]), rng, _lists("words"), {})


_MAKERS: Mapping[str, Callable[[random.Random], str]] = {
    "translation": _translation,
    "summarization": _summarization,
    "articles": _articles,
    "questions": _questions,
    "contexts": _contexts,
    "passages": _passages,
    "choices": _choices,
    "sums": _templated("sums", "{s}"),
    "code": _code,
    "chat": _chat,
}
