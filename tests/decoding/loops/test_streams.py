"""Streams through the loop: the same block, the same committed path, their own prompts.

The transforms are held against a simulation by table look-up, in which every model has
its own prompt and all have the text in common.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, base
from decoding.conformance import kit
from models.errors import PromptError
from models.synthetic import toy

AMATEUR, EXPERT = kit.model(2), kit.model(3)
MODELS = {"amateur": AMATEUR, "expert": EXPERT}
OWN = ([3, 3, 3, 1], [2], [6, 5], [4, 4, 1, 2, 0, 1, 5])  # ragged, unlike the target's
ALPHA, BETA, WEIGHT = 0.2, 1.5, 0.7
TREE = kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE)


def method(name: str, drafter=None) -> Method:
    transform = {
        "contrastive": kit.spec("transforms/contrastive", alpha=ALPHA, beta=BETA),
        "proxy": kit.spec("transforms/proxy", alpha=WEIGHT),
    }[name]
    return Method(drafter or kit.spec("drafters/plain"), transforms=(transform,))


def streams(names, prompts=None) -> dict[str, base.Stream]:
    return {n: base.Stream(AMATEUR.model, n, prompts) for n in names}


def generate(chosen: Method, prompts=None, temperature=0.0, **fields):
    names = [s for t in chosen.transforms for s in t.build({}).streams]
    return decoding.generate(
        kit.TARGET,
        kit.PROMPTS,
        chosen,
        max_new_tokens=kit.NEW,
        temperature=temperature,
        drafts={name: MODELS[name] for name in names},
        streams=streams(names, prompts),
        **fields,
    )


def combined(name: str, target, amateur, expert) -> np.ndarray:
    if name == "proxy":
        return target + np.float32(WEIGHT) * (expert - amateur)
    mixed = amateur + np.float32(BETA) * (target - amateur)
    return np.where(target >= target.max() + np.log(ALPHA), mixed, -np.inf)


def by_hand(name: str, prompt: list[int], own: list[int]) -> list[int]:
    said: list[int] = []
    for _ in range(kit.NEW):
        target = toy.logits(kit.TARGET.params, prompt + said)
        others = [toy.logits(m.params, own + said) for m in (AMATEUR, EXPERT)]
        said.append(int(combined(name, target, *others).argmax()))
    return said


@pytest.mark.parametrize("name", ["contrastive", "proxy"])
def test_text_is_the_simulation_s(name):
    """Plainly and through a tree, whose path the streams' caches must follow."""
    for prompts in (kit.PROMPTS, OWN):
        expected = [by_hand(name, p, o) for p, o in zip(kit.PROMPTS, prompts)]
        own = None if prompts is kit.PROMPTS else prompts
        assert generate(method(name), own).tokens == expected
        assert generate(method(name, TREE), own).tokens == expected


def test_coupled_text_through_a_tree():
    plain = generate(method("proxy"), OWN, 0.8)
    assert generate(method("proxy", TREE), OWN, 0.8).tokens == plain.tokens


def test_every_sample_has_its_stream():
    """With n = 2 a stream's prompts are repeated as the target's are."""
    out = generate(method("contrastive"), OWN, n=2)
    for i, pair in enumerate(out.tokens):
        assert pair == [by_hand("contrastive", kit.PROMPTS[i], OWN[i])] * 2


def test_fault_a_stream_that_runs_another_block():
    """Planted: in the stream every draft stands in its neighbour's place."""
    run = kit.Run(method("contrastive", TREE))
    stream = run.parts.program.streams["amateur"]
    nodes = run.parts.program.drafter.nodes

    def embed(params, tokens, positions):
        if tokens.shape[1] == nodes:
            tokens = tokens.at[:, 1:].set(jnp.roll(tokens[:, 1:], 1, 1))
        return stream.model.embed(params, tokens, positions)

    expected = run.texts()
    faulty = stream._replace(model=stream.model._replace(embed=embed))
    assert run.alter(streams={"amateur": faulty}).texts() != expected


def test_prompts_of_a_stream_are_checked():
    with pytest.raises(PromptError, match="stream 'amateur' has 1 prompts"):
        generate(method("contrastive"), ([1],))
