"""SpecDec++: train a head to predict whether its model's drafts will be accepted.

Huang, Guo, Wang, *SpecDec++: Boosting Speculative Decoding via Adaptive Candidate
Lengths*, 2025, arXiv 2405.19715, section 3.3. With X the target's text, p its
distribution and q the draft's, for every place t

    Y_t ~ q(. | X_<t),   a_t = min(1, p(Y_t | X_<t) / q(Y_t | X_<t))
    Z_t = X_t with probability `mix`, else Y_t
    L   = sum over Z_t = Y_t of -[a_t log f_t + w (1 - a_t) log(1 - f_t)]
          / sum of a_t + w (1 - a_t)

with f_t the head's prediction from the draft's state at Z_t in the text Z, so that it
trains on prefixes with drafts in them. w → `reject`. For one state the least loss is at
a / (a + w (1 - a)), below the true a where w > 1.

p and q are taken at `temperature`; at 0 the draft is its likeliest token and a_t is 1
where that is the target's, else 0. The labels are those of rejection sampling, and so
for `verifiers/rejection`; a coupled verifier accepts less.

Deviations from the paper: none. In gradient accumulation parts weigh by their number of
places, not by their sum of a + w (1 - a).

Metrics: `accepted`, the mean a; `predicted`, the mean f; `brier`, the mean (f - a)^2.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import vocab
from models import transformer
from models.errors import ConfigError
from models.predictors import acceptance_predictor
from training.loop.train_step import Objective
from training.teacher.outputs import NORM, by_part, predicted


@struct.dataclass
class Drafted:
    """The drafts of a batch and their acceptance. Nothing has a gradient."""

    states: Array  # float[B, T, D]: the draft's, normed, along Z
    accepted: Array  # float32[B, T]: a_t of Y_t
    weights: Array  # float32[B, T]: 1 where Z_t = Y_t was drafted and may be predicted


def drafts(
    target: Any,
    draft: Any,
    mix: float = 0.15,
    temperature: float = 1.0,
    seed: int = 0,
    part: int = 0,
) -> Callable[[Any, dict[str, Array]], Drafted]:
    """Build `fit`'s `target`, which drafts along a batch: `(frozen, batch) -> Drafted`.

    `frozen` is {"target": params, "draft": params}; neither is trained. The draws
    depend on `seed` and on each row's number.

    Args:
        target: the target's model.
        draft: the draft's model.
        mix: share of the target's tokens in Z, in [0, 1).
        temperature: of both distributions.
        seed: of the draws.
        part: places whose logits exist at a time; 0: all.

    Raises:
        ConfigError: a setting out of range, or two vocabularies.
    """
    if not 0 <= mix < 1:
        raise ConfigError(f"mix={mix}: use a share of target tokens, 0 to below 1")
    if not temperature >= 0:
        raise ConfigError(f"temperature={temperature}: use a number >= 0")
    if target.config.vocab_size != draft.config.vocab_size:
        raise ConfigError(
            f"the draft has a vocabulary of {draft.config.vocab_size}, the target one "
            f"of {target.config.vocab_size}: use a draft with the target's tokenizer"
        )

    def draw_and_label(p: Array, q: Array, noise: Array) -> tuple[Array, Array]:
        """Draw Y and compute a, from logits [n, V]."""
        if temperature == 0:
            drawn = vocab.argmax(q)
            return drawn, (vocab.argmax(p) == drawn).astype(jnp.float32)
        p, q = p / temperature, q / temperature
        drawn = vocab.gumbel_argmax(q, noise)
        ratio = vocab.token_logprob(p, drawn) - vocab.token_logprob(q, drawn)
        return drawn, jnp.exp(jnp.minimum(ratio, 0.0))

    def run(frozen: Any, batch: dict[str, Array]) -> Drafted:
        frozen = lax.stop_gradient(frozen)
        tokens, segments = batch["tokens"], batch.get("segments")
        shape = tokens.shape
        row = batch.get("row", jnp.arange(shape[0], dtype=jnp.int32))
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(
            jax.random.key(seed), row
        )
        coins = jax.vmap(lambda key: jax.random.uniform(key, shape[1:]))(keys)
        states = {}
        for name, model in (("target", target), ("draft", draft)):
            out = transformer.forward(
                model.config, frozen[name], tokens, segments, taps=(NORM,)
            )
            states[name] = out.hidden[NORM]
        place = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape)

        def label(
            target_state: Array, draft_state: Array, row: Array, place: Array
        ) -> tuple:
            def gumbel(row: Array, place: Array) -> Array:
                key = jax.random.fold_in(jax.random.key(seed + 1), row)
                key = jax.random.fold_in(key, place)
                return vocab.gumbel(key, (draft.config.vocab_size,))

            p = target.head(frozen["target"], target_state)
            q = draft.head(frozen["draft"], draft_state)
            return draw_and_label(p, q, jax.vmap(gumbel)(row, place))

        rows = jnp.broadcast_to(row[:, None], shape)
        drawn, accepted = by_part(
            label, part, states["target"], states["draft"], rows, place
        )
        # The token drawn at t belongs to place t + 1.
        drawn, accepted = jnp.roll(drawn, 1, 1), jnp.roll(accepted, 1, 1)
        may = jnp.roll(predicted(batch, 1), 1, 1) * (place > 0)
        truth = (coins < mix) | (may == 0)
        mixed = jnp.where(truth, tokens, drawn)
        out = transformer.forward(
            draft.config, frozen["draft"], mixed, segments, taps=(NORM,)
        )
        drafted = Drafted(out.hidden[NORM], accepted, may * ~truth)
        return lax.stop_gradient(drafted)

    return run


def bce(yes: Array, no: Array, accepted: Array, reject: float) -> tuple[Array, Array]:
    """Compute the loss of each place from `yes` = log f and `no` = log (1 - f).

    Returns the loss and its norm, both float32[...]; `reject` weighs 1 - `accepted`.
    """
    refused = reject * (1.0 - accepted)
    return -(accepted * yes + refused * no), accepted + refused


def objective(reject: float = 6.0, blocks: int = 3) -> Objective:
    """Build the weighted loss; params are `predictors.acceptance_predictor`'s."""
    if not reject > 0:
        raise ConfigError(f"reject={reject}: use a positive weight")

    def loss(params: Any, batch: dict[str, Array], drafted: Drafted) -> tuple:
        yes, no = acceptance_predictor.log_odds(params, drafted.states, blocks)
        each, norm = bce(yes, no, drafted.accepted, reject)
        weights = drafted.weights
        count = jnp.maximum(weights.sum(), 1.0)
        chance = jnp.exp(yes)
        metrics = {
            "accepted": (weights * drafted.accepted).sum() / count,
            "predicted": (weights * chance).sum() / count,
            "brier": (weights * (chance - drafted.accepted) ** 2).sum() / count,
        }
        total = (weights * norm).sum()
        return (weights * each).sum() / jnp.maximum(total, 1e-6), metrics

    def quantity(params: Any) -> str:
        return f"mean nats a draft, rejections times {reject:g}"

    return Objective(loss, lambda batch: predicted(batch, 1).sum(), quantity=quantity)
