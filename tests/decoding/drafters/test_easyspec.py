"""EasySpec on a small transformer: exact in groups of one, calibrated in any."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method
from decoding.conformance import kit
from decoding.drafters import easyspec
from decoding.loops import decode
from models import transformer
from models.base import ALL, causal_block
from models.errors import MethodError

CONFIG = transformer.Config(
    vocab_size=kit.VOCAB,
    d_model=16,
    n_layers=4,
    n_heads=2,
    n_kv_heads=1,
    head_dim=8,
    d_ff=16,
    max_positions=128,
    ropes=(transformer.rope(8, 100.0),),
    eos=(kit.EOS,),
)
FUNCTIONS = transformer.transformer(CONFIG)
PARAMS = jax.tree.map(lambda x: x * 3, FUNCTIONS.init(jax.random.key(0)))
DRAFT = types.SimpleNamespace(model=FUNCTIONS, params=PARAMS, config=CONFIG)
METHOD = Method(
    kit.spec("drafters/easyspec", group=2),
    topology=kit.spec("topologies/static"),
)
TOKENS = jnp.array([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]], jnp.int32)
BLOCK = causal_block(TOKENS, jnp.zeros(2, jnp.int32), jnp.full(2, 6), 16, logits_at=ALL)


def logits(group: int) -> np.ndarray:
    call = easyspec.parallel(FUNCTIONS, group)
    return np.asarray(call(PARAMS, FUNCTIONS.init_cache(2, 16), BLOCK)[0].logits)


def test_groups_of_one_are_the_model():
    exact = FUNCTIONS(PARAMS, FUNCTIONS.init_cache(2, 16), BLOCK)[0].logits
    # Layers run one by one round otherwise than in one call: 16 units of the largest.
    near = 16 * np.finfo(np.float32).eps * np.abs(exact).max()
    np.testing.assert_allclose(logits(1), exact, rtol=0, atol=near)
    assert abs(logits(2) - exact).max() > 1e-3  # fuzzy


def after_rounds(run: kit.Run, rounds: int = 4) -> float:
    """How far the draft's keys at the beginning of a round are from those of a fresh
    prefill, as a share of the greatest of their layer."""
    state = run.advance(run.start(), rounds)
    program = run.parts.program

    def draft(params, state):
        ctx = decode.context(program, params, state)
        return program.drafter.draft(state.key, ctx, state.drafter)[1].row[0]

    cache = jax.jit(draft)(run.params, state)
    size = state.tokens.shape[1]
    start = jnp.zeros_like(state.length)
    block = causal_block(state.tokens, start, state.length, size)
    empty = FUNCTIONS.init_cache(len(kit.PROMPTS), size)
    fresh = FUNCTIONS(PARAMS, empty, block)[1]
    lengths = np.asarray(state.length)
    assert (np.asarray(cache.length) == lengths).all()
    pairs = []
    for row, length in enumerate(lengths):
        for kept, made in zip(cache.layers, fresh.layers):
            pairs.append((kept.k[row, :, :length], made.k[row, :, :length]))
    return max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)


@pytest.mark.long
def test_after_calibration_the_keys_are_exact():
    """As exact as blocks of other widths are in float32."""
    assert after_rounds(kit.Run(METHOD, draft=DRAFT)) < 1e-4


@pytest.mark.long
def test_fault_fuzzy_keys_are_kept():
    """Planted: accepted drafts keep the keys of the fuzzy calls."""
    run = kit.Run(METHOD, draft=DRAFT)
    sound = run.parts.program.drafter

    def observe(ctx, state, outcome):
        after = sound.observe(ctx, state, outcome)
        if outcome.is_prompt:
            return after
        cache = after.row[0]
        cache = cache.replace(length=cache.length - 1)
        count = jnp.minimum(outcome.verdict.count, sound.depth - 1)
        cache = cache.commit(outcome.verdict.path, count, False)
        return after.replace(row=(cache, *after.row[1:]))

    run.alter(drafter=sound._replace(observe=observe))
    assert after_rounds(run, 12) > 1e-2


def test_bad_arguments():
    with pytest.raises(MethodError, match="group=0"):
        easyspec.drafter(None, None, group=0)
