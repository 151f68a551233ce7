"""Where DSpark's chains end: confidences, times and temperatures; and their law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, base
from decoding.conformance import kit as cases
from decoding.topologies import confidence_schedule
from decoding.verifiers import rejection
from models.errors import MethodError
from tests.decoding.topologies import kit

ROWS = 400
CYCLE = np.full((4, 4), 0.01) + 0.96 * np.roll(np.eye(4), 1, 1)  # 0 1 2 3 0 ...


def head(accepted) -> dict:
    """A confidence head that reads a node's token, one-hot: c after token y."""
    a = jnp.asarray(accepted, jnp.float32)
    logit = jnp.log(a + 1e-9) - jnp.log(1 - a + 1e-9)
    return {"heads": {"confidence": logit, "confidence_bias": jnp.zeros(())}}


def lengths(accepted, q=CYCLE, rows: int = ROWS, **fields) -> set[int]:
    topology = confidence_schedule.topology(**{"length": 6, **fields})
    nodes = kit.grown_from(topology, rows, kit.raw(q), 0, head(accepted))
    return set((np.asarray(nodes.kind).sum(1) - 1).tolist())


def test_a_chain_ends_before_the_draft_that_is_doubted():
    """The token above says it: after token 2 the next draft is worth 0.1."""
    sure = [0.9, 0.9, 0.1, 0.9]
    assert lengths(sure, least=0.5) == {2}
    assert lengths(sure, least=0.05) == {6}
    assert lengths(sure) == {6}  # planted: without a threshold, all take the same


def test_the_width_of_greatest_promise():
    """Of E(n) / t(n): 1.9 / 1.2, 2.71 / 1.8, 3.439 / 2.2, ..: it falls at once at 3."""
    times = ((1, 1.0), (2, 1.2), (3, 1.8), (4, 2.2), (7, 3.0))
    assert lengths([0.9] * 4, times=times) == {1}
    flat = ((1, 1.0), (2, 1.2), (3, 1.7), (4, 2.1), (7, 3.0))
    assert lengths([0.9] * 4, times=flat) == {3}
    # Planted: the best of all widths, which would look past the first fall.
    late = ((1, 1.0), (2, 1.2), (3, 1.8), (7, 1.9))
    assert lengths([0.9] * 4, times=late) == {1}


def test_temperatures_soften_a_position():
    """At T = 4 a confidence of 0.9 becomes 0.63."""
    fields = {"least": 0.7, "length": 3}
    assert lengths([0.9] * 4, **fields) == {3}
    assert lengths([0.9] * 4, temperatures=(1.0, 4.0, 1.0), **fields) == {1}


def test_law():
    """Chains that end where a token is doubted leave the law as it is.

    Rejection, n = 20,000, p >= 1e-4. Planted: a draft exists where the token itself is
    trusted, which favours some tokens.
    """
    params = head([0.95, 0.3, 0.9, 0.6])
    topology = confidence_schedule.topology(length=3, least=0.5, draw=base.IID)
    verifier = rejection.verifier()
    accepted, fit = kit.accepted_and_fit(topology, verifier, params=params)
    assert accepted > 0.1 and fit > kit.LEVEL

    def expand(keys, state, tree, logits, noise, level):
        tree, state = topology.expand(keys, state, tree, logits, noise, level)
        at = level + 1
        trusted = jax.nn.sigmoid(params["heads"]["confidence"])[tree.tokens[:, at]]
        kind = jnp.where(trusted >= 0.5, tree.kind[:, at], base.PAD)
        return tree.replace(kind=tree.kind.at[:, at].set(kind)), state

    planted = topology._replace(expand=expand)
    assert kit.accepted_and_fit(planted, verifier, params=params)[1] < kit.FAULT


def scheduled(draft: str) -> Method:
    spec = Spec("topologies/confidence_schedule", length=3, least=0.5)
    return Method(cases.spec(draft), topology=spec)


def test_with_heads_in_the_loop():
    method = scheduled("drafters/dspark")
    found = cases.generate(method, 0.9)
    assert found.tokens == cases.plain(method, 0.9)
    assert (np.asarray(found.stats.target_calls) < cases.NEW).any()


def test_heads_without_a_confidence_head_are_refused():
    with pytest.raises(MethodError, match="needs heads with a confidence head"):
        cases.generate(scheduled("drafters/dflash"), 0.9)


@pytest.mark.parametrize(
    "wrong",
    [{"length": 0}, {"least": 2.0}, {"temperatures": (1.0,)}, {"times": ((0, 1.0),)}],
)
def test_numbers_that_make_no_schedule(wrong):
    with pytest.raises(MethodError, match=next(iter(wrong))):
        confidence_schedule.topology(**{"length": 4, **wrong})
