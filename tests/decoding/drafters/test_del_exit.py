"""DEL: its choice against brute force, and its statistics against table look-up."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, base
from decoding.conformance import kit
from decoding.drafters import del_exit
from models.errors import MethodError
from models.synthetic import toy
from tests.decoding.drafters import agreement
from tests.decoding.drafters import kit as drafter_kit

LAYERS, LENGTH = 4, 3
FUNCTIONS, PARAMS = toy.model(kit.VOCAB, order=2, n_layers=LAYERS, eos=(kit.EOS,))
LM = types.SimpleNamespace(
    model=FUNCTIONS,
    params={**PARAMS, "table": PARAMS["table"].at[..., kit.EOS].add(-30.0)},
    tokenizer=None,
    config=FUNCTIONS.config,
)
METHOD = Method(kit.spec("drafters/del_exit", length=LENGTH, decay=1.0, prompt=4))


def truncated(layers: int) -> dict:
    return {**LM.params, "table": LM.params["table"][:layers]}


def test_choice_is_brute_force_s():
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.integers(0, 6, (3, 2)).astype(np.float32)
        counts[0] = 0, 5  # alpha = 1
        counts[1:, 0] += 1
        table, depth, value = np.array([2, 3, 5]), 8, {}
        chosen = del_exit.choose(counts, counts * 0.5, jnp.asarray(table), depth, 6)
        for e in range(3):
            alpha = counts[e, 1] / counts[e].sum()
            for g in range(6):
                tokens = sum(alpha**i for i in range(g + 1))
                value[e, g] = tokens / (depth + g * table[e])
        best, tau = int(chosen[0]), float(chosen[1])
        own = max(value[best, g] for g in range(6))
        assert own >= max(value.values()) - 1e-6
        assert tau == (0.5 if counts[best].all() else 0.0)


def drafted(counts, sums, length: int = LENGTH, **fixed) -> int:
    """Drafts of a round after the statistics [E, 2]; text 3, which is its prompt."""
    drafter = del_exit.drafter(FUNCTIONS, length=length, **fixed)
    cache = FUNCTIONS.init_cache(1, 32, jnp.float32)
    ctx = dataclasses.replace(
        drafter_kit.context([[3]]), params={"target": LM.params}, cache=cache
    )
    state = drafter.init(ctx)
    if counts is not None:
        seen = (jnp.asarray(x, jnp.float32)[None] for x in (counts, sums))
        state = base.State(state.row.replace(**dict(zip(("counts", "sums"), seen))))
    keys = drafter_kit.keys(1)
    nodes = jax.jit(lambda: drafter.draft(keys, ctx, state)[0])()
    return int((nodes.kind == base.CANDIDATE).sum()) - 1


def test_one_token_at_least():
    """As the official code: one draft at g* = 0, and one before any observation."""
    refused, taken, seldom = [[5.0, 0.0]] * 3, [[0.0, 5.0]] * 3, [[5.0, 0.1]] * 3
    assert drafted(seldom, seldom) == 1  # alpha = 0.02, and tau = 1
    assert drafted(None, None) == 1
    assert drafted(refused, refused) == LENGTH  # tau is 0 without a match,
    assert drafted(taken, taken) == LENGTH  # and without a mismatch


def test_fixed_exit_and_length():
    """The paper's baseline drafts on; planted: one exit alone, which stops by tau."""
    seldom, fixed = [[5.0, 0.1]], {"exits": (2,)}
    assert drafted(seldom, seldom, **fixed) == 1
    assert drafted(seldom, seldom, **fixed, threshold=0.0) == LENGTH
    assert drafted(None, None, **fixed, threshold=0.0) == LENGTH
    with pytest.raises(MethodError, match="threshold=2"):
        del_exit.drafter(FUNCTIONS, threshold=2)


@pytest.mark.long
def test_an_exit_that_is_the_whole_model_is_never_refused():
    """Layers above the exit that add nothing. Planted: layers that do."""
    lm = agreement.target()
    depth = lm.config.n_layers
    top = lm.params[f"layer_{depth - 1}"]
    parts = {"attention": "out", "mlp": "down"}
    silent = {n: {**top[n], name: 0 * top[n][name]} for n, name in parts.items()}
    params = {**lm.params, f"layer_{depth - 1}": {**top, **silent}}
    fields = {"exits": (depth - 1,), "length": LENGTH, "threshold": 0.0}
    method = Method(kit.spec("drafters/del_exit", **fields))
    prompts, new = [[1, 2, 3], [4, 5, 6, 7, 8]], 2 * (LENGTH + 1)
    shares = []
    whole = types.SimpleNamespace(**{**vars(lm), "params": params})
    for target in (whole, lm):
        out = decoding.generate(target, prompts, method, max_new_tokens=new)
        plain = decoding.generate(target, prompts, max_new_tokens=new)
        assert out.tokens == plain.tokens
        shares.append(out.stats.new_tokens / out.stats.target_calls)
    assert (shares[0] == LENGTH + 1).all() and (shares[1] < LENGTH + 1).any()


def test_fault_no_observation_sets_no_threshold(monkeypatch):
    """Planted: before any observation tau is 0, and the whole chain is drafted."""
    sound = del_exit.choose
    careless = lambda *args: (sound(*args)[0], jnp.float32(0))
    monkeypatch.setattr(del_exit, "choose", careless)
    assert drafted(None, None) == LENGTH


def expected(prompt: list[int], text: list[int], prompted: int) -> np.ndarray:
    """Mismatches and matches of every exit over a row's positions, by look-up."""
    whole, found = prompt + text, np.zeros((LAYERS - 1, 2))
    first = max(len(prompt) - 1 - prompted, 0)
    for end in range(first + 1, len(whole)):
        truth = toy.logits(LM.params, whole[:end]).argmax()
        for layer in range(1, LAYERS):
            guess = toy.logits(truncated(layer), whole[:end]).argmax()
            found[layer - 1, int(guess == truth)] += 1
    return found


def test_text_is_plain_and_statistics_are_the_table_s():
    """With no decay the counts of a row are those of its committed tokens' positions,
    and of its prompt's last four; rejected drafts leave no trace."""
    run = kit.Run(METHOD, lm=LM)
    state = run.advance(run.start())
    texts = kit.texts(state)
    for prompt, text in zip(kit.PROMPTS, texts):
        assert text == kit.greedy_by_hand(LM.params, prompt, kit.NEW)
    rows = zip(kit.PROMPTS, texts)
    counts = [expected(p, t, 4) for p, t in rows]
    np.testing.assert_array_equal(state.drafter.row.counts, counts)
    assert int(state.counters.accepted.sum()) > 0


@pytest.mark.long
def test_fault_rejected_positions_count():
    """Planted: every node of the chain is counted, accepted or not."""
    run = kit.Run(METHOD, lm=LM)
    sound = run.parts.program.drafter

    def observe(ctx, state, outcome):
        if outcome.is_prompt:
            return sound.observe(ctx, state, outcome)
        path = jnp.broadcast_to(jnp.arange(1, LENGTH + 1), outcome.verdict.path.shape)
        every = outcome.verdict.replace(path=path, count=outcome.active * LENGTH)
        return sound.observe(ctx, state, outcome.replace(verdict=every))

    run.alter(drafter=sound._replace(observe=observe))
    state = run.advance(run.start())
    counts = [expected(p, t, 4) for p, t in zip(kit.PROMPTS, kit.texts(state))]
    assert not np.array_equal(state.drafter.row.counts, counts)


def test_statistics_are_a_request_s():
    """As the official code: nothing is left for the next request."""
    assert not jax.tree.leaves(kit.generate(METHOD, lm=LM).memory)


def test_bad_arguments():
    with pytest.raises(MethodError, match=r"exits=\(4,\)"):
        del_exit.drafter(FUNCTIONS, exits=(4,))
    with pytest.raises(MethodError, match="decay=2"):
        del_exit.drafter(FUNCTIONS, decay=2.0)
