"""Transform chains: order, domains, what `advance` receives, and parity with HF."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import base, transform_chain, tree, vocab
from decoding.conformance import kit
from decoding.denoising import filling
from decoding.transforms import (
    frequency_penalty,
    repetition_penalty,
    temperature,
    top_k,
    top_p,
)
from decoding.tree_design import tree_shape
from models.errors import MethodError

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "transforms.npz"


def _recorder(scale, **fields):
    """Scales its logits and remembers those that `advance` received."""

    def init(tokens, length):
        return base.State(jnp.zeros((4,)))

    return base.LogitsTransform(
        init,
        lambda state, logits, aux: logits * scale,
        lambda state, token, logits, aux: base.State(logits, state.shared),
        **fields,
    )


def _begin(made):
    return made.init(jnp.zeros(2, jnp.int32), jnp.int32(2))


def test_order_and_what_advance_receives():
    made = transform_chain.chain(
        _recorder(2.0), temperature.transform(4.0), _recorder(3.0)
    )
    logits = jnp.array([1.0, 2.0, 3.0, 4.0])
    state = _begin(made)
    np.testing.assert_allclose(made.apply(state, logits, {}), logits * 2 / 4 * 3)
    moved = made.advance(state, jnp.int32(1), logits, {})
    np.testing.assert_allclose(moved.row[0], logits)
    np.testing.assert_allclose(moved.row[2], logits / 2)  # not the raw logits
    np.testing.assert_array_equal(state.row[0], jnp.zeros(4))  # apply wrote nothing


def test_logprobs_are_made_once_where_they_are_asked_for():
    logits = jnp.array([1.0, 2.0, 3.0, 4.0])
    logp = vocab.log_softmax(logits)
    asked = _recorder(1.0, domain="logprobs")
    made = transform_chain.chain(asked, _recorder(2.0), asked)
    moved = made.advance(_begin(made), jnp.int32(1), logits, {})
    np.testing.assert_allclose(moved.row[0], logp, rtol=1e-6)
    np.testing.assert_allclose(moved.row[1], logp, rtol=1e-6)
    np.testing.assert_allclose(moved.row[2], vocab.log_softmax(2 * logp), rtol=1e-6)
    raw = transform_chain.chain(_recorder(1.0))
    assert (raw.advance(_begin(raw), jnp.int32(1), logits, {}).row[0] == logits).all()
    assert made.domain == "logits"


def test_memory_streams_and_place():
    plain, hot = temperature.transform(0.5), top_k.transform(3)
    assert transform_chain.chain(plain, hot).advance is None
    assert transform_chain.chain(plain, _recorder(1.0)).advance is not None
    assert transform_chain.chain(plain, hot).warper
    assert not transform_chain.chain(_recorder(1.0), hot).warper
    parts = [_recorder(1.0, streams=s) for s in (("a",), ("b", "a"))]
    assert transform_chain.chain(*parts).streams == ("a", "b")


def test_no_parts_is_the_identity():
    made = transform_chain.chain()
    assert (made.apply(_begin(made), jnp.arange(4.0), {}) == jnp.arange(4.0)).all()
    assert made.advance is None


def test_chains_nest():
    parts = repetition_penalty.transform(1.3, 4), temperature.transform(0.8)
    flat = transform_chain.chain(*parts, top_p.transform(0.9))
    nested = transform_chain.chain(transform_chain.chain(*parts), top_p.transform(0.9))
    logits = jnp.array([1.0, -2.0, 3.0, 0.5])
    out = []
    for made in (flat, nested):
        state = made.advance(_begin(made), jnp.int32(2), logits, {})
        out.append(made.apply(state, logits, {}))
    np.testing.assert_array_equal(*out)


def test_equals_hf():
    with np.load(GOLDEN) as golden:
        tokens, logits, want = golden["tokens"], golden["logits"], golden["chain"]
    parts = [
        repetition_penalty.transform(1.3, 101),
        temperature.transform(0.8),
        top_k.transform(50),
        top_p.transform(0.9),
    ]

    def run(parts):
        made = transform_chain.chain(*parts)
        state = jax.vmap(made.init, out_axes=base.ROWS)(
            jnp.asarray(tokens, jnp.int32), jnp.full(len(tokens), tokens.shape[1])
        )
        read = lambda state, logits: made.apply(state, logits, {})
        return np.asarray(jax.vmap(read, in_axes=(base.ROWS, 0))(state, logits))

    np.testing.assert_array_equal(np.isneginf(run(parts)), np.isneginf(want))
    live = ~np.isneginf(want)
    np.testing.assert_allclose(run(parts)[live], want[live], rtol=1e-5, atol=1e-6)
    turned = run(parts[::-1])  # the planted fault: order matters
    assert (np.isneginf(turned) != np.isneginf(want)).any()


def test_node_states_of_a_chain():
    made = transform_chain.chain(
        repetition_penalty.transform(1.3, 8), frequency_penalty.transform(0.5, 8)
    )
    shape = tree_shape.Shape([(0,), (1,), (1, 0)])
    grown = shape.tree(jnp.array([[0, 5, 6, 7]]), base.POINT)
    start = jax.vmap(made.init, out_axes=base.ROWS)(
        jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32)
    )
    states = tree.node_states(made, start, grown, jnp.zeros((1, 4, 8)), {})
    counts = states.row[1].counts[0]
    want = np.eye(8)[[5, 6, 7]]
    np.testing.assert_array_equal(counts[1], want[0])
    np.testing.assert_array_equal(counts[3], want[1] + want[2])
    seen = vocab.members(states.row[0].seen[0, 3], 8)
    np.testing.assert_array_equal(np.flatnonzero(seen), [0, 6, 7])


def test_refuses_an_unknown_domain():
    with pytest.raises(MethodError, match="odds"):
        transform_chain.chain(_recorder(1.0, domain="odds"))


LOGITS = jnp.array([1.0, 2.0, 3.0, 4.0])


def _constraint(*allowed, **fields):
    """Allows these tokens alone."""
    mask = jnp.isin(jnp.arange(4), jnp.asarray(allowed))
    return base.LogitsTransform(
        lambda tokens, length: base.State(),
        lambda state, logits, aux: jnp.where(mask, logits, -jnp.inf),
        free=lambda state, logits, aux: logits,
        **fields,
    )


def _mass(*parts, logits=LOGITS) -> float:
    made = transform_chain.chain(*parts)
    return float(transform_chain.mass(made, _begin(made), logits, {}))


def test_the_mass_that_constraints_leave():
    """The law at the allowed tokens, whatever scales or shifts it before and behind."""
    shift = jnp.array([0.0, 1.0, -1.0, 0.5])
    biased = base.LogitsTransform(
        lambda tokens, length: base.State(), lambda state, z, aux: z + shift
    )
    half, some = temperature.transform(0.5), _constraint(1, 2)
    law = lambda logits: np.exp(np.asarray(vocab.log_softmax(logits)))
    for parts, p in (
        ((some,), law(LOGITS)),
        ((some, half), law(LOGITS / 0.5)),
        ((half, some), law(LOGITS / 0.5)),
        ((biased, some, half), law((LOGITS + shift) / 0.5)),
        ((some, biased, half), law((LOGITS + shift) / 0.5)),
        ((transform_chain.chain(biased, some), half), law((LOGITS + shift) / 0.5)),
    ):
        assert _mass(*parts) == pytest.approx(np.log(p[[1, 2]].sum()), abs=1e-5)
    assert _mass(_constraint(0, 1, 2), some) == _mass(some)
    assert _mass(half) == _mass() == 0.0
    # Planted: the mass where the constraint stands, before the temperature.
    assert _mass(some, half) != pytest.approx(_mass(some), abs=1e-2)


def test_the_mass_before_a_truncation():
    """The two best of the masked law, against the two best of the law."""
    p = np.exp(np.asarray(LOGITS))
    two = (_constraint(0, 2, 3), top_k.transform(2))
    assert _mass(*two) == pytest.approx(0.0, abs=1e-6)  # the same two
    two = (_constraint(0, 1, 3), top_k.transform(2))
    want = np.log((p[1] + p[3]) / (p[2] + p[3]))
    assert _mass(*two) == pytest.approx(want, abs=1e-5)
    # Planted: the truncation left out.
    assert _mass(_constraint(0, 1, 3)) != pytest.approx(want, abs=1e-2)


def test_a_mass_that_is_hidden_is_refused():
    """By log-probabilities behind a constraint, and streams; not before it."""
    some = _constraint(1, 2)
    for part in (_recorder(1.0, domain="logprobs"), _recorder(1.0, streams=("a",))):
        assert np.isfinite(_mass(part, some))
        with pytest.raises(MethodError, match="put the constraint behind it"):
            _mass(some, part)
        made = transform_chain.chain(some, part)  # decoding alone is served
        assert np.isfinite(made.apply(_begin(made), LOGITS, {})[1])


def test_the_first_suggestion_counts():
    """A chain suggests what its first part that suggests does, from its own state."""

    def suggesting(scale):
        def forced(state):
            return jnp.int32(scale * state.row), jnp.int32(scale)

        return _recorder(1.0, forced=forced)

    parts = (_recorder(2.0), suggesting(3), suggesting(4))
    whole = transform_chain.chain(*parts)
    state = _begin(whole)
    moved = whole.advance(state, jnp.int32(0), jnp.arange(4.0), {})
    assert whole.forced(moved)[1] == 3
    # Its state are the logits that it got: those behind the first part.
    assert whole.forced(moved)[0].tolist() == [0, 6, 12, 18]
    assert transform_chain.chain(parts[0]).forced is None


def test_holes_are_those_of_one_constraint_with_its_state():
    """Planted: the state of another part; a second one, or a path, leaves none."""
    regex = kit.spec("constraints/regex", pattern="(ab)+").build(kit.PARTS)
    other = kit.spec("transforms/top_k", k=3).build(kit.PARTS)
    path = kit.spec("transforms/frequency_penalty", penalty=0.5).build(kit.PARTS)
    law = transform_chain.chain(other, regex)
    tokens, canvas = jnp.zeros(1, jnp.int32), jnp.asarray([-1, 1, 0, -1])
    state = law.holes.init(tokens, jnp.int32(1))
    own = regex.holes.init(tokens, jnp.int32(1))
    words = law.holes.allowed(state, canvas)
    assert np.array_equal(words, regex.holes.allowed(own, canvas)) and words.any()
    assert law.holes.possible(state, canvas)
    assert not law.holes.possible(state, canvas.at[2].set(1))
    form = transform_chain.chain(other, filling.on_canvas(regex))
    state = form.init(tokens, jnp.int32(1))
    assert np.array_equal(words, form.holes.allowed(state, canvas))
    assert transform_chain.chain(regex, regex).holes is None
    assert transform_chain.chain(regex, path).holes is None
    assert transform_chain.chain(other).holes is None
