"""The contract of logits transforms."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np

from decoding import base, tree
from decoding.automata import matchers
from decoding.catalogue import Spec
from decoding.conformance import kit
from decoding.conformance.require import require
from decoding.method import Method

STEPS = 12  # tokens of a random text
# Node i's parent: a trunk, siblings, cousins.
PARENTS = (-1, 0, 0, 1, 1, 2, 3, 5, 6)


def check(spec: Spec) -> None:
    """Check a transform against every contract of this file.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    transform = kit.spec(spec.name, **spec.arguments).build(kit.PARTS)
    walks(spec, transform)
    parts_are_parts(spec, transform)
    nodes_hold_replayed_states(spec, transform)
    numbers_share_a_program(spec)


WORDS = -(-kit.VOCAB // 32)


def inputs(transform: base.LogitsTransform, seed: int, *shape: int):
    """Draw logits float32[*shape, V] for the target and the transform's streams.

    Masks of the host allow everything; see `asked`.
    """
    rng = np.random.default_rng(seed)
    draw = lambda: jnp.asarray(rng.normal(size=(*shape, kit.VOCAB)) * 2, jnp.float32)
    masks = {name for name, _ in transform.numbers}
    whole = jnp.full((*shape, WORDS), matchers.ALL)
    return draw(), {n: whole if n in masks else draw() for n in transform.streams}


def asked(transform: base.LogitsTransform, state: base.State, text: list[int]) -> dict:
    """Return the host's masks behind a row's text, its prompt included, by stream."""
    masks = {}
    for name, numbers in transform.numbers:
        row = np.asarray(numbers(state))[None]
        rows = (np.asarray([text], np.int32), np.asarray([len(text)], np.int32))
        root = np.zeros((1, 1), np.int32)
        words = matchers.answer(WORDS, row, *rows, root, root - 1, root)
        masks[name] = jnp.asarray(words[0, 0])
    return masks


def prompt(seed: int = 0) -> list[int]:
    """Return the prompt of three tokens behind which `begin` begins."""
    return np.random.default_rng(seed).integers(0, kit.EOS, 8)[:3].tolist()


def begin(transform: base.LogitsTransform, seed: int = 0) -> base.State:
    """Return the state of one row after a prompt of three tokens."""
    tokens = np.random.default_rng(seed).integers(0, kit.EOS, 8)
    return transform.init(jnp.asarray(tokens, jnp.int32), jnp.int32(3))


def walks(spec: Spec, transform: base.LogitsTransform) -> None:
    """Check a transform along random texts.

    Its shapes and dtypes must stay, jit must change no value, and every step must allow
    a token. An impossible token must stay impossible, unless no other is left.
    """
    apply, advance = jax.jit(transform.apply), transform.advance
    step = None if advance is None else jax.jit(advance)
    rng, state, text = np.random.default_rng(1), begin(transform), prompt()
    shapes = jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), state)
    for i in range(STEPS):
        logits, aux = inputs(transform, i)
        masks = asked(transform, state, text)
        aux |= masks
        new = apply(state, logits, aux)
        require(
            (new.shape, new.dtype) == (logits.shape, logits.dtype),
            spec,
            f"apply returns {new.dtype}{new.shape} of {logits.dtype}{logits.shape}",
        )
        eager = transform.apply(state, logits, aux)
        require(np.allclose(new, eager, rtol=1e-5), spec, "jit changes apply")
        require(not np.isnan(new).any(), spec, "apply returns NaN")
        allowed = np.flatnonzero(np.asarray(new) > -np.inf)
        require(len(allowed), spec, "apply forbids every token")
        token = int(allowed[0])
        banned = jnp.full_like(logits, -jnp.inf).at[token].set(logits[token])
        beside = dict.fromkeys(aux, banned) | masks
        remasked = np.asarray(apply(state, banned, beside))
        require(np.isfinite(remasked[token]), spec, "the one token left is forbidden")
        revived = np.isfinite(np.delete(remasked, token)).any()
        require(not revived, spec, "an impossible token becomes possible")
        text.append(int(rng.choice(allowed)))
        if step is not None:
            state = step(state, jnp.int32(text[-1]), logits, aux)
            after = jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), state)
            require(after == shapes, spec, f"advance changes {shapes} to {after}")


def parts_are_parts(spec: Spec, transform: base.LogitsTransform) -> None:
    """Require of a nameless transform that it serves a part of the vocabulary.

    It is stateless, and `apply` to the logits of some tokens gives what it gives them
    where all others have -inf.
    """
    if not transform.nameless:
        return
    require(transform.advance is None, spec, "a nameless transform has a state")
    ids, state = jnp.arange(1, kit.VOCAB, 2), begin(transform)
    logits, aux = inputs(transform, 5)
    whole = jnp.full_like(logits, -jnp.inf).at[ids].set(logits[ids])
    part = transform.apply(state, logits[ids], aux)
    same = np.allclose(transform.apply(state, whole, aux)[ids], part, rtol=1e-5)
    require(same, spec, "a nameless transform reads which tokens the logits are of")


def nodes_hold_replayed_states(
    spec: Spec, transform: base.LogitsTransform, node_states=tree.node_states
) -> None:
    """Require at each tree node, bit for bit, the state replayed along its path.

    Two rows with different prompts are checked. Tests replace `node_states` to plant a
    fault.
    """
    rng, size, starts = np.random.default_rng(2), len(PARENTS), (0, 1)
    tokens = jnp.asarray(rng.integers(0, kit.EOS, (2, size)), jnp.int32)
    logits, aux = inputs(transform, 3, 2, size)
    nodes = base.TokenTree(
        tokens,
        jnp.broadcast_to(jnp.asarray(PARENTS, jnp.int32), tokens.shape),
        jnp.full(tokens.shape, base.CANDIDATE),
        depth=size - 1,
    )
    single = [begin(transform, seed) for seed in starts]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *[state.row for state in single])
    rows = base.State(stacked, single[0].shared)
    states = jax.jit(lambda *a: node_states(transform, *a))(rows, nodes, logits, aux)
    if transform.advance is None:
        return
    step = jax.jit(transform.advance)
    for row, start in enumerate(single):
        at = {0: start}
        for node, parent in enumerate(PARENTS[1:], 1):
            streams = {name: x[row, parent] for name, x in aux.items()}
            step_inputs = (tokens[row, node], logits[row, parent], streams)
            at[node] = step(at[parent], *step_inputs)
            state_at_node = jax.tree.map(lambda x, at=(row, node): x[at], states.row)
            same = kit.same(state_at_node, at[node].row)
            require(same, spec, f"node {node} has another state")
            unchanged = kit.same(at[node].shared, start.shared)
            require(unchanged, spec, "advance changes what rows share")


def drafts_keep_text(spec: Spec) -> None:
    """Under the transform a drafter's text is plain decoding's, greedy and sampled.

    A transform that is ARGMAX decodes greedily alone.
    """
    is_law = spec.card.guarantee != base.ARGMAX
    tree = kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE)
    method = Method(tree, transforms=(kit.spec(spec.name, **spec.arguments),))
    for temperature in (0.0, 0.8) if is_law else (0.0,):
        same = kit.generate(method, temperature).tokens == kit.plain(
            method, temperature
        )
        require(same, spec, f"drafts change the text at T = {temperature}")


def program(transform: base.LogitsTransform) -> tuple[str, list]:
    """Return a transform's jaxprs, and the shapes and dtypes of its state."""
    state = begin(transform)
    logits, aux = inputs(transform, 4)
    text = str(jax.make_jaxpr(transform.apply)(state, logits, aux))
    if transform.advance is not None:
        token = jnp.int32(1)
        text += str(jax.make_jaxpr(transform.advance)(state, token, logits, aux))
    leaves = jax.tree.leaves(state)
    return text, [(jnp.shape(x), jnp.result_type(x)) for x in leaves]


def numbers_share_a_program(spec: Spec) -> None:
    """Require that another value of a number in `CARD.data` keeps the program.

    Such a number may live in the state only.
    """
    part, programs = kit.spec(spec.name, **spec.arguments), []
    known = inspect.signature(part.factory).parameters
    values = {n: part.arguments.get(n, known[n].default) for n in part.card.data}
    for scale in (1.0, 0.5):
        numbers = {
            name: type(value)(value * scale)
            for name, value in values.items()
            if type(value) in (int, float)
        }
        scaled = kit.spec(spec.name, **{**part.arguments, **numbers})
        programs.append(program(scaled.build(kit.PARTS)))
    same = programs[0] == programs[1]
    require(same, spec, f"a number of {part.card.data} shapes the program")
