"""Build the programs of a config from shapes, without weights.

A model is described by its config.json alone: that of the directory `config.model`, or
the fields in `config.architecture` where the weights are elsewhere. No array of a model
is made.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import models
from decoding import Method, compose
from decoding.loops import (
    canvas_state,
    decode,
    denoise,
    engines,
    initial_state,
    prefill,
    state_sharding,
)
from experiments import stage
from models import checkpoints, io, transformer
from models.checkpoints import hub, tensors
from models.distributed import sharding
from models.errors import ConfigError
from models.transformer import experts
from training.loop import train_step
from training.runs import draft_head_run
from training.teacher import outputs, sources

KEY = jax.random.key
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # tokens of a call
WAITING = "waiting"  # rows of a state that a program does not touch


@dataclass(frozen=True)
class Program:
    """One program of a config: its compilation, and the memory of its arguments."""

    name: str
    compile: Callable[[], Any]
    parts: dict[str, int]  # bytes a device, by what they hold
    rows: int  # of a batch; 0 where the program has none of its own
    tokens: int = 1  # of a row in one call of the target
    read: int = 0  # bytes of weights that a call reads on one device
    # The same by the tokens of a call; of a mixture of experts alone.
    by_tokens: dict[int, int] = field(default_factory=dict)
    bill: "Bill | None" = None
    whole: dict[str, int] = field(default_factory=dict)  # param -> bytes, uncut
    mesh: Any = None  # of its devices
    beside: int = 0  # rows beside each copy of the weights; 0: no decoding
    wide: int = 0  # tokens of a row in a wide call, of canvases; 0: there is none


@dataclass(frozen=True)
class Bill:
    """The least operations of a training of heads, from sizes alone.

    A token passes the frozen target once (2 operations a weight in products) and the
    heads forward and back (6). Repeated passes (EAGLE-3's steps), attention, and
    gradients through the target (PPD) are not counted.
    """

    heads: int  # trained parameters
    target: int  # weights in products
    tokens: int  # a step's
    steps: int

    @property
    def operations(self) -> int:
        """Return the operations of all steps on all devices, at least."""
        return (2 * self.target + 6 * self.heads) * self.tokens * self.steps


def shape_of(config: Any) -> transformer.Config:
    """Read the target's Config, from `config.architecture` or `config.model`."""
    if config.get("architecture"):
        data = config.architecture.to_dict()
        return checkpoints.read_config(data, "config.architecture")[1]
    return shape_at(config.model)


def context(config: Any) -> int:
    """Return the tokens of the longest text: `config.context`, if it is set."""
    return config.get("context", 0) or config.prompt_tokens + config.max_new_tokens


def shape_at(name: str) -> transformer.Config:
    """Read the Config of a shipped model, a directory in HF layout or a repository."""
    path = io.locate(name, files=hub.CONFIG) / "config.json"
    return checkpoints.read_config(tensors.read_json(path), str(path))[1]


def abstract(model: transformer.Config, dtype: Any, plan: sharding.Plan) -> Any:
    """Build the result of `models.load` with shapes in place of params."""
    lm = transformer.transformer(model, dtype)._replace(plan=plan)
    params = jax.eval_shape(lm.init, KEY(0))

    def stored(x: Any) -> Any:  # weights in codes stay so
        kind = x.dtype if x.dtype == jnp.uint8 else dtype
        return jax.ShapeDtypeStruct(x.shape, kind)

    params = jax.tree.map(stored, params)
    return models.Loaded(lm, laid(params, plan.places(params)))


def laid(tree: Any, shardings: Any) -> Any:
    """Add shardings to shapes."""

    def one(x: Any, where: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    return jax.tree.map(one, tree, shardings)


def size(tree: Any) -> int:
    """Count the bytes of a tree of sharded shapes on one device."""
    leaves = jax.tree.leaves(tree)
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves
    )


def count(tree: Any) -> int:
    """Count the numbers in a tree of shapes."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))


def read_bytes(lm: Any, tokens: int = 1) -> int:
    """Count the bytes of weights that a call of `tokens` reads on one device."""
    return experts.read_bytes(lm.config, lm.params, tokens, size)


def head_shapes(config: Any, lm: Any, dtype: Any = None) -> tuple[Any, Any]:
    """Return the shapes of a recipe's heads, and their draft vocabulary ({}: none)."""
    vocabulary = {}
    if config.draft_vocab:
        vocab = lm.config.vocab_size  # evenly spread ids; a real run counts data
        tokens = np.arange(config.draft_vocab) * vocab // config.draft_vocab
        make_vocabulary = draft_head_run.hook(config, "draft_vocabulary", "draft_vocab")
        vocabulary = make_vocabulary(tokens.astype(np.int32), vocab, config.draft_vocab)
    make = functools.partial(
        draft_head_run.module(config.head).init,
        model=lm.model,
        **config.init.to_dict(),
        **vocabulary,
    )
    shapes = jax.eval_shape(lambda key, p: make(key, target=p), KEY(0), lm.params)
    if dtype is not None:
        shapes = {
            n: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), x)
            if n not in vocabulary
            else x
            for n, x in shapes.items()
        }
    return shapes, vocabulary


def method_of(config: Any) -> Method:
    """Build a recipe's method without trained heads, with invented hits."""
    counts = [config.init.get(name) for name in ("heads", "steps", "prompts")]
    deep = min(filter(None, [*counts, config.evaluate.depth]))
    return draft_head_run.method(
        config, [[0.5 * 0.5**rank for rank in range(8)]] * deep
    )


def decoding(
    name: str,
    method: Method,
    lm: Any,
    given: dict[str, Any],
    config: Any,
    together: int = 0,
) -> list[Program]:
    """Return prefill and loop of one method, at the config's batch and context.

    Of a diffusion model the context is the canvas, prompt included. Its policy may read
    the prompt at each step; there is no prefill then.

    Args:
        name: of the method, for the programs' names.
        method: the method.
        lm: the target, with shapes for params.
        given: role -> draft model or heads, with shapes for params.
        config: the recipe.
        together: rows of the prefill that refills finished ones, whose state lies
            beside the batch's; 0: the batch is prefilled at once and not refilled.
    """
    plan = lm.model.plan
    heats = config.get("temperatures", None) or (config.temperature,)
    parts = compose.compose(method, lm, float(max(heats)), given)
    engine = engines.Engine(parts.program)
    params = {decode.TARGET: lm.params}
    for role, draft in given.items():
        role_params = getattr(draft, "params", draft)
        params[role] = laid(role_params, plan.places(role_params))
    longest = context(config)
    first = functools.partial(_first_state, engine, parts, params, longest)
    fresh, role_prompts = first(together or config.batch)
    state = first(config.batch)[0] if together else fresh
    bound = jax.ShapeDtypeStruct((), jnp.int32, sharding=plan.of((), ""))
    weights = {
        "params": size(params[decode.TARGET]),
        "drafts": sum(size(params[role]) for role in given),
    }
    run = functools.partial(
        engine.lower, "advance", engine.loop.advance, (1,), params, state, bound, bound
    )

    def memory(state: Any, other: Any) -> dict[str, int]:
        caches = size(state.caches)
        beside = {WAITING: size(other)} if together else {}
        rest = {"cache": caches, "rest of the state": size(state) - caches}
        return {**weights, **rest, **beside}

    beside = config.batch // plan.parts(config.batch, "batch")
    by_tokens = {n: read_bytes(lm, n) for n in WIDTHS}
    by_tokens = by_tokens if len({*by_tokens.values()}) > 1 else {}
    make = functools.partial(Program, by_tokens=by_tokens, mesh=plan.mesh)
    filled, decoded = memory(fresh, state), memory(state, fresh)
    loop = functools.partial(make, f"decode, {name}", run, decoded, rows=config.batch)
    if engine.is_canvas:
        policy, tokens = parts.program.policy, state.tokens.shape[1]
        narrow, *_, wide = [
            *denoise.widths(policy, tokens, state.window, state.size),
            tokens,
        ]
        read = read_bytes(lm, beside * narrow)
        programs = [loop(tokens=narrow, beside=beside, wide=wide, read=read)]
        chunk = canvas_state.CHUNK
        fill = functools.partial(
            engine.lower, "read", canvas_state.read, (1,), params, fresh
        )
    else:
        nodes = parts.program.drafter.nodes
        read = read_bytes(lm, beside * nodes)
        programs = [loop(tokens=nodes, beside=beside, read=read)]
        chunk = prefill.chunk_size(parts.program, fresh, longest)
        by_chunks = functools.partial(prefill.prefill, size=chunk)
        fill = functools.partial(
            engine.lower, "prefill", by_chunks, (1,), params, fresh, role_prompts
        )
    if engine.is_canvas and not parts.program.policy.prefills:
        return programs
    rows = together or config.batch
    read = read_bytes(lm, rows // plan.parts(rows, "batch") * chunk)
    fills = functools.partial(make, f"prefill, {name}", fill, filled, rows=rows)
    return [fills(tokens=chunk, read=read), *programs]


def _first_state(
    engine: engines.Engine,
    parts: compose.Composition,
    params: Any,
    longest: int,
    rows: int,
) -> tuple[Any, Any]:
    """Return the shapes of a state before its prompts are read, and of the prompts.

    The prompts of a canvas lie in its state.
    """
    program, plan = parts.program, parts.program.model.plan
    prompts, limits = [[1, 1]] * rows, [longest] * rows
    keys = engines.request_keys(0, rows, 1)
    about = (prompts, limits, keys, initial_state.bucket(longest))

    def make_state(params: Any) -> Any:
        if engine.is_canvas:
            # Shapes have no place: the state's are laid below.
            bare = dataclasses.replace(program, model=program.model._replace(plan=None))
            return canvas_state.started(bare, params, parts, *about), None
        return initial_state.initial_state(
            program, params, parts, *about, None, False, None
        )

    with sharding.use(plan):
        state, role_prompts = jax.eval_shape(make_state, params)
    return laid(state, state_sharding.shardings(plan, state)), role_prompts


def training(
    name: str,
    config: Any,
    plan: sharding.Plan,
    objective: train_step.Objective,
    optimizer: Any,
    params: Any,
    batch: dict[str, tuple],
    target: Any = None,
    frozen: Any = None,
    told: dict[str, Any] | None = None,
    bill: Bill | None = None,
) -> Program:
    """Return the program of one update at the config's batch.

    Args:
        name: of the program.
        config: the recipe, for `train`.
        plan: shardings of the training.
        objective: as in `training.loop.train_step`.
        optimizer: an optax optimiser.
        params: shapes of the trained params.
        batch: name -> shape of the batch's arrays.
        target: the target's outputs in the step; None: the objective reads none.
        frozen: shapes of the target's params.
        told: shapes of the features that a cache adds to the batch.
        bill: the least operations of the training.
    """
    t = config.train
    state = jax.eval_shape(
        lambda params: train_step.first_state(params, optimizer, False), params
    )
    places = plan.params(state)
    state = laid(state, places)
    dtypes = {n: jnp.bool_ if n == "loss_mask" else jnp.int32 for n in batch}
    shapes = {n: jax.ShapeDtypeStruct(s, dtypes[n]) for n, s in batch.items()}
    shapes |= told or {}
    shapes = laid(shapes, plan.rows(shapes))
    step = train_step.make_step(
        *(objective, optimizer, t.rows_at_once, t.clip, 0.0, target),
        compute_dtype=t.get("compute_dtype", ""),
    )
    # With cached features the step reads few of the target's layers; evaluations read
    # all, so all stay in memory.
    jitted = jax.jit(
        step, donate_argnums=0, keep_unused=bool(told), out_shardings=(places, None)
    )

    def lower() -> Any:
        with sharding.use(plan):
            return jitted.lower(state, shapes, frozen).compile()

    memory = {
        "params": size(state.params),
        "optimiser": size(state.opt_state),
        "frozen target": size(frozen),
        "batch": size(shapes),
    }
    rows, length = batch["tokens"]
    uncut = sharding.whole(plan, params)
    about = functools.partial(Program, bill=bill, whole=uncut, mesh=plan.mesh)
    return about(name, lower, memory, rows, length)


def of(config: Any) -> stage.Preflight:
    """Return the config's `stage.Preflight`; ConfigError if its stage has none."""
    name = config.get("stage", "evaluate")
    preflight = stage.find(name).preflight
    if preflight is None:
        names = [other for other in stage.modules() if stage.find(other).preflight]
        raise ConfigError(
            f"stage={name!r} has no program of its own to compile: use a recipe of one "
            f"of {sorted(names)}"
        )
    return preflight


def compiles(config: Any) -> bool:
    """Whether the config's stage has programs to compile."""
    return stage.find(config.get("stage", "evaluate")).preflight is not None


def teacher(config: Any, lm: Any, reads: tuple, masked: bool) -> tuple[Any, dict]:
    """Return the target's outputs in the step, and the shapes of cached features."""
    if config.get("teacher", sources.ONLINE) == sources.ONLINE:
        return outputs.teacher(lm.model, reads, config.train.get("remat", False)), {}
    c, settings = config.data, sources.Settings(**config.features)
    taps = sources.needed(reads, settings.topk)
    layout = sources.layout(lm.config, c.window, masked, reads, settings)
    features = layout._replace(taps=taps).said
    shapes = {
        name: jax.ShapeDtypeStruct((c.batch, *x.shape), x.dtype)
        for name, x in features.items()
    }
    return outputs.given(lm.model, taps, bool(settings.topk)), shapes
