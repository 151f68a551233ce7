"""Masked diffusion: predict the tokens of a text that were replaced by masks.

Nie et al., *Large Language Diffusion Models*, 2025, arXiv 2502.09992, section 2.1. A
row of L tokens has a time t in [0, 1]; each token is masked with probability p:

    p = (1 - eps) t + eps
    loss = 1 / (B L)  sum over masked tokens of  CE / p

With `answers_only` (section 2.3) prompts are never masked and L is each row's number of
answer tokens. Windows are bidirectional, or block-causal with blocks of their own size:
a noised copy then runs beside the clean text (Arriola et al., *Block Diffusion:
Interpolating Between Autoregressive and Diffusion Language Models*, 2025, arXiv
2503.09573, section 3). With `anneal` a token also sees each token behind it with a
probability that rises from 0 to 1 over so many rows: attention mask annealing (Gong et
al., *Scaling Diffusion Language Models via Adaptation from Autoregressive Models*,
2025, arXiv 2410.17891).

Alignment is the model's. `shifted`: the output at position i is of token i + 1, so the
first token is never masked. The first token of a block is predicted from the last one
of the block before, whose own output sees clean tokens alone, as in decoding.

Deviations: times are stratified (rows in sequence have low-discrepancy times, whatever
the size of a batch or its parts), the blocks of a window share its time, the mask's own
logit is left out of the softmax, and no rows are cut to random lengths. The padding
that counts is in the data's `loss_mask`.

Metrics: `masked`, the share of masked tokens; `hits`, how often the likeliest token of
a mask is right.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from models import transformer
from models.errors import ConfigError
from training.loop.train_step import Objective
from training.objectives.language_models.next_token import cross_entropy

GOLDEN = np.uint32(2654435769)  # 2^32 times the golden ratio's fractional part
TIME, MASKS, PAIRS, SIZES = range(4)  # what a row's noise is folded with
SHIFTED = "shifted"


class Noised(NamedTuple):
    """Rows with masks."""

    tokens: Array  # int32[B, L]
    masked: Array  # bool[B, L]
    chance: Array  # float32[B]: p


def times(row: Array, seed: int) -> Array:
    """Return a time of each row, float32[B] in [0, 1).

    Times of n rows in sequence leave no gap that is much wider than 1 / n: multiples of
    the golden ratio from a random beginning.
    """
    key = jax.random.fold_in(jax.random.key(seed), TIME)
    begin = jax.random.bits(key, (), jnp.uint32)
    bits = row.astype(jnp.uint32) * GOLDEN + begin
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def keys(row: Array, seed: int, part: int) -> Array:
    """Return a key of each row for one part of its noise, key[B]."""
    key = jax.random.fold_in(jax.random.key(seed), part)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, row)


def noised(
    tokens: Array, may: Array, chance: Array, row: Array, mask_token: int, seed: int
) -> Noised:
    """Mask each token of `tokens` int32[B, L] that `may` be, with probability p."""
    draw = jax.vmap(lambda key: jax.random.uniform(key, tokens.shape[1:]))
    masked = (draw(keys(row, seed, MASKS)) < chance[:, None]) & may
    return Noised(jnp.where(masked, mask_token, tokens), masked, chance)


def annealed(row: Array, length: int, rows: int, seed: int) -> Array:
    """Return the masks bool[B, L, L] between causal and bidirectional of these rows."""
    share = jnp.minimum(row / rows, 1.0)[:, None, None]
    draw = jax.vmap(lambda key: jax.random.uniform(key, (length, length)))
    behind = draw(keys(row, seed, PAIRS)) < share
    return behind | jnp.tril(jnp.ones((1, length, length), bool))


def sizes(row: Array, blocks: tuple[int, int], seed: int) -> Array:
    """Draw the size of each row's blocks, int32[B], even from `blocks[0]` to [1]."""
    draw = jax.vmap(lambda key: jax.random.randint(key, (), blocks[0], blocks[1] + 1))
    return draw(keys(row, seed, SIZES))


def logits(
    config: transformer.Config,
    params: Any,
    tokens: Array,
    clean: Array | None = None,
    block: Array | int = 0,
    most: int = 0,
    mask: Array | None = None,
    segments: Array | None = None,
    remat: bool = False,
) -> Array:
    """Compute float32[B, L, V]: at position i the law of token i, the mask excluded.

    Of a shifted model the first position has no law, and the second's is repeated.

    Args:
        config: with a `mask_token`.
        params: the model's.
        tokens: int32[B, L], with masks.
        clean: int32[B, L], without them; None: attention is bidirectional.
        block: with `clean`, positions of a block, int32[B] or a number.
        most: no block is larger, which saves work; 0: any size.
        mask: bool[B, L, L] in place of bidirectional attention.
        segments: int32[B, L], keeps packed documents apart.
        remat: whether the backward pass recomputes each layer.
    """
    length, is_shifted = tokens.shape[1], config.alignment == SHIFTED
    run = functools.partial(transformer.forward, config, params, remat=remat)
    if clean is None:
        mask = transformer.bidirectional(length) if mask is None else mask
        out = run(tokens, segments, taps=("norm",), mask=mask)
        hidden = source = out.hidden["norm"]
    else:
        twice = lambda x: None if x is None else jnp.repeat(x, 2, 1)
        out = run(
            jnp.stack([tokens, clean], 2).reshape(len(tokens), -1),
            twice(segments),
            taps=("norm",),
            mask=transformer.noised_beside_clean(length, block),
            positions=twice(transformer.places(tokens.shape, segments)),
            ahead=2 * most or None,
        )
        hidden, source = (out.hidden["norm"][:, i::2] for i in range(2))
    if is_shifted:
        first: Any = 0
        if clean is not None:
            of = jnp.atleast_1d(jnp.asarray(block, jnp.int32))[:, None]
            first = (jnp.arange(length) % of == 0)[..., None]
        before = lambda x: jnp.concatenate([x[:, :1], x[:, :-1]], 1)
        hidden = jnp.where(first, before(source), before(hidden))
    out = transformer.transformer(config).head(params, hidden).astype(jnp.float32)
    return out.at[..., config.mask_token].set(-jnp.inf)


def maskable(config: transformer.Config, batch: dict[str, Array]) -> Array:
    """Return the tokens of a batch that may be masked, bool[B, L], L one less than T.

    The last token of a window is left out, so that lengths are those of next-token
    training. A shifted model needs a token of the same document before.
    """
    tokens, segments = batch["tokens"][:, :-1], batch.get("segments")
    may = jnp.ones(tokens.shape, bool)
    if config.alignment == SHIFTED:
        may = may.at[:, 0].set(False)
        if segments is not None:
            may = may.at[:, 1:].set(segments[:, 1:-1] == segments[:, :-2])
    if "loss_mask" in batch:
        may &= batch["loss_mask"][:, :-1].astype(bool)
    return may


def check(config: transformer.Config, blocks: tuple[int, int], share: float) -> None:
    """Refuse a model or settings that no canvas fits.

    Raises:
        ConfigError: no mask token, a share of windows outside [0, 1], or block sizes
            that are none.
    """
    if config.mask_token is None:
        raise ConfigError(
            "masked diffusion needs a mask token: set Config.mask_token to an id that "
            "no text has"
        )
    if not 0 <= share <= 1:
        raise ConfigError(f"bidirectional={share}: use a share of windows, 0 to 1")
    if share < 1 and not 1 <= blocks[0] <= blocks[1]:
        raise ConfigError(
            f"blocks={blocks}: use a least and a most size of block, 1 or more"
        )


def split(rows: int, share: float) -> int:
    """Return how many rows of a part are bidirectional.

    Raises:
        ConfigError: the share is no whole number of rows.
    """
    count = round(share * rows)
    if abs(count - share * rows) > 1e-6:
        raise ConfigError(
            f"bidirectional={share} of {rows} rows is no whole number: use another "
            "batch or train.rows_at_once"
        )
    return count


def objective(
    config: transformer.Config,
    bidirectional: float = 1.0,
    blocks: tuple[int, int] = (4, 32),
    answers_only: bool = False,
    anneal: int = 0,
    eps: float = 1e-3,
    seed: int = 0,
    remat: bool = False,
) -> Objective:
    """Build the loss in nats a token, a bound in expectation.

    Batches need `row` (`text_corpus.Stream.numbered`), their rows' numbers, for noise
    that depends on nothing else; without it rows are counted from 0.

    Args:
        config: the model's; its `alignment` and `mask_token` are read.
        bidirectional: share of the windows; the others are block-causal. Of the rows
            whose gradients exist at a time it must be a whole number.
        blocks: least and most size of a block-causal window's blocks, drawn per window.
        answers_only: `loss_mask` marks answers: mean over rows of sums / answer length.
        anneal: rows over which bidirectional windows turn from causal; 0: none.
        eps: the least chance of a mask.
        seed: of times, masks and sizes.
        remat: whether the backward pass recomputes each layer.

    Raises:
        ConfigError: see `check`.
    """
    check(config, blocks, bidirectional)
    assert config.mask_token is not None
    mask_token = config.mask_token

    def law(params: Any, batch: dict[str, Array], some: Noised, row: Array) -> Array:
        clean, segments = batch["tokens"][:, :-1], batch.get("segments")
        segments = None if segments is None else segments[:, :-1]
        rows, length = clean.shape
        cut = split(rows, bidirectional)
        part = lambda x, at: None if x is None else x[at]
        parts = []
        for at, is_whole in ((slice(0, cut), True), (slice(cut, rows), False)):
            if at.start == at.stop:
                continue
            beside: dict[str, Any] = {}
            if not is_whole:
                drawn = sizes(row[at], blocks, seed)
                beside = {"clean": clean[at], "block": drawn, "most": blocks[1]}
            elif anneal:
                beside = {"mask": annealed(row[at], length, anneal, seed)}
            about = {"segments": part(segments, at), "remat": remat, **beside}
            parts.append(logits(config, params, some.tokens[at], **about))
        return jnp.concatenate(parts)

    def loss(params: Any, batch: dict[str, Array], target_out: Any) -> tuple:
        clean = batch["tokens"][:, :-1]
        row = batch.get("row", jnp.arange(clean.shape[0], dtype=jnp.int32))
        may = maskable(config, batch)
        chance = (1 - eps) * times(row, seed) + eps
        some = noised(clean, may, chance, row, mask_token, seed)
        found = law(params, batch, some, row)
        nats = jnp.where(some.masked, cross_entropy(found, clean), 0.0)
        each = nats / chance[:, None]
        count = jnp.maximum(may.sum(), 1)
        if answers_only:
            lengths = may.sum(1)
            mean = each.sum(1) / jnp.maximum(lengths, 1)
            total = mean.sum() / jnp.maximum((lengths > 0).sum(), 1)
        else:
            total = each.sum() / count
        hits = (found.argmax(-1) == clean) & some.masked
        metrics = {
            "masked": some.masked.sum() / count,
            "hits": hits.sum() / jnp.maximum(some.masked.sum(), 1),
        }
        return total, metrics

    def weight(batch: dict[str, Array]) -> Array:
        may = maskable(config, batch)
        return may.any(1).sum() if answers_only else may.sum()

    def quantity(params: Any) -> str:
        over = "mean over rows of answers" if answers_only else "mean"
        return f"{over}, nats a token, a bound"

    return Objective(loss, weight, quantity=quantity)
