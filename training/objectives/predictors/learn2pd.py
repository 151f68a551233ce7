"""Learn2PD: log which guesses are final along a model's own decodes, and fit a filter.

Bao et al., *Learning to Parallel: Accelerating Diffusion Large Language Models via
Learnable Parallel Decoding*, 2025, arXiv 2509.25188
(`generate_training_data.py` of the official repository). The reference is the model's
greedy text, one token a forward. An oracle then decodes anew and commits, at each
forward, every guess of the block that equals the reference. Each forward is a case: the
confidences of the block, and which guesses equal the reference. The oracle's forwards
are the fewest that any filter needs for that text.

Deviations: where no guess is right, the most confident position gets the reference's
token (the official code fills the block once its guesses do not change). The loss is
over open positions; known ones have confidence 1, as in decoding.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import decoding
from decoding import Method, Spec
from models.errors import ConfigError, DataError
from models.predictors import unmask_filter
from training.objectives.language_models import masked_diffusion

REFERENCE = Method(
    schedule=(Spec("diffusion/llada"),),
    policy=Spec("caches/recompute", visibility="bidirectional"),
)


class Cases(NamedTuple):
    """Forwards of the oracle, one a row."""

    conf: np.ndarray  # float32[n, W]: 1 where a token is known
    final: np.ndarray  # bool[n, W]: the guess is the reference's
    open: np.ndarray  # bool[n, W]: what counts
    calls: int  # of the oracle
    tokens: int  # that it wrote


def cases(
    lm: Any,
    prompts: Sequence[Sequence[int]],
    new_tokens: int = 64,
    block: int = 32,
    batch: int = 16,
) -> Cases:
    """Decode references, and replay them with the oracle.

    Args:
        lm: a diffusion model with bidirectional attention.
        prompts: token ids.
        new_tokens: of a text.
        block: W, positions of a block.
        batch: texts at once.

    Raises:
        ConfigError: another model.
        DataError: a count below 1.
    """
    if "bidirectional" not in lm.config.visibility or lm.config.mask_token is None:
        raise ConfigError(
            f"{lm} was trained for {lm.config.visibility} attention: a filter is "
            "trained on a diffusion model with 'bidirectional'"
        )
    if not prompts or min(new_tokens, block, batch) < 1:
        raise DataError(
            f"{len(prompts)} prompts, new_tokens={new_tokens}, block={block}, "
            f"batch={batch}: use at least 1 of each"
        )
    rows = [[int(t) for t in prompt] for prompt in prompts]
    parts = []
    for first in range(0, len(rows), batch):
        part = rows[first : first + batch]
        out = decoding.generate(lm, part, REFERENCE, max_new_tokens=new_tokens)
        texts = [list(text) for text in out.tokens]
        parts.append(replayed(lm, part, texts, new_tokens, block))
    return Cases(
        np.concatenate([part.conf for part in parts]),
        np.concatenate([part.final for part in parts]),
        np.concatenate([part.open for part in parts]),
        sum(part.calls for part in parts),
        sum(part.tokens for part in parts),
    )


def replayed(
    lm: Any,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    new_tokens: int,
    block: int = 32,
) -> Cases:
    """Decode texts again with the oracle, all rows together."""
    config = lm.config
    starts = np.array([len(prompt) for prompt in prompts])
    limits, ends = starts + new_tokens, starts + [len(text) for text in texts]
    place = np.arange(limits.max())
    reference = np.zeros((len(prompts), len(place)), np.int32)
    for row, prompt, text in zip(reference, prompts, texts):
        row[: len(prompt) + len(text)] = [*prompt, *text]
    known = place < starts[:, None]
    behind = jnp.asarray(place >= limits[:, None], jnp.int32)

    @jax.jit
    def guesses(params: Any, tokens: Any) -> Any:
        law = masked_diffusion.logits(config, params, tokens, segments=behind)
        return law.argmax(-1), jax.nn.softmax(law, -1).max(-1)

    found: list[list[np.ndarray]] = [[], [], []]
    lo, calls = starts.copy(), 0
    while not (done := lo >= ends).all():
        tokens = np.where(known, reference, config.mask_token).astype(np.int32)
        guess, conf = map(np.asarray, guesses(lm.params, jnp.asarray(tokens)))
        for i in np.flatnonzero(~done):
            at = np.arange(lo[i], min(lo[i] + block, limits[i]))
            is_open = ~known[i, at] & (at < ends[i])
            final = (guess[i, at] == reference[i, at]) & is_open
            sure = np.where(known[i, at], 1.0, conf[i, at])
            pad = (0, block - len(at))
            found[0].append(np.pad(sure, pad, constant_values=1).astype(np.float32))
            found[1].append(np.pad(final, pad))
            found[2].append(np.pad(is_open, pad))
            if not final.any():
                final[np.where(is_open, sure, -1).argmax()] = True
            known[i, at[final]] = True
            calls += 1
            if (known[i, at] | (at >= ends[i])).all():
                lo[i] = at[-1] + 1
    conf, right, counts = map(np.stack, found)
    return Cases(conf, right, counts, calls, int((ends - starts).sum()))


def bce(params: Any, conf: Any, final: Any, is_open: Any) -> Any:
    """Compute the mean binary cross-entropy of open positions, in nats."""
    logits = unmask_filter.log_odds(params, conf)
    nats = optax.sigmoid_binary_cross_entropy(logits, final.astype(jnp.float32))
    return jnp.where(is_open, nats, 0.0).sum() / jnp.maximum(is_open.sum(), 1)


def fit(
    params: Any, data: Cases, rate: float = 3e-3, steps: int = 4000
) -> tuple[Any, np.ndarray]:
    """Fit a filter to all cases at once, with AdamW.

    Args:
        params: of `unmask_filter.init`.
        data: the cases.
        rate: learning rate.
        steps: updates.

    Returns:
        The params, and the loss float32[steps] before each update.

    Raises:
        DataError: all guesses are final, or none is.
    """
    share = data.final[data.open].mean()
    if not 0 < share < 1:
        raise DataError(
            f"{100 * share:.0f} % of {data.open.sum()} guesses are final, but a filter "
            "needs both kinds: use more prompts"
        )
    optimizer = optax.adamw(rate)
    columns = tuple(map(jnp.asarray, data[:3]))

    def update(carry: tuple, _: Any) -> tuple:
        params, state = carry
        loss, grads = jax.value_and_grad(bce)(params, *columns)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), loss

    run = jax.jit(lambda carry: jax.lax.scan(update, carry, None, steps))
    (params, _), losses = run((params, optimizer.init(params)))
    return params, np.asarray(losses)


def judged(params: Any, data: Cases, threshold: float) -> dict[str, float]:
    """Return a filter's `recall` of final guesses, and the share `wrong` of its own."""
    chance = jax.nn.sigmoid(unmask_filter.log_odds(params, jnp.asarray(data.conf)))
    chosen = np.asarray(chance > threshold) & data.open
    final = data.final & data.open
    return {
        "recall": float((chosen & final).sum() / max(final.sum(), 1)),
        "wrong": float((chosen & ~final).sum() / max(chosen.sum(), 1)),
    }
