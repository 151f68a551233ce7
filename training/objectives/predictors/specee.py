"""SpecEE: train predictors of the layer after which the target's token is settled.

Xu et al., *SpecEE: Accelerating Large Language Model Inference with Speculative Early
Exiting*, 2025, arXiv 2504.08850. With f_{t,l} the features of
`models/predictors/exit_predictor.py` of the k tokens that EAGLE's layer proposes for
the place after x_t, c_l the prediction from them at layer l,

    y_{t,l} = 1[argmax of the logits after l = argmax of the target's logits]
    L = mean over t, l of -[y log c + (1 - y) log(1 - c)]

The target and EAGLE's layer are frozen. In decoding, s' of the features is that of the
last layer whose predictor ran, and which layers those are changes with the text. In
training each layer's predictor runs with probability `asked` at every place. The loss
is over all layers, whether their predictors ran or not.

Deviations from the paper: it collects features first and trains on them for 100 epochs;
here every text is read once, with the target beside the predictors. A label costs a
product with the whole head: of an 8B target's 31 layers twice its forward pass.

Metrics: `right`, the mean y; `hit`, how often c > 1/2 equals y; `stopped`, the share of
places where some predictor stops and its layer's token is among the candidates; `kept`,
how often the first such token is the target's.
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
from models.heads import eagle
from models.predictors import exit_predictor
from models.transformer import sequence_forward
from training.loop.train_step import Objective
from training.teacher.outputs import NORM, ahead, by_part, mean, predicted


@struct.dataclass
class Answers:
    """The layers' features and likeliest tokens on a batch. Nothing has a gradient."""

    features: Array  # float32[B, T, L - 1, 3k]
    right: Array  # float32[B, T, L - 1]: y
    candidates: Array  # int32[B, T, k]: of the token after t
    expected: Array  # bool[B, T, L - 1]: the layer's token is among the candidates
    weights: Array  # float32[B, T]: 1 where there are candidates and a next token


def answers(
    target: Any,
    candidates: int = 4,
    asked: float = 1.0,
    seed: int = 0,
    part: int = 0,
) -> Callable[[Any, dict[str, Array]], Answers]:
    """Build `fit`'s `target`, which runs the layers: `(frozen, batch) -> Answers`.

    `frozen` is {"target": params, "heads": params of EAGLE's layer}.

    Args:
        target: the target's model.
        candidates: k, tokens that EAGLE's layer proposes.
        asked: probability with which a layer's predictor runs, in (0, 1].
        seed: of those choices.
        part: places whose logits exist at a time; 0: all.
    """
    if not 0 < asked <= 1:
        raise ConfigError(f"asked={asked}: use a probability, above 0 to 1")
    depth = target.config.n_layers
    inner = tuple(range(1, depth))

    def run(frozen: Any, batch: dict[str, Array]) -> Answers:
        params, draft = lax.stop_gradient((frozen["target"], frozen["heads"]))
        tokens, segments = batch["tokens"], batch.get("segments")
        taps: tuple = (*inner, NORM)
        out = transformer.forward(target.config, params, tokens, segments, taps=taps)
        normed = out.hidden[NORM]
        place = sequence_forward.places(tokens.shape, segments)
        following = ahead(target.embed(params, tokens, place), 1)
        # The guess at t is of the token after t + 1: shift it to t + 1.
        guess = eagle.sequence(draft, target.config, following, normed, segments)
        guess = jnp.roll(guess, 1, 1)
        states = jnp.stack([out.hidden[i] for i in inner], 2)
        row = batch.get("row", jnp.arange(tokens.shape[0], dtype=jnp.int32))
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(
            jax.random.key(seed), row
        )
        shape = (tokens.shape[1], depth - 1)
        coins = jax.vmap(lambda key: jax.random.uniform(key, shape))(keys) < asked

        def layer_answers(
            states: Array, last: Array, guess: Array, coins: Array
        ) -> tuple:
            final = vocab.argmax(target.head(params, last))
            drawn = vocab.top_k(target.head(params, guess), candidates)[1]
            before = jnp.zeros(drawn.shape, jnp.float32)
            layers = []
            for i in range(depth - 1):
                logits = target.head(params, target.norm(params, states[:, i]))
                z = jnp.take_along_axis(logits, drawn, -1)
                inputs, probs = exit_predictor.features(z, before)
                best = vocab.argmax(logits)
                same, among = best == final, (best[:, None] == drawn).any(-1)
                layers.append((inputs, same.astype(jnp.float32), among))
                before = jnp.where(coins[:, i, None], probs, before)
            return drawn, *jax.tree.map(lambda *x: jnp.stack(x, 1), *layers)

        drawn, features, right, among = by_part(
            layer_answers, part, states, normed, guess, coins
        )
        result = Answers(features, right, drawn, among, counted(batch))
        return lax.stop_gradient(result)

    return run


def counted(batch: dict[str, Array]) -> Array:
    """Mark float32[B, T]: 1 where a next token may be predicted and is drafted."""
    valid = predicted(batch, 1).at[:, 0].set(0.0)
    if "segments" in batch:
        segments = batch["segments"]
        valid = valid * (segments == jnp.roll(segments, 1, 1))
    return valid


def objective() -> Objective:
    """Build the loss; the params are those of `models/predictors/exit_predictor.py`."""

    def loss(params: Any, batch: dict[str, Array], batch_answers: Answers) -> tuple:
        odds = log_odds(params, batch_answers.features)
        right, weights = batch_answers.right, batch_answers.weights
        each = jax.nn.softplus(odds) - right * odds
        stop, first = first_stops(odds > 0, batch_answers)
        correct = jnp.take_along_axis(right, first[..., None], -1)[..., 0]
        metrics = {
            "right": mean(right.mean(-1), weights),
            "hit": mean(((odds > 0) == (right > 0.5)).mean(-1), weights),
            "stopped": mean(stop, weights),
            "kept": mean(correct, weights * stop),
        }
        return mean(each.mean(-1), weights), metrics

    def quantity(params: Any) -> str:
        return "mean over layers, nats a token"

    return Objective(loss, lambda batch: counted(batch).sum(), quantity=quantity)


def log_odds(params: Any, features: Array) -> Array:
    """Compute the log odds float32[..., L - 1] of every layer's predictor."""
    layers = range(features.shape[-2])
    return jnp.stack(
        [exit_predictor.log_odds(params, i, features[..., i, :]) for i in layers], -1
    )


def first_stops(sure: Array, found: Answers) -> tuple[Array, Array]:
    """Find the first layer of `sure` bool[..., L - 1] whose token is a candidate.

    Every layer's predictor is taken to run.

    Returns:
        float32[...], 1 where there is such a layer.
        int32[...], that layer, from 0.
    """
    would = sure & found.expected
    return would.any(-1).astype(jnp.float32), jnp.argmax(would, -1).astype(jnp.int32)
