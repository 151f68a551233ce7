"""dParallel: train a diffusion model to be certain of many masks of its own texts.

Chen et al., *dParallel: Learnable Parallel Decoding for dLLMs*, 2025, arXiv 2509.26488,
section 4.2 (`llada_train.py` of the official repository). A row is a prompt and the
model's own answer. One block of the answer is active; what lies behind it is masked.
Each of its tokens is masked in one of two views, with probability 1/2 in either. Over
the masked tokens of the block, for both views,

    loss = mean CE + weight * mean over right ones of H(softmax(logits / T))

where a token is right if it is the likeliest. Wrong ones get no gradient from the
entropy H. `weight=0` is plain training on the model's own answers.

Deviations: the mask's own logit is left out of the softmax; the active block is drawn
for each row, from blocks counted from the answer's first token, where the official code
overwrites all rows but a batch's last. Means are over both views of a batch together.
The paper trains low-rank changes of the weights; here the params are what is given.

Metrics: `nats`, the mean CE; `entropy`, the mean H of the right ones; `right`, their
share of the masked tokens.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from models import transformer
from models.errors import ConfigError
from training.loop.train_step import Objective
from training.objectives.language_models import masked_diffusion
from training.objectives.language_models.next_token import cross_entropy

BLOCKS, SIDES = 10, 11  # what a row's noise is folded with


class Views(NamedTuple):
    """The two views of rows."""

    tokens: Array  # int32[2, B, L]
    masked: Array  # bool[2, B, L]: masks of the active block, which the loss is over


def views(
    tokens: Array, may: Array, row: Array, mask_token: int, block: int, seed: int
) -> Views:
    """Mask both complementary parts of one block of each row, and all behind it.

    Args:
        tokens: int32[B, L].
        may: bool[B, L], the answers' tokens.
        row: int32[B], numbers of the rows.
        mask_token: the mask's id.
        block: tokens of a block.
        seed: of blocks and sides.
    """
    number = jnp.cumsum(may, 1, dtype=jnp.int32) - 1  # of a token in its answer
    blocks = jnp.maximum(-(-may.sum(1, dtype=jnp.int32) // block), 1)

    def drawn(key: Array, blocks: Array) -> Array:
        return jax.random.randint(key, (), 0, blocks)

    active = jax.vmap(drawn)(masked_diffusion.keys(row, seed, BLOCKS), blocks)
    inside = may & (number // block == active[:, None])
    behind = may & (number // block > active[:, None])
    coin = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, tokens.shape[1:]))
    side = coin(masked_diffusion.keys(row, seed, SIDES))
    masked = jnp.stack([inside & side, inside & ~side])
    return Views(jnp.where(masked | behind, mask_token, tokens), masked)


def entropy(logits: Array, temperature: float) -> Array:
    """Compute the entropy of softmax(logits / temperature) in nats, float32[...].

    An outcome of logit -inf has no part in it, nor in its gradient.
    """
    possible = jnp.isfinite(logits)
    logp = jax.nn.log_softmax(logits / temperature, -1)
    return -jnp.where(possible, jnp.exp(logp) * jnp.where(possible, logp, 0), 0).sum(-1)


def terms(
    logits: Array, tokens: Array, masked: Array, temperature: float
) -> tuple[Array, Array, Array]:
    """Return the mean CE, the mean entropy of right tokens, and the share of those.

    Args:
        logits: float32[..., L, V].
        tokens: int32[..., L], the text.
        masked: bool[..., L], the tokens that count.
        temperature: of the entropy.
    """
    count = jnp.maximum(masked.sum(), 1)
    nats = jnp.where(masked, cross_entropy(logits, tokens), 0.0).sum() / count
    right = (logits.argmax(-1) == tokens) & masked
    each = jnp.where(right, entropy(logits, temperature), 0.0)
    return nats, each.sum() / jnp.maximum(right.sum(), 1), right.sum() / count


def objective(
    config: transformer.Config,
    weight: float = 2.0,
    temperature: float = 0.5,
    block: int = 32,
    seed: int = 0,
    remat: bool = False,
) -> Objective:
    """Build the loss; attention is bidirectional, the alignment the model's.

    Batches hold `loss_mask`, which marks the model's own answers, and `row`.

    Args:
        config: the model's.
        weight: of the entropy (the paper's for LLaDA; Dream's is 1).
        temperature: of the entropy.
        block: tokens of a block.
        seed: of blocks and sides.
        remat: whether the backward pass recomputes each layer.

    Raises:
        ConfigError: no mask token, or a number out of its range.
    """
    masked_diffusion.check(config, (1, 1), 1.0)
    assert config.mask_token is not None
    mask_token = config.mask_token
    if weight < 0 or temperature <= 0 or block < 1:
        raise ConfigError(
            f"weight={weight}, temperature={temperature}, block={block}: use a weight "
            "of 0 or more, a temperature above 0 and a block of 1 or more"
        )

    def loss(params: Any, batch: dict[str, Array], target_out: Any) -> tuple:
        tokens, segments = batch["tokens"][:, :-1], batch.get("segments")
        segments = None if segments is None else segments[:, :-1]
        row = batch.get("row", jnp.arange(tokens.shape[0], dtype=jnp.int32))
        may = masked_diffusion.maskable(config, batch)
        both = views(tokens, may, row, mask_token, block, seed)
        twice = lambda x: jnp.concatenate([x, x])
        law = masked_diffusion.logits(
            config,
            params,
            both.tokens.reshape(-1, tokens.shape[1]),
            segments=None if segments is None else twice(segments),
            remat=remat,
        )
        masked = both.masked.reshape(law.shape[:2])
        nats, certainty, right = terms(law, twice(tokens), masked, temperature)
        metrics = {"nats": nats, "entropy": certainty, "right": right}
        return nats + weight * certainty, metrics

    def size(batch: dict[str, Array]) -> Array:
        return masked_diffusion.maskable(config, batch).any(1).sum()

    def quantity(params: Any) -> str:
        return f"mean nats + {weight:g} x entropy of right tokens, a token"

    return Objective(loss, size, quantity=quantity)
