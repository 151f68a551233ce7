"""Losses of block drafters: blocks at anchors of a text, graded slot by slot.

A block at anchor a guesses the tokens a + 1, .., a + K from the features of positions
below a and the token at a (`models/heads/dflash.py`). With p the target's law of such
a token, q the draft's and y the text's,

    L = sum w_j (base (-log u(y)) + ce (-log q(y)) + l1 sum |p - q| + kl KL(p || q))
        / sum w_j

over the slots j = 0 .. K - 1 of all anchors; u is the block's own law, without its
head. w_j = exp(-j / decay) (1 without), 0 from
the first slot on whose token may not be learned.

With `pace` the cross-entropy's weights are D-PACE's (arXiv 2605.18810): with q~ =
q(y) / 2 + 1/2, no gradient through it,

    w_j = sum_{m >= j} prod_{i <= m} q~_i,    and the sum is over w's number of blocks

how far a chain through slot j is expected to go.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from models.errors import ConfigError
from models.heads import dflash
from models.heads.modules import block_head, decoder_layer
from models.heads.modules.block_head import Head, Slot
from models.transformer import rematerialisation
from training import losses
from training.loop.train_step import Objective
from training.objectives import drawn_places
from training.teacher.outputs import Teacher, by_part, predicted

Further = Callable[..., tuple[Array, dict[str, Array]]]
SMOOTH = 0.5  # D-PACE's alpha


class Blocks(NamedTuple):
    """The blocks that a batch is graded on."""

    anchors: Array  # int32[B, A]
    tokens: Array  # int32[B, A, K]: each slot's token before, the anchor's first
    labels: Array  # int32[B, A, K]: the text's tokens
    weights: Array  # float32[B, A, K]: 1 where a slot is graded, 0 elsewhere
    law: Array  # [B, A, K, *]: the rows of `Teacher.law` for the labels


class Weights(NamedTuple):
    """How a loss is put together; see the module."""

    ce: float = 1.0  # of -log q(y)
    l1: float = 0.0  # of sum |p - q|
    kl: float = 0.0  # of KL(p || q)
    decay: float = 0.0  # slots after which a weight has fallen by e; 0: none
    pace: bool = False  # D-PACE's weights of the cross-entropy, in place of `decay`
    base: float = 0.0  # of -log u(y)
    blend: int = 0  # rows over which the weight `ce` moves from u to q; 0: it is q's
    some: bool = False  # q has tokens of probability 0: they have no cross-entropy

    def changed(self, **terms: Any) -> "Weights":
        """Return these weights with other terms.

        Raises:
            ConfigError: an unknown term, or weights that give no loss.
        """
        unknown = sorted(set(terms) - set(self._fields))
        if unknown:
            raise ConfigError(
                f"{unknown} are no terms of a block's loss: use some of {self._fields}"
            )
        other = self._replace(**terms)
        other.check()
        return other

    def check(self) -> None:
        """Raise ConfigError for weights that give no loss."""
        terms = (self.ce, self.l1, self.kl, self.base)
        if min(*terms, self.decay, self.blend) < 0 or not sum(terms):
            raise ConfigError(
                f"ce={self.ce}, l1={self.l1}, kl={self.kl}, base={self.base}, "
                f"decay={self.decay}, blend={self.blend}: use numbers from 0 on, one "
                "of the first four above it"
            )
        if self.pace and not self.ce:
            raise ConfigError("pace=True weighs the cross-entropy: use ce above 0")


def drawn(batch: dict[str, Array], count: int, seed: int) -> tuple[Array, Array]:
    """Draw `count` anchors of every row, without replacement.

    An anchor and the token after it may be learned. The draw depends on the seed and
    the row's number; none is made where every position is taken.

    Returns:
        int32[B, A] and bool[B, A]: whether a row has that many.
    """
    able = predicted(batch, 1) > 0
    if "loss_mask" in batch:
        able = able & batch["loss_mask"].astype(bool)
    anchors = drawn_places.drawn(able, batch, count, seed)
    return anchors, jnp.take_along_axis(able, anchors, 1)


def gathered(
    params: Any, batch: dict[str, Array], teacher: Teacher, anchors: Array, live: Array
) -> Blocks:
    """Gather what the blocks at `anchors` int32[B, A] are graded by."""
    drafts = dflash.config_of(params["backbone"]).drafts
    length = batch["tokens"].shape[1]
    index = jnp.arange(drafts, dtype=jnp.int32)
    at = anchors[..., None] + index  # the state before each slot's token
    inside = jnp.minimum(at, length - 1)
    take = jax.vmap(lambda row, at: row[at])
    able = jnp.stack([predicted(batch, 1 + j) for j in range(drafts)], -1)
    able = jnp.take_along_axis(able, anchors[..., None], 1)
    return Blocks(
        anchors,
        take(batch["tokens"], inside),
        take(batch["tokens"], jnp.minimum(at + 1, length - 1)),
        jnp.cumprod(able, -1) * live[..., None],
        take(teacher.law, inside),
    )


def objective(
    head: Head,
    model: Any,
    weights: Weights,
    anchors: int,
    seed: int = 0,
    part: int = 0,
    taps: Sequence[int] = (),
    further: Further | None = None,
    remat: bool = True,
) -> Objective:
    """Build the loss of a head on a block, over `anchors` blocks of every text.

    Args:
        head: its arithmetic; its params have a `backbone`.
        model: the target's.
        weights: of the terms.
        anchors: blocks of a text.
        seed: of the anchors.
        part: slots whose logits exist at a time; 0: all.
        taps: states that the head reads, rising; (): the paper's.
        further: `further(params, teacher, slots, blocks, found) -> loss, metrics` is
            added; `found` are the figures of each slot, float32[B, A, K].
        remat: compute activations again in the backward pass, to save memory.

    Raises:
        ConfigError: no anchors.
    """
    if anchors < 1:
        raise ConfigError(f"anchors={anchors}: use at least 1")
    read = dflash.states(model.config, taps)

    def total(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        slots, blocks, found = graded(
            head, params, model, batch, teacher, weights, anchors, seed, part, read
        )
        now = blended(weights, batch)
        loss, metrics = weighed(found, blocks.weights, now)
        if further is None:
            return loss, metrics
        more, others = further(params, teacher, slots, blocks, found)
        return loss + more, metrics | others

    def kept(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        with rematerialisation.off():
            return total(params, batch, teacher)

    def quantity(params: Any) -> str:
        return "mean over slots, nats a token"

    return Objective(
        total if remat else kept,
        lambda batch: predicted(batch, 1).sum(),
        read,
        quantity=quantity,
    )


def graded(
    head: Head,
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    weights: Weights,
    anchors: int,
    seed: int,
    part: int,
    read: Sequence[int],
) -> tuple[Slot, Blocks, dict[str, Array]]:
    """Draw a batch's blocks: their slots, what they are graded by, their figures.

    Raises:
        ConfigError: heads with a draft vocabulary.
    """
    if dflash.config_of(params["backbone"]).draft_vocabulary:
        raise ConfigError(
            "draft_vocabulary=True: blocks train on the target's whole vocabulary, and "
            "these heads only draft; train heads without one"
        )
    at, live = drawn(batch, anchors, seed)
    blocks = gathered(params, batch, teacher, at, live)
    slots = states(head, params, model, batch, teacher, at, read)
    before = embedded(teacher, batch, at, blocks.tokens.shape[-1])
    summaries = block_head.summaries(head, params, blocks.tokens, before, slots)
    found = by_slot(head, params, teacher, slots, summaries, blocks, weights, part)
    return slots, blocks, found


def states(
    head: Head,
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    anchors: Array,
    read: Sequence[int],
) -> Slot:
    """Compute the slots [B, A, K, D] of blocks at `anchors` int32[B, A]."""
    config, backbone = model.config, params["backbone"]
    dflash.check(head.name, backbone, config, read)
    eps = decoder_layer.geometry(config).norm_eps
    seen = jnp.stack([teacher.hidden[tap] for tap in read], 2)
    features = dflash.features(backbone, seen, eps)
    own = dflash.config_of(backbone)
    mask = None
    if not own.learned_mask:
        mask = teacher.embed(jnp.full_like(anchors[:, :1], own.mask_token))[:, :, None]
    x = dflash.inputs(backbone, embedded(teacher, batch, anchors, 1)[:, :, 0], mask)
    segments = batch.get("segments")
    raw = dflash.at_anchors(backbone, config, features, x, anchors, segments)
    return Slot(raw, dflash.normed(backbone, raw, eps))


def embedded(
    teacher: Teacher, batch: dict[str, Array], anchors: Array, count: int
) -> Array:
    """Embed the tokens of the text from every anchor on, [B, A, count, D]."""
    rows = teacher.embed(batch["tokens"])
    at = anchors[..., None] + jnp.arange(count)
    return jax.vmap(lambda row, at: row[at])(rows, jnp.minimum(at, rows.shape[1] - 1))


def drafting(head: Head, params: Any, teacher: Teacher) -> Callable[[Any], Array]:
    """Return the function from (slots, summaries) to logits [..., V]."""

    rows = lambda states: dflash.limited(params["backbone"], teacher.head(states))

    def draft(states: tuple[Slot, Any]) -> Array:
        slot, summary = states
        return head.logits(params, slot, rows(slot.states), summary, rows)

    return draft


def by_slot(
    head: Head,
    params: Any,
    teacher: Teacher,
    slots: Slot,
    summaries: Any,
    blocks: Blocks,
    weights: Weights,
    part: int = 0,
) -> dict[str, Array]:
    """Compute the figures of every slot, float32[B, A, K].

    `ce` -log q(y), `tv` sum |p - q| / 2, `hit`, whether the likeliest tokens are the
    same; where they matter `kl`, `base` -log u(y), and `recall`, whether q(y) > 0.
    """
    batch, count, drafts = blocks.labels.shape
    draft = drafting(head, params, teacher)

    def figures(states: Any, law: Array, labels: Array) -> dict[str, Array]:
        logits = draft(states)
        p, q, hit, _, mass = teacher.compared(law, logits)
        found = {
            "ce": losses.ce(logits, labels),
            "tv": 1.0 - losses.alpha(p, q, mass),
            "hit": hit.astype(jnp.float32),
        }
        if weights.some:
            there = jnp.isfinite(found["ce"])
            found["recall"] = there.astype(jnp.float32)
            found["ce"] = jnp.where(there, found["ce"], 0.0)
        if weights.kl:
            found["kl"] = losses.kl(p, q)
        if weights.base or weights.blend:
            found["base"] = losses.ce(teacher.head(states[0].states), labels)
        return found

    flat = lambda x: x.reshape(batch, count * drafts, *x.shape[3:])
    rows = jax.tree.map(flat, ((slots, summaries), blocks.law, blocks.labels))
    found = by_part(rematerialisation.remat(figures), part, *rows)
    return {n: x.reshape(batch, count, drafts) for n, x in found.items()}


def weighed(
    found: dict[str, Array], live: Array, weights: Weights
) -> tuple[Array, dict[str, Array]]:
    """Compute the loss, and `hit_j`, `alpha_j` given the text's tokens before slot j.

    `live` float32[B, A, K] marks the slots that count.
    """
    drafts = live.shape[-1]
    each = live * fall(weights, drafts)
    whole = jnp.maximum(each.sum(), 1e-9)
    terms = 2 * weights.l1 * found["tv"] + weights.kl * found.get("kl", 0.0)
    terms = terms + weights.base * found.get("base", 0.0)
    if weights.pace:
        blocks = jnp.maximum(live[..., 0].sum(), 1.0)
        ce = (paced(found["ce"], live) * found["ce"]).sum() / blocks
    else:
        ce = (each * found["ce"]).sum() / whole
    loss = weights.ce * ce + (each * terms).sum() / whole
    places = jnp.maximum(live.sum((0, 1)), 1.0)
    right = {"hit": found["hit"], "alpha": 1.0 - found["tv"]}
    right |= {n: x for n, x in found.items() if n == "recall"}
    means = {n: (live * x).sum((0, 1)) / places for n, x in right.items()}
    metrics = {f"{n}_{j}": x[j] for n, x in means.items() for j in range(drafts)}
    return loss, lax.stop_gradient(metrics)


def blended(weights: Weights, batch: dict[str, Array]) -> Weights:
    """Return the weights at this batch of the training."""
    if not weights.blend:
        return weights
    share: Any = jnp.clip(1.0 - batch["row"][0] / weights.blend, 0.0, 1.0)
    return weights._replace(
        ce=(1.0 - share) * weights.ce, base=weights.base + share * weights.ce
    )


def fall(weights: Weights, drafts: int) -> Array:
    """Return exp(-j / decay) of each slot, float32[K]."""
    index = jnp.arange(drafts, dtype=jnp.float32)
    return jnp.exp(-index / weights.decay) if weights.decay else jnp.ones(drafts)


def paced(ce: Array, live: Array) -> Array:
    """Compute D-PACE's weights float32[..., K] of cross-entropies float32[..., K]."""
    smooth = (1.0 - SMOOTH) * jnp.exp(-lax.stop_gradient(ce)) + SMOOTH
    reach = jnp.cumprod(smooth, -1) * live
    return jnp.flip(jnp.cumsum(jnp.flip(reach, -1), -1), -1) * live


def guesses(
    head: Head,
    params: Any,
    model: Any,
    batch: dict[str, Array],
    teacher: Teacher,
    depth: int,
    taps: Sequence[int] = (),
) -> list:
    """Return, by depth, the slots of a block at every token, and the head.

    Row t is of the anchor t + 1; the last one's is the text's last token again, which
    no metric counts.
    """
    tokens = batch["tokens"]
    length = tokens.shape[1]
    drafts = dflash.config_of(params["backbone"]).drafts
    anchors = jnp.minimum(jnp.arange(length, dtype=jnp.int32) + 1, length - 1)
    at = jnp.minimum(anchors[:, None] + jnp.arange(drafts), length - 1)
    rows = jnp.broadcast_to(anchors, tokens.shape)
    read = dflash.states(model.config, taps)
    slots = states(head, params, model, batch, teacher, rows, read)
    before = jnp.take(tokens, at, axis=1)
    summaries = block_head.summaries(
        head, params, before, embedded(teacher, batch, rows, drafts), slots
    )
    draft = drafting(head, params, teacher)
    pick = lambda i: jax.tree.map(lambda x: x[:, :, i], (slots, summaries))
    return [(pick(i), draft) for i in range(min(depth, drafts))]
