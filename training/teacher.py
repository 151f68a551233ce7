"""What a frozen target says of a batch: in the training step, or read from a cache.

By default the target runs forward beside the head that learns from it, and no hidden
state is ever written to disk; `training/features.py` is the other way. An objective is
given a `Teacher` and cannot tell which it was.

The batch's contract: `tokens` int32[B, T]; `loss_mask` bool[B, T], where present, says
which tokens may be *predicted* (the assistant's, say); `segments` int32[B, T], where
present, numbers packed documents, none of which sees another; from a cache also

    hidden/<tap>     [B, T, D]     the target's states
    t_topk_ids       int32[B, T, k]  its k likeliest next tokens, best first,
    t_topk_logits    float32[B, T, k]  their logits,
    t_logZ           float32[B, T]  the log-sum-exp of all logits,
    t_logrest        float32[B, T]  and that of the other V - k.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import vocab
from models import base, recompute, training_form, transformer
from models.errors import ConfigError

NORM = "norm"
TOP = "top"  # in `Teacher.hidden`: the likeliest tokens, where they are all there is
LIKELIEST = ("t_topk_ids", "t_topk_logits", "t_logZ", "t_logrest")


@struct.dataclass
class Teacher:
    """The frozen target on a batch. Nothing in it has a gradient."""

    params: Any  # the target's
    hidden: base.Hidden  # tap -> [B, T, D]; TOP -> float32[B, T, 2 k + 2]
    model: base.LanguageModel = struct.field(pytree_node=False)
    segments: Array | None = None  # the batch's

    @property
    def law(self) -> Array:
        """[B, T, *]: the laws of the next tokens, in a form that `compared` reads."""
        return self.hidden[TOP if TOP in self.hidden else NORM]

    def embed(self, tokens: Array) -> Array:
        """The target's embeddings [B, T, D] of `tokens` int32[B, T]."""
        positions = training_form.places(tokens.shape, self.segments)
        return self.model.embed(self.params, tokens, positions)

    def head(self, normed: Array) -> Array:
        """float32[..., V]: the target's logits of states after its final norm."""
        return self.model.head(self.params, normed)

    def compared(
        self, law: Array, draft: Array, kept: Array | None = None
    ) -> tuple[Array, Array, Array, Array]:
        """p, q, bool[...] `same`, bool[...] `inside` of a draft's logits [..., V].

        p and q are the target's and the draft's logits of the outcomes that the target
        tells apart: of every token, or, where only the likeliest are known, of each of
        those and of all others together. A loss between them is then one of coarser
        laws: KL and TV are too small, alpha too large, by what happens among the
        others. `same`: whether the likeliest tokens agree. With a draft vocabulary
        `kept` p is normalised on it, and `inside` says whether it holds the target's
        likeliest.
        """
        if TOP not in self.hidden:
            p = lax.stop_gradient(self.head(law))
            inside = jnp.ones(p.shape[:-1], bool)
            if kept is not None:
                inside = vocab.near_best_mask(p, lambda best: best)[..., kept].any(-1)
                p = p[..., kept]
            return p, draft, vocab.argmax(draft) == vocab.argmax(p), inside
        if kept is not None:
            raise ConfigError(
                "a draft vocabulary needs the target's law on all of it, and the cache "
                "has its likeliest tokens alone: use features.topk=0"
            )
        count = (law.shape[-1] - 2) // 2
        ids, known, whole, rest = jnp.split(law, (count, 2 * count, 2 * count + 1), -1)
        ids = ids.astype(jnp.int32)
        p = jnp.concatenate([known, rest], -1) - whole
        others = jnp.put_along_axis(draft, ids, -jnp.inf, -1, inplace=False)
        others = vocab.logsumexp(others)[..., None]
        q = jnp.concatenate([vocab.gather(draft, ids), others], -1)
        same = vocab.argmax(draft) == ids[..., 0]
        return lax.stop_gradient(p), q, same, jnp.ones(same.shape, bool)


def teacher(
    model: base.LanguageModel, taps: tuple = (), remat: bool = False
) -> Callable[[Any, dict[str, Array]], Teacher]:
    """`(params, batch) -> Teacher`, with the normed last state and `taps`.

    Logits are not kept: `Teacher.head` makes them where and when a loss needs them.
    """
    wanted = tuple(dict.fromkeys((NORM, *taps)))

    def run(params: Any, batch: dict[str, Array]) -> Teacher:
        params = lax.stop_gradient(params)
        out = transformer.forward(
            model.config,
            params,
            batch["tokens"],
            batch.get("segments"),
            taps=wanted,
            remat=remat,
        )
        hidden, segments = lax.stop_gradient(out.hidden), batch.get("segments")
        return Teacher(params, hidden, model, segments)

    return run


def field(tap: base.Tap) -> str:
    """The batch's name of a tap."""
    return f"hidden/{tap}"


def given(
    model: base.LanguageModel, taps: tuple = (), likeliest: bool = False
) -> Callable[[Any, dict[str, Array]], Teacher]:
    """`(params, batch) -> Teacher` of what the batch holds; the target does not run.

    Its embedding and its head are all that is read of its params.
    """
    wanted = tuple(dict.fromkeys(taps if likeliest else (NORM, *taps)))

    def run(params: Any, batch: dict[str, Array]) -> Teacher:
        params = lax.stop_gradient(params)
        found = Teacher(params, base.Hidden(), model, batch.get("segments"))
        dtype = jax.eval_shape(found.embed, batch["tokens"]).dtype
        for tap in wanted:
            found.hidden[tap] = batch[field(tap)].astype(dtype)
        if likeliest:
            # One array, so that it is shifted and cut like a state; a float32 holds
            # every id below 2^24.
            ids, known, *sums = [batch[name] for name in LIKELIEST]
            parts = [ids, known, *[x[..., None] for x in sums]]
            found.hidden[TOP] = jnp.concatenate(
                [x.astype(jnp.float32) for x in parts], -1
            )
        return found

    return run


def ahead(x: Array, steps: int | Array) -> Array:
    """`x[:, t + steps]` at t; what wraps around is masked by `predicted`."""
    return jnp.roll(x, -jnp.asarray(steps), 1)


def predicted(batch: dict[str, Array], steps: int) -> Array:
    """float32[B, T]: 1 at t where token `t + steps` exists and may be predicted.

    Of packed documents also where it is of the document of token t.
    """
    tokens = batch["tokens"]
    length = tokens.shape[1]
    there = jnp.broadcast_to(jnp.arange(length) < length - steps, tokens.shape)
    if "loss_mask" in batch:
        there = there & ahead(batch["loss_mask"], steps).astype(bool)
    if "segments" in batch:
        there = there & (ahead(batch["segments"], steps) == batch["segments"])
    return there.astype(jnp.float32)


def mean(values: Array, weights: Array) -> Array:
    """The weighted mean; 0 where nothing counts."""
    return (values * weights).sum() / jnp.maximum(weights.sum(), 1.0)


def in_parts(function: Callable[..., Any], size: int, *arrays: Any) -> Any:
    """Sums of `function(*parts)` over parts of `size` positions of arrays [B, T, ...].

    The parts are recomputed in the backward pass, so that of logits [B, T, V] only one
    part exists at a time. `size` 0 takes all positions at once. An argument may be a
    tree of arrays.
    """
    flat, count = _flat(arrays)
    if not size or count <= size:
        return function(*flat)
    sums = lax.map(lambda part: recompute.again(function)(*part), _cut(flat, size))
    return jax.tree.map(lambda x: x.sum(0), sums)


def by_part(function: Callable[..., Any], size: int, *arrays: Any) -> Any:
    """`function(*parts)` of parts of `size` positions of arrays [B, T, ...], side by
    side: what it returns [n, ...] comes back as [B, T, ...]. `size` 0: all at once.
    """
    batch, length = jax.tree.leaves(arrays)[0].shape[:2]
    flat, count = _flat(arrays)
    parts = _cut(flat, size if 0 < size < count else count)
    found = lax.map(lambda part: function(*part), parts)

    def whole(x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:])[:count].reshape(batch, length, *x.shape[2:])

    return jax.tree.map(whole, found)


def _flat(arrays: tuple) -> tuple[tuple, int]:
    """Arrays [B, T, ...] as [B T, ...], and B T."""
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), arrays)
    return flat, jax.tree.leaves(flat)[0].shape[0]


def _cut(flat: tuple, size: int) -> tuple:
    """Arrays [n, ...] as parts [p, size, ...], the last filled up with zeros."""

    def cut(x: Array) -> Array:
        short = -x.shape[0] % size
        padded = jnp.pad(x, [(0, short)] + [(0, 0)] * (x.ndim - 1))
        return padded.reshape(-1, size, *x.shape[1:])

    return jax.tree.map(cut, flat)
