"""A transformer of two layers, its weights set by hand, that retrieves facts exactly.

A fact is a name, the names of its value, and END. After `.. name ASK` the model writes
the value and END, wherever the fact stands in a text of any length. All tokens but ASK
have random codes c in {-1, 1}^64, of which two agree by half at most (|c . c'| <= 32).

    layer 0  attends to the token before: score(Δ) = sum_i cos(w_i (Δ - 1)), random
             frequencies w_i, and copies that token's code
    layer 1  (frequency 0) matches codes: score = 240 c_p . b_j / 64 + 40 b_p . b_j / 64
             - 80 [t_j = ASK], c_p the code of the token, b_j of the one before slot j,
             and copies the code c_j

ASK has no code of its own, so behind it the second term decides, and the slot after the
asked name is found. Behind a token of the value the first term decides: it is the slot
after that token. So the slots that an answer needs are known (`Case.needed`), and what
a cache policy must keep can be checked slot by slot.

The tokens of a text around its facts have codes too, but no fact holds one. Every state
has the same norm, so the norms change nothing. The feed-forwards are zero.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

import models
from models import transformer
from models.errors import ConfigError, PromptError

END, ASK = 0, 1  # tokens
NAMES = 256  # ids from here on are of names, those below of other text
VOCAB = 512
CODE = 64  # entries of a code
AGREE = 32  # most that two codes agree, |c . c'|
# Places in the state: a token's code, its flag if it is ASK, and one; the code and the
# flag of the token before; the code that is written.
OWN, IS_ASK, ONE, BEFORE, WAS_ASK, WRITTEN = 0, 64, 65, 66, 130, 131
WIDTH = 196
HEAD_DIM = 128
FOLLOWS, NAMED, NO_ASK = 240.0, 40.0, 80.0  # layer 1's scores
SHARE = 1e-9  # most that layer 0 attends to other tokens than the one before, in sum
LOGIT = 40.0  # of the token whose code is written


@functools.cache
def codes() -> np.ndarray:
    """Draw the codes float32[VOCAB, CODE]; that of ASK is zero."""
    rng, signs = np.random.default_rng(0), np.array([-1, 1], np.float32)
    rows = np.zeros((VOCAB, CODE), np.float32)
    for token in [t for t in range(VOCAB) if t != ASK]:
        row = rng.choice(signs, CODE)
        while np.abs(rows[:token] @ row).max(initial=0) > AGREE:
            row = rng.choice(signs, CODE)
        rows[token] = row
    return rows


@functools.cache
def frequencies() -> tuple[float, ...]:
    """Draw layer 0's frequencies w, one for each pair of dimensions."""
    return tuple(np.random.default_rng(1).uniform(0.1, np.pi, HEAD_DIM // 2).tolist())


def sharpness(max_positions: int) -> float:
    """Return the factor of layer 0's scores with which others weigh `SHARE` in all."""
    distance = np.arange(max_positions + 1)
    distance = distance[distance != 1] - 1
    scores = np.cos(np.outer(distance, frequencies())).sum(-1)
    gap = HEAD_DIM // 2 - scores.max()
    return float(np.log(max_positions / SHARE) / gap)


def load(max_positions: int = 16384, **options: Any) -> models.Loaded:
    """Build the model in float32; it has no tokenizer.

    Args:
        max_positions: tokens of the longest text, at least 2.
        options: `kernel` and `cache` of `transformer.transformer`.

    Raises:
        ConfigError: a text of under two tokens.
    """
    if max_positions < 2:
        raise ConfigError(f"max_positions={max_positions}: use at least 2")
    zeros = transformer.Rope((0.0,) * (HEAD_DIM // 2))
    config = transformer.Config(
        vocab_size=VOCAB,
        d_model=WIDTH,
        n_layers=2,
        n_heads=1,
        n_kv_heads=1,
        head_dim=HEAD_DIM,
        d_ff=8,
        max_positions=max_positions,
        ropes=(transformer.Rope(frequencies()), zeros),
        rope_of=(0, 1),
        attention_scale=1.0,
        tied=False,
        eos=(END,),
    )
    model = transformer.transformer(config, jnp.float32, **options)
    return models.Loaded(model, _params(config))


def _params(config: transformer.Config) -> dict:
    """Set the weights."""
    table, head = np.zeros((2, VOCAB, WIDTH), np.float32)
    table[:, OWN : OWN + CODE] = codes()
    table[ASK, IS_ASK] = CODE**0.5  # so that all tokens have the same norm
    table[:, ONE] = 1.0
    head[:, WRITTEN : WRITTEN + CODE] = codes() * (LOGIT / CODE)
    before, match = np.zeros((2, WIDTH, 3, HEAD_DIM), np.float32)  # query, key, value
    first, second = np.zeros((2, HEAD_DIM, WIDTH), np.float32)
    here, pairs = np.arange(CODE), HEAD_DIM // 2
    turn, scale = np.asarray(frequencies()), sharpness(config.max_positions) ** 0.5
    before[ONE, 0, :pairs] = scale * np.cos(turn)
    before[ONE, 0, pairs:] = -scale * np.sin(turn)
    before[ONE, 1, :pairs] = scale
    before[OWN + here, 2, here] = before[IS_ASK, 2, CODE] = 1.0
    first[here, BEFORE + here] = first[CODE, WAS_ASK] = 1.0
    match[OWN + here, 0, here] = FOLLOWS / CODE
    match[BEFORE + here, 0, here] = NAMED / CODE
    match[ONE, 0, CODE] = -NO_ASK
    match[BEFORE + here, 1, here] = 1.0
    match[IS_ASK, 1, CODE] = CODE**-0.5
    match[OWN + here, 2, here] = 1.0
    second[here, WRITTEN + here] = 1.0
    layers = (before, first, CODE + 1), (match, second, 2 * CODE + 1)
    params: dict[str, Any] = {
        "embedding": {
            "tokens": jnp.asarray(table),
            "head": jnp.asarray(head),
            "norm": {"scale": _norm(config, 3 * CODE + 1)},
        }
    }
    for i, (qkv, out, squares) in enumerate(layers):
        params[f"layer_{i}"] = {
            "attention_norm": {"scale": _norm(config, squares)},
            "attention": {"qkv": jnp.asarray(qkv)[:, None], "out": jnp.asarray(out)},
            "mlp_norm": {"scale": _norm(config, squares)},
            "mlp": {
                "up": jnp.zeros((WIDTH, 2, config.d_ff)),
                "down": jnp.zeros((config.d_ff, WIDTH)),
            },
        }
    return params


def _norm(config: transformer.Config, squares: float) -> jnp.ndarray:
    """Return the scale that leaves a state of this sum of squares as it is."""
    scale = np.sqrt(squares / WIDTH + config.norm_eps)
    return jnp.full((WIDTH,), scale, jnp.float32)


@dataclass(frozen=True)
class Case:
    """A text with facts, the question about one of them, and its answer.

    `needed` are the slots of layer 1 that the answer reads, in its order: those of the
    asked fact's value and of its END. Of layer 0 a generated token reads the slot
    before it alone.
    """

    prompt: tuple[int, ...]
    context: int  # tokens before the question
    expected: tuple[int, ...]  # the value and END
    needed: tuple[int, ...]


def case(
    length: int,
    facts: int = 32,
    value: int = 3,
    seed: int = 0,
    asked: int | None = None,
) -> Case:
    """Draw a text of `length` tokens, which the question ends.

    Args:
        length: tokens of the prompt.
        facts: facts in it, one of which is asked for.
        value: names of a value.
        seed: of the names, the places and the text between them.
        asked: the place of that fact among all, from 0; None: a random one.

    Raises:
        PromptError: the facts do not fit, or need more names than there are.
    """
    names, size = facts * (1 + value), value + 2
    context = length - 2
    if min(facts, value) < 1 or names > VOCAB - NAMES or facts * size >= context:
        raise PromptError(
            f"{facts} facts of {size} tokens, with {names} names, in {length} tokens: "
            f"use at most {VOCAB - NAMES} names, and more tokens than the facts have"
        )
    if asked is not None and not 0 <= asked < facts:
        raise PromptError(f"asked={asked}: use 0 to {facts - 1}")
    rng = np.random.default_rng([seed, length, facts, value])
    text = rng.integers(ASK + 1, NAMES, context)
    drawn = rng.permutation(np.arange(NAMES, VOCAB))[:names].reshape(facts, -1)
    # Places of blocks among the other tokens, of which one stands before them all.
    spare = context - facts * size
    gaps = 1 + np.sort(rng.integers(0, spare, facts))
    starts = gaps + size * np.arange(facts)
    for start, fact in zip(starts, drawn):
        text[start : start + size] = [*fact, END]
    which = int(rng.integers(facts)) if asked is None else asked
    key, *rest = drawn[which].tolist()
    first = int(starts[which]) + 1
    needed = tuple(range(first, first + value + 1))
    return Case((*text.tolist(), key, ASK), context, (*rest, END), needed)


def attention(lm: models.Loaded, tokens: Any, layer: int = 1) -> np.ndarray:
    """Compute what the last of `tokens` attends to in a layer, float64[T] of slots."""
    config, weights = lm.config, lm.params[f"layer_{layer}"]
    ids = jnp.asarray([tokens], jnp.int32)
    taps = (layer,)
    out = transformer.forward(config, lm.params, ids, taps=taps)
    x = np.asarray(out.hidden[layer][0], np.float64)
    x /= np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps)
    x *= np.asarray(weights["attention_norm"]["scale"])
    query, key, _ = np.asarray(weights["attention"]["qkv"])[:, 0].swapaxes(0, 1)
    turn = config.ropes[config.rope(layer)].frequencies
    q = _turned((x[-1:] @ query), np.asarray([len(x) - 1]), turn)
    scores = (_turned(x @ key, np.arange(len(x)), turn) @ q[0]).astype(np.float64)
    weight = np.exp(scores - scores.max())
    return weight / weight.sum()


def _turned(x: np.ndarray, positions: np.ndarray, frequencies: Any) -> np.ndarray:
    angle = np.outer(positions, frequencies)
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
