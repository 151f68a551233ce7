"""Heads in the decode loop against the same heads over whole texts, as in training."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np

from decoding import Method, Spec, base, compose, decoder, loop, noise
from models import transformer
from training import teacher as teachers

VOCAB, NEW, SIZE, ROUNDS = 48, 30, 64, 4
PROMPTS = ([5], [3, 9, 4, 7, 1, 2], [int(t) for t in range(20, 35)])


@functools.cache
def target():
    """A random transformer of four layers without an EOS."""
    config = transformer.Config(
        vocab_size=VOCAB,
        d_model=32,
        n_layers=4,
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
    """A drafter with heads in the loop, whose greedy chains are accepted by lot."""

    def __init__(self, name: str, heads, length: int, **arguments):
        lm, self.length = target(), length
        chain = Spec("topologies/chain", length=length, draw=base.POINT)
        taken = Spec("verifiers/simulated", rate=0.6)  # drafts of random heads are bad
        method = Method(Spec(name, **arguments), taken, chain)
        parts = compose.compose(method, lm, 0.0, {"heads": heads})
        self.program = parts.program
        self.engine = decoder.Decoder(parts.program)
        self.params = {"target": lm.params, "heads": heads}
        limits = [len(p) + NEW for p in PROMPTS]
        keys = decoder.request_keys(0, len(PROMPTS), 1)

        def draft(params, state):
            role = noise.for_role(state.key, noise.DRAFT, state.length)
            ctx = loop.context(self.program, params, state)
            return self.program.drafter.draft(role, ctx, state.drafter)[0].tokens

        self.draft = jax.jit(draft)
        self.state = self.engine.start(
            self.params, parts, list(PROMPTS), limits, keys, SIZE
        )

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.state, _ = self.engine.step(self.params, self.state)

    def chains(self) -> tuple[np.ndarray, list[list[int]]]:
        """What is drafted now, int32[B, length], and the committed texts."""
        drawn = self.draft(self.params, self.state)
        rows = zip(np.asarray(self.state.tokens), np.asarray(self.state.length))
        chains = np.asarray(drawn)[:, 1 : 1 + self.length]
        return chains, [t[:n].tolist() for t, n in rows]


def over_texts(objective, heads, texts: list, chains: np.ndarray) -> np.ndarray:
    """The likeliest tokens of every depth after `texts`, along `chains`, in one pass.

    What stands behind a chain does not matter: the heads and the target are causal.
    """
    rows = np.zeros((len(texts), SIZE), np.int32)
    for row, text, chain in zip(rows, texts, chains):
        row[: len(text) + len(chain)] = [*text, *chain]
    found = _likeliest(objective, chains.shape[1])(heads, rows)
    at = np.asarray([len(text) - 2 for text in texts])
    return np.asarray(found)[:, np.arange(len(texts)), at].T


@functools.cache
def _likeliest(objective, depth: int):
    lm = target()
    taps = objective.objective(lm.model).taps
    read = teachers.teacher(lm.model, taps)

    @jax.jit
    def run(heads, tokens):
        batch = {"tokens": tokens}
        teacher = read(lm.params, batch)
        found = objective.guesses(heads, lm.model, batch, teacher, depth)
        return jnp.stack([draft(x).argmax(-1) for x, draft in found])

    return run


def agree(name: str, objective, heads, length: int, late: int = 0, **arguments) -> bool:
    """Whether chains of the loop, round after round, are those over whole texts.

    `late`: rounds in which nothing is drafted yet.

    Everything that a head keeps from round to round is in it: the state it starts from,
    its cache, positions, and which of the drafts were accepted. Row 0 has a prompt of
    one token, which gives nothing to draft from before the first round.
    """
    run = Loop(name, heads, length, **arguments)
    same, before = [], np.asarray(run.state.length)
    for number in range(ROUNDS + 1):
        chains, texts = run.chains()
        first = 0 if number else 1
        found = over_texts(objective, heads, texts[first:], chains[first:])
        same.append(number < late or (found == chains[first:]).all())
        run.rounds(1)
    accepted = np.asarray(run.state.length) - before - (ROUNDS + 1)
    assert accepted.sum() > 0, "no draft was accepted: this would show little"
    return bool(np.all(same))
