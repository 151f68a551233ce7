"""The KL rule: which drafts pass, and its ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, base, tree
from decoding.conformance import kit
from decoding.verifiers import kl_threshold
from models.errors import MethodError

P = np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
Q = np.array([[0.4, 0.4, 0.2], [0.9, 0.05, 0.05], [0.1, 0.1, 0.8]])
KL = (P * np.log(P / Q)).sum(1)  # 0.025, 1.39, 0


def count(threshold: float, drafts=(1, 0), laws=True) -> tuple[int, int]:
    nodes = tree.chain(
        jnp.array([0]),
        jnp.array([drafts]),
        jnp.array([2]),
        draw=base.IID,
        logits=jnp.log(jnp.asarray(Q, jnp.float32))[None] if laws else None,
        calls=jnp.zeros(1),
    )
    own = kl_threshold.verifier(threshold)
    logits = jnp.log(jnp.asarray(P, jnp.float32))
    target = base.Target(logits, {}, lambda depth: jnp.zeros(3))
    one = jax.tree.map(lambda x: x[0], nodes)
    found = own.verify(jax.random.key(0), own.init({}), one, target)
    return int(found.count), int(found.token)


def test_worked_example():
    """At the root the laws are 0.025 nats apart, after the first draft 1.39. Planted:
    the divergence at the draft itself, where after the second they are equal."""
    assert count(0.01) == (0, 0)
    assert count(0.03) == (1, 1)
    assert count(1.2) == (1, 1)
    assert count(1.4) == (2, 2)
    assert count(-1.0, (0, 1)) == (2, 2)  # the target's own tokens always pass
    assert KL[2] == 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_ends_of_the_threshold(temperature):
    """Below 0 plain decoding's text; planted: without a bound every draft's."""
    plain = kit.generate(Method(), temperature, seed=1).tokens
    texts = []
    for threshold in (-1.0, 1e9):
        method = Method(
            Spec("drafters/model"),
            Spec("verifiers/kl_threshold", threshold=threshold),
            Spec("topologies/chain", length=3),
        )
        texts.append(kit.generate(method, temperature, seed=1))
    assert texts[0].tokens == plain != texts[1].tokens
    assert min(texts[1].stats.accepted_by_depth) == 1.0


def test_bad_arguments():
    with pytest.raises(MethodError, match="threshold=nan"):
        kl_threshold.verifier(float("nan"))
    with pytest.raises(MethodError, match="needs the draft's laws"):
        count(0.1, laws=False)
