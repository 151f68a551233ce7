"""The judge: what passes, where it stops, and that it is not the target's law."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, base, tree
from decoding.conformance import kit
from decoding.verifiers import judge
from models.errors import ConfigError, MethodError
from models.predictors import judge_predictor

V = 4
# After node n the target says SAID[n]; states are one-hot in the node.
SAID = np.array([1, 2, 0, 3, 1])


def verdict(good, drafts=(1, 3, 0, 2), threshold=0.5, parents=None):
    """A chain of four drafts (or a tree) by a judge that likes the nodes in `good`."""
    nodes = tree.chain(jnp.array([0]), jnp.array([drafts]), jnp.array([4]))
    if parents is not None:
        nodes = nodes.replace(parents=jnp.array([parents]), linear=False)
    weight = jnp.where(jnp.isin(jnp.arange(5), jnp.array(good, int)), 4.0, -4.0)
    own = judge.verifier(threshold=threshold)
    params = {"judge": {"weight": weight, "bias": jnp.zeros(())}}
    state = own.init(params)
    logits = 3.0 * jax.nn.one_hot(jnp.array(SAID), V)
    target = base.Target(logits, {"norm": jnp.eye(5)}, lambda depth: jnp.zeros(V))
    one = jax.tree.map(lambda x: x[0], nodes.replace(calls=jnp.zeros(1)))
    found = own.verify(jax.random.key(0), state, one, target)
    return found.path.tolist(), int(found.count), int(found.token)


def test_worked_example():
    """Draft 1 is what the target says; 3 is not, but good; 0 neither: the target's own
    token 0... is said after node 2, where draft 0 matches; then 2 is refused."""
    assert verdict([]) == ([1, 0, 0, 0], 1, 2)
    assert verdict([2]) == ([1, 2, 3, 0], 3, 3)
    assert verdict([2, 4]) == ([1, 2, 3, 4], 4, 1)
    assert verdict([4]) == ([1, 0, 0, 0], 1, 2)  # planted: a good child of a refused


def test_the_ends_of_the_threshold():
    """Above 1 nothing but the target's own tokens, below 0 every draft."""
    assert verdict([1, 2, 3, 4], threshold=2.0) == verdict([])
    assert verdict([], threshold=-1.0)[1] == 4


def test_the_longest_path_of_a_tree():
    """Two siblings at the root: the one with good children wins over the likelier."""
    parents = (-1, 0, 0, 2, 3)
    found = verdict([2, 3, 4], drafts=(1, 3, 0, 2), parents=parents)
    assert found == ([2, 3, 4, 0], 3, 1)
    assert verdict([], drafts=(1, 3, 0, 2), parents=parents) == ([1, 0, 0, 0], 1, 2)


METHOD = Method(
    Spec("drafters/model"),
    Spec("verifiers/judge", threshold=2.0),
    Spec("topologies/chain", length=3),
)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_judge_who_approves_of_nothing(temperature):
    """Plain decoding's text; planted: one who approves of all writes the draft's."""
    plain = kit.generate(Method(), temperature, seed=2).tokens
    assert kit.generate(METHOD, temperature, seed=2).tokens == plain
    lenient = Method(
        METHOD.drafter, Spec("verifiers/judge", threshold=-1.0), METHOD.topology
    )
    out = kit.generate(lenient, temperature, seed=2)
    assert out.tokens != plain and out.guarantee == base.LOSSY
    assert min(out.stats.accepted_by_depth) == 1.0


def test_accepted_length_falls_with_the_threshold():
    """Of the same drafts; 40 random judges of random chains, seed 0."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(40, 5)).astype(np.float32) * 2
    drafts = rng.integers(0, V, (40, 4)).astype(np.int32)
    own = judge.verifier()
    target = base.Target(
        3.0 * jax.nn.one_hot(jnp.array(SAID), V), {"norm": jnp.eye(5)}, jnp.zeros
    )

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, 0, None))
    @functools.partial(jax.vmap, in_axes=(None, None, 0))
    def counts(weight, drafts, threshold):
        nodes = tree.chain(jnp.zeros(1, int), drafts[None], jnp.full(1, 4))
        one = jax.tree.map(lambda x: x[0], nodes.replace(calls=jnp.zeros(1)))
        params = {"weight": weight, "bias": jnp.zeros(())}
        state = base.State(shared=judge.Judge(params, threshold))
        return own.verify(jax.random.key(0), state, one, target).count

    found = counts(weights, drafts, jnp.array([-1.0, 0.2, 0.5, 0.8, 2.0]))
    falls = np.diff(np.asarray(found), axis=1)
    assert (falls <= 0).all() and (falls.sum(0) < 0).all()


def test_bad_arguments():
    with pytest.raises(MethodError, match="threshold=3"):
        judge.verifier(threshold=3.0)
    with pytest.raises(ConfigError, match="has the params"):
        judge.verifier({"fuse": 1})
    with pytest.raises(MethodError, match="needs its weights"):
        judge.verifier().init({})
    assert (
        float(judge_predictor.probability(judge_predictor.init(3), jnp.ones(3))) == 0.5
    )
