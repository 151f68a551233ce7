"""SpecEE: the target stops at the layer whose answer a draft had expected.

Xu, Pan, Zhou, Chen, Lian, Dai, *SpecEE: Accelerating Large Language Model Inference
with Speculative Early Exiting*, 2025, arXiv 2504.08850. EAGLE's layer proposes the k
tokens x_1 .. x_k for the next place, and of each layer l that is scheduled

    c_l = predictor of l on the logits of x_1 .. x_k at l  (models/predictors)
    stop after l  if  c_l > tau  and  argmax of all logits at l is one of x_1 .. x_k

The logits at l, final norm and head on the state there, are then the target's. The
schedule has two levels: the layers where stops are frequent, found before, and around
the layers e where this text's last tokens stopped,

    S = static + {e - 2, e, e + 2 : the last N layers e}          (the last layer: none)

tau → `threshold`; k → the predictors' own number; N → `last`; layers count from 0, and
a token that used them all stopped at the last. Predictors are `params["exits"]`,
trained by training/objectives/predictors/specee.py, EAGLE's layer is `params["heads"]`.

The target is not always run as a whole, so the text does not follow its law. Above
temperature 0 the token is drawn from the law of the layer. Blocks of one node stop:
which layers are asked depends on the tokens committed last.

Deviations from the paper: layers that a token leaves out get the keys and values of the
state that it stopped with. Rows stop where each of them would alone, and the rest of a
layer's work is saved when all have. Its merging of predictors with a speculated tree is
not here.

Cost per call: the layers up to the last row's exit, keys and values of the others; at a
scheduled layer k rows of the head and 3k H products, the whole head where a predictor
says stop, and once more at the end; one EAGLE layer and head.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.drafters import eagle
from decoding.topologies import static as trees
from models.base import LanguageModel
from models.errors import MethodError
from models.predictors import exit_predictor

CARD = Card(
    paper="SpecEE, arXiv 2504.08850",
    guarantee=base.LOSSY,
    family="early exit",
    data=("threshold",),
    needs=("heads", "exits", "model"),
    trained=True,
    examples={"static": (0,), "threshold": 1.0},
)
EXIT = "exit"  # tap: layers that each node went through, float[B, N, 1]
AROUND = (-2, 0, 2)


@struct.dataclass
class Asked:
    """What the target is called with, beside its weights."""

    candidates: Array  # int32[B, k]: in the order of the draft's law
    schedule: Array  # bool[B, L - 1]: after which layers a predictor is asked
    live: Array  # bool[B]: rows that are not done; the others hold nobody up
    threshold: Array  # float32[B]: tau


@struct.dataclass
class Row:
    """One row's state."""

    inner: Any  # EAGLE's
    candidates: Array  # int32[B, k]
    exits: Array  # int32[B, N]: layers that the last tokens took, in no order; 0: none
    seen: Array  # int32[B]: tokens noted so far; the next goes to `seen % N`
    live: Array  # bool[B]
    threshold: Array  # float32[B]: tau


@struct.dataclass
class Shared:
    """What rows share; `out.exits` of `generate`."""

    inner: Any  # EAGLE's
    taken: Array  # int32[L]: tokens that took 1, 2, .. L layers


def exit_policy(
    heads,
    exits,
    model,
    static: tuple[int, ...] = (15, 16, 17, 19, 21, 24, 26, 28),
    last: int = 5,
    threshold: float = 0.5,
) -> base.ExitPolicy:
    """`static` layers, from 0; the paper's are those of a model of 32 layers.

    At `threshold` 1 nothing stops, and the text is plain decoding's. `out.exits.taken`
    counts tokens by the layers that they took.
    """
    depth = model.config.n_layers
    exit_predictor.check(exits, depth)
    wrong = [layer for layer in static if not 0 <= layer < depth - 1]
    if wrong:
        raise MethodError(
            f"static={static} of a target of {depth} layers: name some of 0 to "
            f"{depth - 2} (training.runs.exit_predictor_run counts where tokens stop)"
        )
    if last < 1:
        raise MethodError(f"last={last}: remember at least 1 token")
    if not 0 <= threshold <= 1:
        raise MethodError(f"threshold={threshold}: use a probability, 0 to 1")
    _, width = exit_predictor.counts(exits)
    siblings = tuple((rank,) for rank in range(width))
    inner = eagle.drafter(heads, model, trees.topology(siblings, base.POINT))

    def init(ctx: base.Context) -> base.State:
        own, batch = inner.init(ctx), ctx.length.shape[0]
        none = jnp.zeros((batch,), jnp.int32)
        row = Row(
            own.row,
            jnp.zeros((batch, width), jnp.int32),
            jnp.zeros((batch, last), jnp.int32),
            none,
            none > 0,
            jnp.full((batch,), threshold, jnp.float32),
        )
        return base.State(row, Shared(own.shared, jnp.zeros((depth,), jnp.int32)))

    def plan(keys, ctx: base.Context, state: base.State):
        row, shared = state.row, state.shared
        own = base.State(row.inner, shared.inner)
        nodes, own, cache = inner.draft(keys, ctx, own)
        candidates = nodes.tokens[:, 1:]
        row = replace(row, inner=own.row, candidates=candidates, live=ctx.active)
        state = base.State(row, replace(shared, inner=own.shared))
        return state, cache, nodes.calls

    def weights(given: Any, params: base.Params, state: base.State) -> Any:
        row = state.row
        asked = Asked(
            row.candidates,
            schedule(row.exits, static, depth),
            row.live,
            row.threshold,
        )
        return {**given, "exits": params["exits"], "asked": asked}

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row, shared = state.row, state.shared
        own = inner.observe(ctx, base.State(row.inner, shared.inner), outcome)
        row, shared = replace(row, inner=own.row), replace(shared, inner=own.shared)
        if not outcome.is_prompt:
            rows = jnp.arange(row.seen.shape[0])
            taken = outcome.target.hidden[EXIT][:, 0, 0].astype(jnp.int32)
            counts = shared.taken.at[taken - 1].add(outcome.active)
            at = (rows, row.seen % last)
            taken = jnp.where(outcome.active, taken, row.exits[at])
            shared = replace(shared, taken=counts)
            row = replace(
                row,
                exits=row.exits.at[at].set(taken),
                seen=row.seen + outcome.active,
            )
        return base.State(row, shared)

    taps = (*inner.taps, EXIT)
    return base.ExitPolicy(init, plan, observe, exiting, weights, taps, path_pure=False)


def schedule(exits: Array, static: tuple[int, ...], depth: int) -> Array:
    """bool[B, L - 1]: the layers to ask after; `exits` int32[B, N] as in `Row`."""
    layers = jnp.arange(depth - 1, dtype=jnp.int32)
    always = jnp.isin(layers, jnp.asarray(static, jnp.int32))
    near = exits[:, :, None] - 1 + jnp.asarray(AROUND, jnp.int32)
    near = jnp.clip(near, 0, depth - 2)
    hit = (near[..., None] == layers) & (exits > 0)[:, :, None, None]
    return always | hit.any((1, 2))


def exiting(model: LanguageModel) -> LanguageModel:
    """The model that stops early in blocks of one node; chunks of a prompt run whole.

    Its weights are those of `model` with "exits" and "asked".
    """
    depth = model.config.n_layers

    def layers(weights, cache, x, block, lo, hi, taps=()):
        wanted = tuple(tap for tap in taps if tap != EXIT)
        if x.shape[1] > 1:
            x, cache, hidden = model.layers(weights, cache, x, block, lo, hi, wanted)
            return x, cache, _told(hidden, taps, jnp.full(x.shape[:2], hi))
        assert (lo, hi) == (0, depth), "a model that stops early runs as a whole"
        asked: Asked = weights["asked"]
        live, hidden = asked.live, {}
        before = jnp.zeros(asked.candidates.shape, jnp.float32)
        reached = jnp.full(live.shape, depth, jnp.int32)
        for layer in range(depth):
            if layer in wanted:
                hidden[layer] = x

            def run(x, store, live=live, layer=layer, cache=cache):
                own = cache.put(layer, (store,))
                y, own, _ = model.layers(weights, own, x, block, layer, layer + 1)
                # What has stopped is written as it stopped, and goes no further.
                return jnp.where(live[:, None, None], y, x), own.layers[layer]

            def fill(carry, x=x, layer=layer, cache=cache):
                own = cache.put(layer, (carry[1],))
                own = model.fill(weights, own, x, block, layer, layer + 1)
                return jnp.bool_(False), own.layers[layer]

            # One or the other. What both branches of a choice write is copied by the
            # compiler; a loop of one round or none writes in place.
            on, store = live.any(), cache.layers[layer]
            _, store = lax.while_loop(lambda carry: carry[0], fill, (~on, store))
            x, store = lax.cond(on, run, lambda *both: both, x, store)
            cache = cache.put(layer, (store,))
            if layer + 1 == depth:
                break
            due = live & asked.schedule[:, layer]

            def ask(x, before, due=due, layer=layer):
                return stops(model, weights, layer, x, before, due)

            def rest(x, before, due=due):
                return jnp.zeros_like(due), before

            leave, before = lax.cond(due.any(), ask, rest, x, before)
            reached = jnp.where(leave, layer + 1, reached)
            live = live & ~leave
        if depth in wanted:
            hidden[depth] = x
        return x, cache, _told(hidden, taps, reached[:, None])

    return model._replace(layers=layers)


def stops(
    model: LanguageModel, weights: Any, layer: int, x: Array, before: Array, due: Array
) -> tuple[Array, Array]:
    """bool[B]: rows that are `due` and stop after `layer`; and s of those asked."""
    asked: Asked = weights["asked"]
    normed = model.norm(weights, x)
    z = model.logits_of(weights, normed, asked.candidates[:, None])[:, 0]
    given, now = exit_predictor.features(z, before)
    sure = exit_predictor.probability(weights["exits"], layer, given) > asked.threshold

    def expected(normed: Array) -> Array:
        best = vocab.argmax(model.head(weights, normed)[:, 0])
        return (best[:, None] == asked.candidates).any(1)

    sure = sure & due
    same = lax.cond(
        sure.any(), expected, lambda x: jnp.zeros(x.shape[:1], bool), normed
    )
    return sure & same, jnp.where(due[:, None], now, before)


def _told(hidden: dict, taps: tuple, reached: Array) -> dict:
    """The tapped states, and the layers that were taken where they are asked for."""
    if EXIT not in taps:
        return hidden
    return {**hidden, EXIT: reached.astype(jnp.float32)[..., None]}
