"""Masses along texts, against the toy model's table."""

import numpy as np
import pytest

from decoding import Method, Spec, compose
from decoding.conformance import kit
from decoding.serving import path_masses
from models.errors import MethodError
from models.synthetic import toy

LM = kit.model(0, ending=0.0)
PATTERN = "[a-g]?[ab]([a-e]g?){1,2}"
REGEX = Spec("constraints/regex", pattern=PATTERN)
PROMPTS = [[1, 2], [3, 1, 4, 1, 5], [1, 2]]
TEXTS = [[0, 1, 7], [6, 0, 3, 0, 6, 7], [0, 1]]  # the last one is cut
FOLLOWING = {  # tokens that may follow prefixes of the texts
    (): [0, 1, 2, 3, 4, 5, 6],
    (0,): [0, 1, 2, 3, 4],
    (0, 1): [0, 1, 2, 3, 4, 6, 7],
    (6,): [0, 1],
    (6, 0): [0, 1, 2, 3, 4],
    (6, 0, 3): [0, 1, 2, 3, 4, 6, 7],
    (6, 0, 3, 0): [6, 7],
    (6, 0, 3, 0, 6): [7],
}
HEAT, K = 0.7, 6


def measured(transforms=(REGEX,), prompts=PROMPTS, texts=TEXTS, heat=HEAT):
    parts = compose.compose(Method(transforms=transforms), LM, heat)
    return path_masses.measured(LM, parts, prompts, texts)


def by_hand(prompt, text, heat: float, k: int = kit.VOCAB):
    """Log p and log Z of each token; of the `k` best tokens alone."""
    logprobs, masses = [], []
    for i, token in enumerate(text):
        logits = np.float64(toy.logits(LM.params, [*prompt, *text[:i]])) / heat
        logits[np.argsort(logits)[:-k]] = -np.inf
        logp = logits - np.log(np.exp(logits).sum())
        logprobs.append(logp[token])
        masses.append(np.log(np.exp(logp[FOLLOWING[tuple(text[:i])]]).sum()))
    return logprobs, masses


def agrees(found, wanted) -> bool:
    return all(
        np.allclose(a, b, atol=1e-4)
        for pair, others in zip(found, wanted, strict=True)
        for a, b in zip(pair, others, strict=True)
    )


def test_figures_are_those_of_the_law():
    """At a temperature, in rows of other lengths. Planted: temperature 1."""
    found = measured()
    assert agrees(found, [by_hand(*x, HEAT) for x in zip(PROMPTS, TEXTS)])
    assert not agrees(found, [by_hand(*x, 1.0) for x in zip(PROMPTS, TEXTS)])


def test_a_truncation_before_the_constraint_shapes_the_law():
    """Planted: the whole law. Texts whose tokens are among the best alone."""
    transforms = (
        Spec("transforms/top_k", k=K),
        Spec("constraints/asap", constraint=REGEX),
    )
    found = measured(transforms)
    wanted = [by_hand(*x, HEAT, K) for x in zip(PROMPTS, TEXTS)]
    assert agrees([x.masses for x in found], [x[1] for x in wanted])
    whole = [by_hand(*x, HEAT)[1] for x in zip(PROMPTS, TEXTS)]
    assert not agrees([x.masses for x in found], whole)


def test_long_prompts_are_read_in_chunks():
    """Planted: the figures behind another prompt."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 7, size).tolist() for size in (150, 63, 64)]
    found = measured(prompts=prompts)
    assert agrees(found, [by_hand(*x, HEAT) for x in zip(prompts, TEXTS)])
    assert not agrees(found, [by_hand(*x, HEAT) for x in zip(PROMPTS, TEXTS)])


def test_refuses_a_transform_that_forbids_nothing():
    with pytest.raises(MethodError, match="the transform forbids nothing"):
        measured((Spec("transforms/top_k", k=2),))
