"""The contract of searches that end before the text begins."""

import functools
import inspect
import types
from dataclasses import replace

import jax

import decoding
from decoding.catalogue import Spec
from decoding.conformance import kit
from decoding.conformance.require import require
from decoding.loops import engines
from decoding.method import Method
from models import transformer

NEW = 16  # tokens of a text
# A prompt of several windows, and one that has ended while others are read.
PROMPTS = (*kit.PROMPTS, [2, 5, 1] * 14)


@functools.cache
def lm():
    """Make a small transformer: the toy model's cache has no keys."""
    config = transformer.Config(
        vocab_size=kit.VOCAB,
        d_model=16,
        n_layers=2,
        n_heads=2,
        n_kv_heads=1,
        head_dim=8,
        d_ff=16,
        max_positions=512,
        ropes=(transformer.rope(8, 100.0),),
    )
    model = transformer.transformer(config)
    params = jax.tree.map(lambda x: 2 * x, model.init(jax.random.key(0)))
    return types.SimpleNamespace(
        model=model, params=params, tokenizer=None, config=config
    )


def found(method: Method, prompts=PROMPTS, **fields):
    """Decode behind the prompts."""
    fields = {"max_new_tokens": NEW, "width": "paper", **fields}
    return decoding.generate(lm(), prompts, method, **fields)


def of(spec: Spec) -> Method:
    """Make the method of a search, with its card's examples."""
    return Method(search=kit.spec(spec.name, **spec.arguments))


def check(spec: Spec) -> None:
    """Check a search against every contract of this file.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    params_stay(spec)
    a_prompt_is_as_alone(spec)
    drafts_keep_the_text(spec)
    numbers_share_a_program(spec)


def params_stay(spec: Spec) -> None:
    """Require the same params after a call, and the guarantee of the card."""
    before = kit.copy(lm().params)
    out = found(of(spec))
    require(kit.same(before, lm().params), spec, "the target's params change")
    require(out.guarantee == spec.card.guarantee, spec, "another guarantee")


def a_prompt_is_as_alone(spec: Spec) -> None:
    """Require of the second and the longest prompt the texts of calls of each alone."""
    together = found(of(spec))
    for i in (1, len(PROMPTS) - 1):
        alone = found(of(spec), PROMPTS[i : i + 1])
        same = alone.tokens[0] == together.tokens[i]
        require(same, spec, f"prompt {i} alone has another text")


def drafts_keep_the_text(spec: Spec) -> None:
    """Require plain decoding's text behind the same cache, under any drafter."""
    tree = kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE)
    for heat in (0.0, 0.8):
        plain = found(of(spec), temperature=heat).tokens
        drafted = found(replace(of(spec), drafter=tree), temperature=heat).tokens
        require(plain == drafted, spec, f"drafts change the text at T = {heat}")


def numbers_share_a_program(spec: Spec) -> None:
    """Require that another value of a number in `CARD.data` keeps the program."""
    part = kit.spec(spec.name, **spec.arguments)
    known = inspect.signature(part.factory).parameters
    values = {n: part.arguments.get(n, known[n].default) for n in part.card.data}
    numbers = {n: v * 0.5 for n, v in values.items() if type(v) is float}
    found(of(spec))
    before = len(engines._ENGINES)
    found(Method(search=Spec(part.name, **{**part.arguments, **numbers})))
    require(len(engines._ENGINES) == before, spec, "a number makes another program")
