"""decoding/search/conditional_beam.py against plain Python, by a head's values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec
from decoding.conformance import kit
from models.base import causal_block
from models.errors import MethodError
from models.synthetic import toy

LM, NEW = kit.model(0, ending=-1.0), 8
HEAD = Spec("rewards/value_head")


def law(tokens: list[int]) -> np.ndarray:
    logits = np.float64(toy.logits(LM.params, tokens))
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


@jax.jit
def states(tokens, size):
    cache = LM.model.init_cache(1, kit.SIZE, jnp.float32)
    block = causal_block(tokens, 0 * size, size, cache.size)
    return LM.model(LM.params, cache, block, ("norm",))[0].hidden["norm"][0]


def good(text: list[int]) -> float:
    """log P(a | text) by the head, at the text's last token."""
    tokens = jnp.asarray([(text + [0] * kit.SIZE)[: kit.SIZE]])
    head = kit.value_head()
    state = states(tokens, jnp.asarray([len(text)]))[len(text) - 1]
    return float(jax.nn.log_sigmoid(state @ head["weight"] + head["bias"]))


def by_hand(prompt, width: int, weight: float) -> list:
    beams, pool = [(0.0, [])], []
    while beams and len(pool) < width:
        every = []
        for total, text in beams:
            logp = law([*prompt, *text])
            every += [(total + logp[t], [*text, t]) for t in range(kit.VOCAB)]
        every.sort(key=lambda x: -x[0])
        ranked = [
            (total + weight * good([*prompt, *text]), total, text)
            for total, text in every[: 2 * width]
        ]
        ranked.sort(key=lambda x: -x[0])
        over = lambda text: text[-1] == kit.EOS or len(text) == NEW
        pool += [(s, text) for s, _, text in ranked[:width] if over(text)]
        pool = sorted(pool, key=lambda x: -x[0])[:width]
        beams = [(total, text) for _, total, text in ranked[:width] if not over(text)]
    return pool


def found(width=2, weight=1.0, **fields):
    method = Method(
        search=Spec("search/conditional_beam", width=width, weight=weight),
        rewards=fields.pop("rewards", (HEAD,)),
    )
    return kit.generate(method, lm=LM, max_new_tokens=NEW, n=max(width, 1), **fields)


@pytest.mark.parametrize("width", [2, 3])
def test_against_plain_python(width):
    """Texts and scores; `weight` is a number of the state."""
    for weight in (2.0, 0.0):
        out = found(width, weight)
        wanted = [by_hand(prompt, width, weight) for prompt in kit.PROMPTS]
        assert out.tokens == [[text for _, text in row] for row in wanted]
        scores = [[score for score, _ in row] for row in wanted]
        np.testing.assert_allclose(out.scores, scores, rtol=1e-4)
    assert found(width, 2.0).tokens != out.tokens  # planted: the values are left out


def test_refuses():
    with pytest.raises(MethodError, match="width=0"):
        found(0)
    with pytest.raises(MethodError, match="weight=-1"):
        found(2, -1.0)
    with pytest.raises(MethodError, match="a value for every node"):
        found(2, rewards=(Spec("rewards/length", target=3),))
