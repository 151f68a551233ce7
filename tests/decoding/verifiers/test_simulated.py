"""Simulated acceptance makes equation (1) of arXiv 2211.17192 true."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, tree
from decoding.conformance import kit
from decoding.verifiers import simulated
from models.errors import MethodError

GAMMA, ROWS, NEW, SIZE = 3, 1024, 40, 64


def tokens_per_call(rate: float, alter=lambda run: run) -> tuple[float, float]:
    """Mean over rows, and its standard error."""
    method = Method(
        Spec("drafters/oracle"),
        verifier=Spec("verifiers/simulated", rate=rate),
        topology=Spec("topologies/chain", length=GAMMA),
    )
    run = alter(kit.Run(method, 0.8))
    state = run.advance(run.start([[1, 2]], new=NEW, size=SIZE, n=ROWS), rounds=8)
    new = np.asarray(state.counters.new_tokens) / 8
    return float(new.mean()), float(new.std() / ROWS**0.5)


def expected(rate: float) -> float:
    return sum(rate**i for i in range(GAMMA + 1))


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 1.0])
def test_tokens_per_call_is_the_closed_form(rate):
    """n = 1024 rows x 8 rounds, seed 0; 4 standard errors."""
    mean, error = tokens_per_call(rate)
    assert abs(mean - expected(rate)) <= 4 * error + 1e-6


def test_fault_a_refused_draft_that_is_taken_all_the_same():
    """Planted: the drafts are the target's own, so its best token is often a child."""

    def alter(run):
        sound = run.parts.program.verifier

        def verify(key, state, nodes, target):
            def pick(node, depth):
                first = nodes.tokens[jnp.argmax(nodes.parents == node)]
                coin = jax.random.uniform(jax.random.fold_in(key, depth))
                best = jnp.argmax(target.logits[node])
                return jnp.where(coin < state.row, first, best)

            return tree.walk(nodes, pick)

        return run.alter(verifier=sound._replace(verify=verify))

    mean, error = tokens_per_call(0.3, alter)
    assert abs(mean - expected(0.3)) > 4 * error


def test_arguments():
    with pytest.raises(MethodError, match=r"rate=1.5"):
        simulated.verifier(1.5)
