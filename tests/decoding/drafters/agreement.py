"""Heads in the decode loop against the same heads over whole texts, as in training."""

import functools
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from decoding import Method, Spec, base, compose
from decoding.loops import engines
from models import transformer
from training.teacher import outputs

VOCAB, NEW, SIZE, ROUNDS = 48, 30, 64, 4
PROMPTS = ([5], [3, 9, 4, 7, 1, 2], [int(t) for t in range(20, 35)])


@functools.cache
def target(layers: int = 2):
    """A random transformer without an EOS."""
    config = transformer.Config(
        vocab_size=VOCAB,
        d_model=32,
        n_layers=layers,
        n_heads=4,
        n_kv_heads=2,
        head_dim=8,
        d_ff=48,
        max_positions=256,
        ropes=(transformer.rope(8, 10000.0),),
    )
    model = transformer.transformer(config)
    params = jax.jit(model.init)(jax.random.key(3))
    return types.SimpleNamespace(
        model=model, params=params, tokenizer=None, config=config
    )


def stirred(params, scale: float = 0.05, seed: int = 11):
    """The params with noise: neither zero nor equal where training began so."""
    rng = np.random.default_rng(seed)

    def stir(x):
        if x.dtype != jnp.float32:
            return x
        return jnp.asarray(x + scale * rng.normal(size=x.shape), jnp.float32)

    return jax.tree.map(stir, jax.tree.map(np.asarray, params))


class Loop:
    """A drafter with heads in the loop, whose greedy chains are accepted by lot.

    `late`: rounds in which nothing is drafted yet. The prompts are read once; rounds
    are compiled anew by each user, with whatever a test has planted by then.
    """

    def __init__(
        self, name: str, objective, heads, length: int, late: int = 0, **arguments
    ):
        lm = target()
        self.objective, self.heads = objective, heads
        self.length, self.late = length, late
        spec, chain = Spec(name, **arguments), None
        if "topology" in spec.card.needs:
            chain = Spec("topologies/chain", length=length, draw=base.POINT)
        taken = Spec("verifiers/simulated", rate=0.6)  # drafts of random heads are bad
        method = Method(spec, taken, chain)
        self.parts = compose.compose(method, lm, 0.0, {"heads": heads})
        self.params = {"target": lm.params, "heads": heads}
        limits = [len(p) + NEW for p in PROMPTS]
        keys = engines.request_keys(0, len(PROMPTS), 1)
        self.begun = engines.Engine(self.parts.program).start(
            self.params, self.parts, list(PROMPTS), limits, keys, SIZE
        )

    def rounds(self, count: int) -> Iterator[tuple[list[list[int]], base.Outcome, Any]]:
        """Of each round the texts before it, its outcome, and the state after it."""
        engine = engines.Engine(self.parts.program)
        state = jax.tree.map(jnp.copy, self.begun)
        for _ in range(count):
            rows = zip(np.asarray(state.tokens), np.asarray(state.length))
            texts = [t[:n].tolist() for t, n in rows]
            state, outcome = engine.step(self.params, state)
            yield texts, outcome, state

    def agrees(self) -> bool:
        """Whether the chains, round after round, are those over whole texts.

        Everything that a head keeps from round to round is in it: the state it starts
        from, its cache, positions, and which of the drafts were accepted. Row 0 has a
        prompt of one token, which gives nothing to draft from before the first round.
        """
        same, accepted = [], 0
        for number, (texts, outcome, _) in enumerate(self.rounds(ROUNDS + 1)):
            first = 0 if number else 1
            nodes = np.asarray(outcome.tree.tokens)
            chains = nodes[first:, 1 : 1 + self.length]
            found = over_texts(self.objective, self.heads, texts[first:], chains)
            same.append(number < self.late or (found == chains).all())
            accepted += np.asarray(outcome.verdict.count).sum()
        assert accepted > 0, "no draft was accepted: this would show little"
        return bool(np.all(same))


def over_texts(objective, heads, texts: list, chains: np.ndarray) -> np.ndarray:
    """The likeliest tokens of every depth after `texts`, along `chains`, in one pass.

    What stands behind a chain does not matter: the heads and the target are causal.
    """
    # As many rows where the first has nothing to draft from: one program for all.
    rows = np.zeros((max(len(texts), len(PROMPTS)), SIZE), np.int32)
    for row, text, chain in zip(rows, texts, chains):
        row[: len(text) + len(chain)] = [*text, *chain]
    found = _likeliest(objective, chains.shape[1])(heads, rows)
    at = np.asarray([len(text) - 2 for text in texts])
    return np.asarray(found)[:, np.arange(len(texts)), at].T


@functools.cache
def _likeliest(objective, depth: int):
    lm = target()
    taps = objective.objective(lm.model).taps
    read = outputs.teacher(lm.model, taps)

    @jax.jit
    def run(heads, tokens):
        batch = {"tokens": tokens}
        teacher = read(lm.params, batch)
        found = objective.guesses(heads, lm.model, batch, teacher, depth)
        return jnp.stack([draft(x).argmax(-1) for x, draft in found])

    return run
