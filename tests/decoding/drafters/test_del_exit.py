"""DEL: its choice against brute force, and its statistics against table look-up."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method
from decoding.conformance import kit
from decoding.drafters import del_exit
from models.errors import MethodError
from models.synthetic import toy

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


def statistics(counts, sums) -> del_exit.Statistics:
    return del_exit.Statistics(
        jnp.asarray(counts, jnp.float32), jnp.asarray(sums, jnp.float32), jnp.ones(())
    )


def test_choice_is_brute_force_s():
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.integers(0, 6, (3, 2)).astype(float)
        counts[0] = 0, 5  # alpha = 1
        table, depth = np.array([2, 3, 5]), 8
        seen = statistics(counts, counts * 0.5)
        best, drafts, tau = del_exit.choose(seen, jnp.asarray(table), depth, 6)
        value = {}
        for e in range(3):
            total = counts[e].sum()
            alpha = counts[e, 1] / total if total else 0.5
            for g in range(7):
                tokens = sum(alpha**i for i in range(g + 1))
                value[e, g] = tokens / (depth + g * table[e])
        assert value[int(best), int(drafts)] >= max(value.values()) - 1e-6
        assert float(tau) == (0.5 if counts[int(best)].all() else 0.0)


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
    """With no decay the counts are those of every committed token's position, and of
    the prompt's last four; rejected drafts leave no trace."""
    run = kit.Run(METHOD, lm=LM)
    state = run.advance(run.start())
    texts = kit.texts(state)
    for prompt, text in zip(kit.PROMPTS, texts):
        assert text == kit.greedy_by_hand(LM.params, prompt, kit.NEW)
    rows = zip(kit.PROMPTS, texts)
    counts = sum(expected(p, t, 4) for p, t in rows)
    np.testing.assert_array_equal(state.drafter.shared.counts, counts)
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
    counts = sum(expected(p, t, 4) for p, t in zip(kit.PROMPTS, kit.texts(state)))
    assert not np.array_equal(state.drafter.shared.counts, counts)


def test_bad_arguments():
    with pytest.raises(MethodError, match=r"exits=\(4,\)"):
        del_exit.drafter(FUNCTIONS, exits=(4,))
    with pytest.raises(MethodError, match="decay=2"):
        del_exit.drafter(FUNCTIONS, decay=2.0)
