"""SpecEE: the target stops at a layer whose best token is among the drafts.

Xu, Pan, Zhou, Chen, Li, Lian, Wu, Dai, *SpecEE: Accelerating Large Language Model
Inference with Speculative Early Exiting*, 2025, arXiv 2504.08850. EAGLE's layer
proposes the k tokens x_1 .. x_k for the next place. For each scheduled layer l

    c_l = predictor of l on the logits of x_1 .. x_k at l  (models/predictors)
    stop after l  if  c_l > tau  and  argmax of all logits at l is one of x_1 .. x_k

The logits at l, final norm and head on the state there, are then the target's. The
schedule has two levels: the layers where stops are frequent, counted beforehand, and
those around the layers e where this text's last tokens stopped,

    S = static + {e - 2, e, e + 2 : the last N layers e}          (the last layer: none)

tau → `threshold`; k → the predictors' own number; N → `last`; layers count from 0, and
a token that used them all stopped at the last. Predictors are `params["exits"]`,
trained by training/objectives/predictors/specee.py, EAGLE's layer is `params["heads"]`.

The target is not always run as a whole, so the text does not follow its law. Above
temperature 0 the token is drawn from the law of the layer. Only blocks of one node
stop early, because the schedule depends on the tokens committed last.

Deviations from the paper: the layers e are those of this text, from its first token on;
the authors' code keeps them over requests and schedules them once it has N. Layers that
a token leaves out get the keys and values of the state that it stopped with. Each row
stops where it would alone; layers are skipped once all rows have stopped. The paper's
merging of predictors with a speculated tree is left out.

Cost per call: the layers up to the last row's exit, keys and values of the others; at a
scheduled layer k rows of the head and 3k H products; the whole head where c_l > tau,
and once more at the end; one EAGLE layer and head.
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
    sources=("xu2025specee",),
)
EXIT = "exit"  # tap: number of layers that ran for each node, float[B, N, 1]
AROUND = (-2, 0, 2)


@struct.dataclass
class Asked:
    """The target's inputs for early exit, beside its weights."""

    candidates: Array  # int32[B, k]: x_1 .. x_k, likeliest first
    schedule: Array  # bool[B, L - 1]: layers that have a predictor to run
    live: Array  # bool[B]: rows that are not done; only these delay an exit
    threshold: Array  # float32[B]: tau


@struct.dataclass
class Row:
    """One row's state."""

    inner: Any  # EAGLE's
    candidates: Array  # int32[B, k]
    exits: Array  # int32[B, N]: layers of the last tokens, unordered; 0: none
    seen: Array  # int32[B]: tokens noted so far; the next goes to `seen % N`
    live: Array  # bool[B]
    threshold: Array  # float32[B]: tau


@struct.dataclass
class Shared:
    """The state that rows share: `out.exits` of `generate`."""

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
    """Stop the target early where a predictor is sure that the best token is drafted.

    `out.exits.taken` counts tokens by the layers that they took.

    Args:
        heads: params of the EAGLE layer.
        exits: params of the predictors.
        model: the target.
        static: layers from 0 that are always scheduled; the default is the paper's for
            a model of 32 layers.
        last: N, recent tokens whose exits are scheduled.
        threshold: tau; at 1 nothing stops, and the text is plain decoding's.
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
        inner_state, batch = inner.init(ctx), ctx.length.shape[0]
        none = jnp.zeros((batch,), jnp.int32)
        row = Row(
            inner_state.row,
            jnp.zeros((batch, width), jnp.int32),
            jnp.zeros((batch, last), jnp.int32),
            none,
            none > 0,
            jnp.full((batch,), threshold, jnp.float32),
        )
        return base.State(
            row, Shared(inner_state.shared, jnp.zeros((depth,), jnp.int32))
        )

    def plan(keys, ctx: base.Context, state: base.State):
        row, shared = state.row, state.shared
        inner_state = base.State(row.inner, shared.inner)
        nodes, inner_state, cache = inner.draft(keys, ctx, inner_state)
        candidates = nodes.tokens[:, 1:]
        row = replace(
            row, inner=inner_state.row, candidates=candidates, live=ctx.active
        )
        state = base.State(row, replace(shared, inner=inner_state.shared))
        return state, cache, nodes.calls

    def weights(target_weights: Any, params: base.Params, state: base.State) -> Any:
        row = state.row
        asked = Asked(
            row.candidates,
            schedule(row.exits, static, depth),
            row.live,
            row.threshold,
        )
        return {**target_weights, "exits": params["exits"], "asked": asked}

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row, shared = state.row, state.shared
        inner_state = inner.observe(ctx, base.State(row.inner, shared.inner), outcome)
        row, shared = (
            replace(row, inner=inner_state.row),
            replace(shared, inner=inner_state.shared),
        )
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
    """Schedule layers, bool[B, L - 1]; `exits` int32[B, N] as in `Row`."""
    layers = jnp.arange(depth - 1, dtype=jnp.int32)
    always = jnp.isin(layers, jnp.asarray(static, jnp.int32))
    near = exits[:, :, None] - 1 + jnp.asarray(AROUND, jnp.int32)
    near = jnp.clip(near, 0, depth - 2)
    hit = (near[..., None] == layers) & (exits > 0)[:, :, None, None]
    return always | hit.any((1, 2))


def exiting(model: LanguageModel) -> LanguageModel:
    """Make `model` stop early in blocks of one node; chunks of a prompt run whole.

    Its weights are those of `model` with "exits" and "asked".
    """
    depth = model.config.n_layers

    def layers(weights, cache, x, block, lo, hi, taps=()):
        inner_taps = tuple(tap for tap in taps if tap != EXIT)
        if x.shape[1] > 1:
            x, cache, hidden = model.layers(
                weights, cache, x, block, lo, hi, inner_taps
            )
            return x, cache, _with_exits(hidden, taps, jnp.full(x.shape[:2], hi))
        assert (lo, hi) == (0, depth), "a model that stops early runs as a whole"
        asked: Asked = weights["asked"]
        live, hidden = asked.live, {}
        before = jnp.zeros(asked.candidates.shape, jnp.float32)
        reached = jnp.full(live.shape, depth, jnp.int32)
        for layer in range(depth):
            if layer in inner_taps:
                hidden[layer] = x

            def run(x, store, live=live, layer=layer, cache=cache):
                stored = cache.put(layer, (store,))
                y, stored, _ = model.layers(weights, stored, x, block, layer, layer + 1)
                # Rows that have stopped are written with the state they stopped at.
                return jnp.where(live[:, None, None], y, x), stored.layers[layer]

            def fill(carry, x=x, layer=layer, cache=cache):
                stored = cache.put(layer, (carry[1],))
                stored = model.fill(weights, stored, x, block, layer, layer + 1)
                return jnp.bool_(False), stored.layers[layer]

            # Run or fill. The compiler copies arrays that both branches of a `cond`
            # write; a loop of one round or none writes in place.
            on, store = live.any(), cache.layers[layer]
            _, store = lax.while_loop(lambda carry: carry[0], fill, (~on, store))
            x, store = lax.cond(on, run, lambda *both: both, x, store)
            cache = cache.put(layer, (store,))
            if layer + 1 == depth:
                break
            due = live & asked.schedule[:, layer]

            def predict(x, before, due=due, layer=layer):
                return stops(model, weights, layer, x, before, due)

            def skip(x, before, due=due):
                return jnp.zeros_like(due), before

            leave, before = lax.cond(due.any(), predict, skip, x, before)
            reached = jnp.where(leave, layer + 1, reached)
            live = live & ~leave
        if depth in inner_taps:
            hidden[depth] = x
        return x, cache, _with_exits(hidden, taps, reached[:, None])

    return model._replace(layers=layers)


def stops(
    model: LanguageModel, weights: Any, layer: int, x: Array, before: Array, due: Array
) -> tuple[Array, Array]:
    """Decide which `due` rows stop after `layer`.

    Args:
        model: the target.
        weights: with "exits" and "asked".
        layer: from 0.
        x: the state after `layer`.
        before: the candidates' probabilities at the predictor before, float32[B, k].
        due: bool[B], live rows in which `layer` is scheduled.

    Returns:
        bool[B], the rows that stop; and `before` for the next predictor.
    """
    asked: Asked = weights["asked"]
    normed = model.norm(weights, x)
    z = model.logits_of(weights, normed, asked.candidates[:, None])[:, 0]
    features, now = exit_predictor.features(z, before)
    sure = (
        exit_predictor.probability(weights["exits"], layer, features) > asked.threshold
    )

    def expected(normed: Array) -> Array:
        best = vocab.argmax(model.head(weights, normed)[:, 0])
        return (best[:, None] == asked.candidates).any(1)

    sure = sure & due
    same = lax.cond(
        sure.any(), expected, lambda x: jnp.zeros(x.shape[:1], bool), normed
    )
    return sure & same, jnp.where(due[:, None], now, before)


def _with_exits(hidden: dict, taps: tuple, reached: Array) -> dict:
    """Add the number of layers that ran to the tapped states, where EXIT is tapped."""
    if EXIT not in taps:
        return hidden
    return {**hidden, EXIT: reached.astype(jnp.float32)[..., None]}
