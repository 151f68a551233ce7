"""The contract of constraints, beyond the contract of transforms."""

import jax
import jax.numpy as jnp
import numpy as np

from decoding import base
from decoding.catalogue import Spec
from decoding.conformance import estimators, kit, transforms
from decoding.conformance.require import require
from decoding.denoising.holes import OPEN, OUTSIDE

TEXTS, STEPS = 8, 24
CANVAS, WORDS = 6, -(-kit.VOCAB // 32)  # positions; words of a position


def check(spec: Spec) -> None:
    """Check a constraint against the contracts of this file and of transforms.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    if spec.card.kind == "estimator":
        estimators.check(spec)
        return
    constraint = kit.spec(spec.name, **spec.arguments).build(kit.PARTS)
    transforms.walks(spec, constraint)
    transforms.nodes_hold_replayed_states(spec, constraint)
    never_strands(spec, constraint)
    has_a_mass(spec, constraint)
    fills_its_holes(spec, constraint)


def never_strands(spec: Spec, constraint: base.LogitsTransform) -> None:
    """Require an allowed token after every allowed text, whatever the logits."""
    apply = jax.jit(constraint.apply)
    step = None if constraint.advance is None else jax.jit(constraint.advance)
    rng, forbids = np.random.default_rng(0), False
    for text in range(TEXTS):
        state = transforms.begin(constraint, text)
        tokens = transforms.prompt(text)
        for i in range(STEPS):
            masks, of_host = [], transforms.asked(constraint, state, tokens)
            for seed in (i, i + STEPS):
                logits, aux = transforms.inputs(constraint, seed)
                aux |= of_host
                masks.append(np.isfinite(apply(state, logits, aux)))
            allowed = np.flatnonzero(masks[0])
            require(len(allowed), spec, f"no token may follow after {i} allowed ones")
            require((masks[0] == masks[1]).all(), spec, "logits change what is allowed")
            forbids |= len(allowed) < kit.VOCAB
            token = int(rng.choice(allowed))
            if token == kit.EOS:
                break
            tokens.append(token)
            if step is not None:
                state = step(state, jnp.int32(token), logits, aux)
    require(forbids, spec, "it forbids nothing")


def has_a_mass(spec: Spec, constraint: base.LogitsTransform) -> None:
    """Require a `free` that forbids nothing and changes no allowed token's logit."""
    without = constraint.free
    if without is None:
        raise AssertionError(f"{spec}: it has no `free`, for its mass")
    for text in range(TEXTS):
        state = transforms.begin(constraint, text)
        logits, aux = transforms.inputs(constraint, text)
        aux |= transforms.asked(constraint, state, transforms.prompt(text))
        left = np.asarray(constraint.apply(state, logits, aux))
        free = np.asarray(without(state, logits, aux))
        require(np.isfinite(free).all(), spec, "its `free` forbids a token")
        allowed = np.isfinite(left)
        same = np.array_equal(left[allowed], free[allowed])
        require(same, spec, "its `free` changes the logit of an allowed token")


def fills_its_holes(spec: Spec, constraint: base.LogitsTransform) -> None:
    """Require that allowed tokens, in any order, keep a canvas possible.

    So does each token in the place of a known one. Nothing is asked of a constraint
    without words of its canvases.
    """
    holes = constraint.holes
    if holes is None or holes.allowed is None:
        return
    state = holes.init(jnp.zeros(1, jnp.int32), jnp.int32(0))
    possible, allowed = jax.jit(holes.possible), jax.jit(holes.allowed)
    rng = np.random.default_rng(0)
    for text in range(2):
        canvas = np.full(CANVAS, OPEN, np.int32)
        canvas[CANVAS - text :] = OUTSIDE
        for position in rng.permutation(CANVAS - text).tolist():
            words = np.asarray(allowed(state, canvas))
            bits = words[:, :WORDS].view(np.uint8)
            every = np.unpackbits(bits, 1, bitorder="little")[:, : kit.VOCAB]
            is_there = every.any(1) == (canvas != OUTSIDE)
            require(is_there.all(), spec, "a position has no token, or one outside")
            for token in range(kit.VOCAB):
                canvas[position] = token
                same = bool(possible(state, canvas)) == bool(every[position, token])
                require(same, spec, f"`allowed` and `possible` differ on {canvas}")
            canvas[position] = rng.choice(np.flatnonzero(every[position]))
        require(
            possible(state, canvas), spec, f"the canvas {canvas} is filled, and no text"
        )
