"""The contract of searches: whole texts, best first, of each prompt as of it alone."""

import inspect
from dataclasses import replace

from decoding.catalogue import Part, Spec
from decoding.conformance import kit, prefills, procedures
from decoding.conformance.require import require
from decoding.hypotheses.nodes import ALL, Select
from decoding.hypotheses.rank import Rank
from decoding.loops import engines
from decoding.method import Method

LIKELY, VALUE = Spec("rewards/likelihood"), Spec("rewards/value_head")
LOOKUP = kit.spec("drafters/prompt_lookup")
RECYCLED = kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE)
NEW, ENDING = 24, 0.0  # tokens of a text; texts of the toy end after some of them


def check(spec: Spec) -> None:
    """Check a search against the contracts of this file, but for that of drafts.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    if spec.card.kind == "prefill":
        prefills.check(spec)
        return
    if spec.card.kind == "procedure":
        procedures.check(spec)
        return
    texts_end_once_and_come_best_first(spec)
    a_prompt_is_as_alone(spec)
    numbers_share_a_program(spec)


def built(spec: Part) -> Select | Rank:
    """Build a search for the toy model."""
    return spec.build({**kit.PARTS, "model": kit.TARGET.model, "ends": 1})


def of(spec: Spec) -> Method:
    """Make the method of a search: its card's examples, and a reward if need be."""
    part = kit.spec(spec.name, **spec.arguments)
    found = built(part)
    rewards = (LIKELY,) if found.rewarded else ()
    if isinstance(found, Select) and found.valued:
        rewards = (VALUE,)
    return Method(search=part, rewards=rewards)


def is_rank(method: Method) -> bool:
    """Return whether a search is over rows."""
    return method.search is not None and method.search.card.kind == "rank"


def kept(method: Method) -> int:
    """Return how many texts a search keeps."""
    assert method.search is not None
    search = built(method.search)
    return search.pool if isinstance(search, Select) else search.samples


def heat(method: Method) -> float:
    """Return a temperature: 0 where the search draws nothing."""
    assert method.search is not None
    return 0.8 if built(method.search).samples else 0.0


def found(method: Method, n: int, prompts=kit.PROMPTS):
    """Search with the toy model: draws at 0.8, where the search draws."""
    lm = kit.model(0, ENDING)
    fields = {"lm": lm, "n": n, "max_new_tokens": NEW, "prompts": prompts}
    return kit.generate(method, heat(method), **fields)


def of_prompt(values: list, n: int) -> list:
    """Return the lists of `n` values of every prompt."""
    return [[value] for value in values] if n == 1 else values


def texts_end_once_and_come_best_first(spec: Spec) -> None:
    """Require whole texts: an end is their last token, or the limit is reached.

    A ranking may retire a text that has lost. Scores do not rise.
    """
    method = of(spec)
    n = kept(method)
    out = found(method, n)
    for texts, scores in zip(of_prompt(out.tokens, n), of_prompt(out.scores, n)):
        for text in texts:
            require(0 < len(text) <= NEW, spec, f"a text has {len(text)} tokens")
            require(kit.EOS not in text[:-1], spec, "a text goes on after its end")
            whole = text[-1] == kit.EOS or len(text) == NEW
            require(whole or is_rank(method), spec, "a text stops before its end")
        order = list(scores) == sorted(scores, reverse=True)
        require(order, spec, f"texts are not best first: their scores are {scores}")
    require(out.guarantee == spec.card.guarantee, spec, "another guarantee")


def a_prompt_is_as_alone(spec: Spec) -> None:
    """Require of the first prompts the texts and scores of calls of one prompt each."""
    method = of(spec)
    n = kept(method)
    together = found(method, n)
    for i in (0, 1) if not heat(method) else (0,):  # other prompts: other noise
        alone = found(method, n, kit.PROMPTS[i : i + 1])
        same = (alone.tokens, alone.scores) == (
            together.tokens[i : i + 1],
            together.scores[i : i + 1],
        )
        require(same, spec, f"prompt {i} alone has other texts or scores")


def drafts_keep_the_texts(spec: Spec) -> None:
    """Require the texts and scores of the search without drafts, bit for bit.

    Searches whose lanes may run any node take no drafts.
    """
    if spec.card.kind:
        return
    method = of(spec)
    select = method.search and built(method.search)
    assert isinstance(select, Select)
    if select.holds == ALL or select.mixes:
        return
    plain = found(method, select.pool)
    for drafter in (LOOKUP, RECYCLED):
        out = found(replace(method, drafter=drafter), select.pool)
        same = (out.tokens, out.scores) == (plain.tokens, plain.scores)
        require(same, spec, f"other texts or scores with drafts of {drafter}")


def numbers_share_a_program(spec: Spec) -> None:
    """Require that another value of a number in `CARD.data` keeps the program."""
    part = kit.spec(spec.name, **spec.arguments)
    known = inspect.signature(part.factory).parameters
    values = {n: part.arguments.get(n, known[n].default) for n in part.card.data}
    numbers = {n: v * 0.5 for n, v in values.items() if type(v) is float}
    n = kept(of(spec))
    found(of(spec), n)
    before = len(engines._ENGINES)
    scaled = Spec(part.name, **{**part.arguments, **numbers})
    found(replace(of(spec), search=scaled), n)
    require(len(engines._ENGINES) == before, spec, "a number makes another program")
