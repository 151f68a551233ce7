"""Every topology and draw: the joint law of a node and its first two children.

`kit.N` trees at temperature `kit.T`, seed 0; the node is the root's first child.
Whether a child exists may depend on the siblings before it, but not on its own token:
those that exist have the draw's law, given all before them. Drafts that are no sample
are compared with their scores. What subtracts or compares a law with its own maximum
runs under the compiler's own flags too.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Spec, base, catalogue, vocab
from decoding.conformance import laws
from decoding.tree_building import child_sampling, grow
from models.predictors import acceptance_predictor
from tests import default_compiler
from tests.decoding.test_vocab import two_kernels
from tests.decoding.topologies import kit

ARGUMENTS: dict[str, dict] = {  # two levels; chains that never stop
    "topologies/best_first": {"nodes": 9, "depth": 2, "above": 4, "children": 2},
    "topologies/chain": {"length": 2},
    "topologies/confidence_schedule": {"length": 2},
    "topologies/confidence_stop": {"length": 2, "threshold": 0.0},
    "topologies/dyspec": {"nodes": 5, "depth": 2, "width": 2, "threshold": 0.02},
    "topologies/eagle2": {"nodes": 5, "depth": 2, "top_k": 2},
    "topologies/hardware_aware": {
        "times": ((1, 1.0), (5, 1.1)),
        "choices": ((0,), (1,), (0, 0), (0, 1)),
    },
    "topologies/jetspec": {"nodes": 5, "depth": 2, "above": 4, "children": 2},
    "topologies/rsd_c": {"branching": (2, 2)},
    "topologies/rsd_s": {"width": 3, "depth": 2},
    "topologies/sequoia": {"acceptance": (0.5, 0.2), "budget": 5, "depth": 2},
    "topologies/specdec_pp": {"length": 2, "least": 2, "blocks": 1},
    "topologies/specinfer": {"expansion": (2, 2)},
    "topologies/static": {"choices": ((0,), (1,), (0, 0), (0, 1))},
}
CASES = [(t, d) for t in catalogue.names("topologies") for d in Spec(t).card.draws]
ROUNDED = [c for c in CASES if c[1] == base.IID]
ROUNDED += [("topologies/rsd_s", base.NO_REPLACE)]
USUAL = (("topologies/specinfer", base.IID), ("topologies/rsd_s", base.NO_REPLACE))
LEVEL = kit.LEVEL / len(CASES)


def fit(name: str, draw: str) -> float:
    """The p-value of a draw's law; 1 or 0 where the children follow from the noise."""
    given = ARGUMENTS.get(name, Spec(name).card.examples)
    topology = Spec(name, **given, draw=draw).build({})
    none = {"confidence": jnp.zeros(kit.V), "confidence_bias": jnp.zeros(())}
    params = {
        "acceptance": acceptance_predictor.init(jax.random.key(8), kit.V),
        "heads": none,
    }
    nodes = kit.grown(topology, kit.N, kit.Q, 0, params)
    tokens, there = np.asarray(nodes.tokens), np.asarray(nodes.kind) == base.CANDIDATE
    below = (np.asarray(nodes.parents) == 1) & there
    assert there[:, 1].all() and below[:, 1:].sum() > kit.N / 2
    at = np.argsort(~below, 1, kind="stable")[:, :2]  # the first two children
    children = np.take_along_axis(tokens, at, 1)
    there = np.take_along_axis(below, at, 1)
    if draw in grow.LAWS:
        return law_of(tokens[:, 1], children, there, draw)
    noise = np.float64(kit.noise(topology, kit.N, 0)[1])
    scores = np.log(kit.Q)[tokens[:, 1]] + (noise[1] if draw == base.COUPLED else 0)
    best = np.sort(scores, -1)[:, ::-1][:, :2]
    found = np.take_along_axis(scores, children, 1)
    return float((abs(found - best)[there] < 1e-4).all())


def law_of(token, children, there, draw: str) -> float:
    """The least p-value: of a node's token, and of each child given all before it."""
    counts = np.bincount(token, minlength=kit.V)
    found = [laws.chi_square(counts, kit.Q[0])]
    law = np.broadcast_to(kit.Q[:, None], (kit.V,) * 3).copy()
    if draw == base.NO_REPLACE:
        law[:, range(kit.V), range(kit.V)] = 0
        law /= law.sum(-1, keepdims=True)
    for rank, own in enumerate((kit.Q, law)):
        rows = there[:, rank]
        if rows.any():
            path = (token[rows], *children[rows, : rank + 1].T)
            counts = np.zeros(own.shape, np.int64)
            np.add.at(counts, path, 1)
            share = counts.sum(-1, keepdims=True) / counts.sum()
            found.append(laws.chi_square(counts, share * own))
    return min(found)


def fits(cases) -> dict[str, float]:
    """`fit` of each case, and of an arg-max that compares in two kernels."""
    found = {" ".join(case): fit(*case) for case in cases}
    vocab.argmax = two_kernels
    return {**found, "planted": fit("topologies/specinfer", base.IID)}


def rounded_fits() -> dict[str, float]:
    """One topology of each draw: these share the function that draws the children."""
    return fits(USUAL)


def all_rounded_fits() -> dict[str, float]:
    return fits(ROUNDED)


@pytest.mark.parametrize(
    ("function", "cases"),
    [
        ("rounded_fits", USUAL),
        pytest.param("all_rounded_fits", ROUNDED, marks=pytest.mark.long),
    ],
    ids=["usual", "all"],
)
def test_law_however_it_is_rounded(function, cases):
    """Planted: the maximum and the comparison with it in kernels of their own."""
    module = "tests.decoding.topologies.test_joint_law"
    found = default_compiler.result(module, function)
    assert found.pop("planted") < kit.FAULT and len(found) == len(cases)
    assert {case: p for case, p in found.items() if p <= LEVEL} == {}


@pytest.mark.parametrize(("name", "draw"), CASES)
def test_law(name, draw):
    assert fit(name, draw) > LEVEL


def test_fault_children_by_the_noise_of_other_tokens(monkeypatch):
    """Planted: coupled children scored by the noise of the tokens before them."""
    sound = child_sampling.candidates

    def candidates(draw, keys, logits, k, noise):
        return sound(draw, keys, logits, k, jnp.roll(noise, 1, -1))

    monkeypatch.setattr(child_sampling, "candidates", candidates)
    assert fit("topologies/static", base.COUPLED) == 0
