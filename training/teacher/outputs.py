"""Compute a frozen target's states and logits on a batch, in the step or from a cache.

By default the target runs forward beside the head that trains on it, and no hidden
state is written to disk. `training/teacher/sources.py` reads the states from a cache
instead. An objective receives a `Teacher` either way, with the same fields.

A batch holds `tokens` int32[B, T], and optionally:

    loss_mask        bool[B, T]      tokens that may be *predicted* (the assistant's)
    segments         int32[B, T]     document numbers; packed documents do not mix

A batch from a cache also holds:

    hidden/<tap>     [B, T, D]       the target's states
    t_topk_ids       int32[B, T, k]  its k likeliest next tokens, best first
    t_topk_logits    float32[B, T, k]  their logits
    t_logZ           float32[B, T]   the log-sum-exp of all logits
    t_logrest        float32[B, T]   the log-sum-exp of the other V - k logits
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import vocab
from models import base, transformer
from models.errors import ConfigError
from models.transformer import rematerialisation, sequence_forward

NORM = "norm"
TOP = "top"  # in `Teacher.hidden`: the top-k logits, of a cache without all logits
LIKELIEST = ("t_topk_ids", "t_topk_logits", "t_logZ", "t_logrest")


@struct.dataclass
class Teacher:
    """Hold the frozen target's outputs on a batch. Nothing in it has a gradient."""

    params: Any  # the target's
    hidden: base.Hidden  # tap -> [B, T, D]; TOP -> float32[B, T, 2 k + 2]
    model: base.LanguageModel = struct.field(pytree_node=False)
    segments: Array | None = None  # the batch's

    @property
    def law(self) -> Array:
        """Return the next tokens' distributions [B, T, *], as `compared` takes them."""
        return self.hidden[TOP if TOP in self.hidden else NORM]

    def embed(self, tokens: Array) -> Array:
        """Embed `tokens` int32[B, T] by the target's table: [B, T, D]."""
        positions = sequence_forward.places(tokens.shape, self.segments)
        return self.model.embed(self.params, tokens, positions)

    def head(self, normed: Array) -> Array:
        """Compute the target's logits float32[..., V] from final-normed states."""
        return self.model.head(self.params, normed)

    def compared(
        self, law: Array, draft: Array, kept: Array | None = None
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Align the target's logits with a draft's, and compare their arg-maxes.

        With top-k logits alone the outcomes are k tokens and one for all others. KL and
        TV of these coarser distributions are too small, and alpha is too large.

        Args:
            law: the target's distributions, rows of `Teacher.law`.
            draft: the draft's logits [..., V], or those of its own vocabulary.
            kept: int32[W], the draft vocabulary, on which p is normalised.

        Returns:
            p: the target's logits [..., outcomes].
            q: the draft's logits of the same outcomes.
            same: bool[...], whether both likeliest tokens of all are equal.
            inside: bool[...], whether `kept` holds the target's likeliest token.
            mass: float32[...], the target's probability of the tokens of `kept`.

        Raises:
            ConfigError: a draft vocabulary with top-k logits alone.
        """
        if TOP not in self.hidden:
            p = lax.stop_gradient(self.head(law))
            inside, mass = jnp.ones(p.shape[:-1], bool), jnp.ones(p.shape[:-1])
            if kept is not None:
                inside = vocab.near_best_mask(p, lambda best: best)[..., kept].any(-1)
                whole = vocab.logsumexp(p)
                p = p[..., kept]
                mass = jnp.exp(vocab.logsumexp(p) - whole)
            same = inside & (vocab.argmax(draft) == vocab.argmax(p))
            return p, draft, same, inside, mass
        if kept is not None:
            raise ConfigError(
                "a draft vocabulary needs the target's logits of all its tokens, but "
                "the cache holds the likeliest tokens alone: use features.topk=0"
            )
        count = (law.shape[-1] - 2) // 2
        ids, logits, log_z, rest = jnp.split(law, (count, 2 * count, 2 * count + 1), -1)
        ids = ids.astype(jnp.int32)
        p = jnp.concatenate([logits, rest], -1) - log_z
        others = jnp.put_along_axis(draft, ids, -jnp.inf, -1, inplace=False)
        others = vocab.logsumexp(others)[..., None]
        q = jnp.concatenate([vocab.gather(draft, ids), others], -1)
        same = vocab.argmax(draft) == ids[..., 0]
        every = jnp.ones(same.shape, bool), jnp.ones(same.shape)
        return lax.stop_gradient(p), q, same, *every


def teacher(
    model: base.LanguageModel, taps: tuple = (), remat: bool = False
) -> Callable[[Any, dict[str, Array]], Teacher]:
    """Build `(params, batch) -> Teacher`, with the normed last state and `taps`.

    The target runs forward in the call. `Teacher.head` computes logits later, part by
    part, where a loss needs them.
    """
    names = tuple(dict.fromkeys((NORM, *taps)))

    def run(params: Any, batch: dict[str, Array]) -> Teacher:
        params = lax.stop_gradient(params)
        out = transformer.forward(
            model.config,
            params,
            batch["tokens"],
            batch.get("segments"),
            taps=names,
            remat=remat,
        )
        hidden, segments = lax.stop_gradient(out.hidden), batch.get("segments")
        return Teacher(params, hidden, model, segments)

    return run


def field(tap: base.Tap) -> str:
    """Return a tap's key in a batch."""
    return f"hidden/{tap}"


def given(
    model: base.LanguageModel, taps: tuple = (), likeliest: bool = False
) -> Callable[[Any, dict[str, Array]], Teacher]:
    """Build `(params, batch) -> Teacher` from the batch's cached states.

    The target does not run; of its params only the embedding and the head are read.
    With `likeliest` the batch holds top-k logits in place of the normed state.
    """
    names = tuple(dict.fromkeys(taps if likeliest else (NORM, *taps)))

    def run(params: Any, batch: dict[str, Array]) -> Teacher:
        params = lax.stop_gradient(params)
        result = Teacher(params, base.Hidden(), model, batch.get("segments"))
        dtype = jax.eval_shape(result.embed, batch["tokens"]).dtype
        for tap in names:
            result.hidden[tap] = batch[field(tap)].astype(dtype)
        if likeliest:
            # One array, so that it is shifted and cut like a state; a float32 holds
            # every id below 2^24.
            ids, logits, *sums = [batch[name] for name in LIKELIEST]
            parts = [ids, logits, *[x[..., None] for x in sums]]
            result.hidden[TOP] = jnp.concatenate(
                [x.astype(jnp.float32) for x in parts], -1
            )
        return result

    return run


def ahead(x: Array, steps: int | Array) -> Array:
    """Shift x [B, T, ...] to `x[:, t + steps]`; `predicted` masks the wrapped end."""
    return jnp.roll(x, -jnp.asarray(steps), 1)


def predicted(batch: dict[str, Array], steps: int) -> Array:
    """Mark float32[B, T] positions t whose token `t + steps` may be predicted.

    That token must exist, be in `loss_mask`, and be of the document of token t.
    """
    tokens = batch["tokens"]
    length = tokens.shape[1]
    valid = jnp.broadcast_to(jnp.arange(length) < length - steps, tokens.shape)
    if "loss_mask" in batch:
        valid = valid & ahead(batch["loss_mask"], steps).astype(bool)
    if "segments" in batch:
        valid = valid & (ahead(batch["segments"], steps) == batch["segments"])
    return valid.astype(jnp.float32)


def mean(values: Array, weights: Array) -> Array:
    """Average `values` by `weights`, arrays of one shape; 0 where all weights are 0."""
    return (values * weights).sum() / jnp.maximum(weights.sum(), 1.0)


def numbered(shape: tuple[int, ...]) -> Array:
    """Number the positions of a batch of `shape` [B, T]: int32[B, T].

    A loss that draws folds them into its key. One trace serves all parts of
    `in_parts`: a key of the batch alone would draw the same in every part.
    """
    return jnp.arange(shape[0] * shape[1], dtype=jnp.int32).reshape(shape)


def in_parts(function: Callable[..., Any], size: int, *arrays: Any) -> Any:
    """Sum `function(*parts)` over parts of `size` positions of arrays [B, T, ...].

    The backward pass recomputes each part, so that logits [B, T, V] exist for one part
    at a time. `size` 0 takes all positions at once. An argument may be a tree of
    arrays.
    """
    flat, count = _flat(arrays)
    if not size or count <= size:
        return function(*flat)
    sums = lax.map(
        lambda part: rematerialisation.remat(function)(*part), _cut(flat, size)
    )
    return jax.tree.map(lambda x: x.sum(0), sums)


def by_part(function: Callable[..., Any], size: int, *arrays: Any) -> Any:
    """Map `function` over parts of `size` positions of arrays [B, T, ...].

    Results [n, ...] of the parts are joined to [B, T, ...]. `size` 0: all at once.
    """
    batch, length = jax.tree.leaves(arrays)[0].shape[:2]
    flat, count = _flat(arrays)
    parts = _cut(flat, size if 0 < size < count else count)
    results = lax.map(lambda part: function(*part), parts)

    def whole(x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:])[:count].reshape(batch, length, *x.shape[2:])

    return jax.tree.map(whole, results)


def _flat(arrays: tuple) -> tuple[tuple, int]:
    """Flatten arrays [B, T, ...] to [B T, ...]; return them and B T."""
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), arrays)
    return flat, jax.tree.leaves(flat)[0].shape[0]


def _cut(flat: tuple, size: int) -> tuple:
    """Split arrays [n, ...] into parts [p, size, ...], the last padded with zeros."""

    def cut(x: Array) -> Array:
        short = -x.shape[0] % size
        padded = jnp.pad(x, [(0, short)] + [(0, 0)] * (x.ndim - 1))
        return padded.reshape(-1, size, *x.shape[1:])

    return jax.tree.map(cut, flat)
