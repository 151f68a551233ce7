"""The programs of a config as shapes: what would be compiled and run, without weights.

A model is known by its config.json alone: the directory `config.model`, or the fields
of it in `config.architecture`, so that a recipe can be looked at where its weights are
not. No array of a model is made.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import models
from decoding import Method, compose, state_sharding
from decoding.loops import decode, engines, initial_state, prefill
from experiments import stage
from models import checkpoints, io, transformer
from models.checkpoints import tensors
from models.distributed import sharding
from models.errors import ConfigError
from training.loop import train_step
from training.runs import draft_head_run
from training.teacher import outputs, sources

KEY = jax.random.key


@dataclass(frozen=True)
class Program:
    """One program of a config: how to compile it, and what its arguments take."""

    name: str
    compile: Callable[[], Any]
    parts: dict[str, int]  # bytes a device, by what they hold
    rows: int  # of a batch; 0 where the program has none of its own
    tokens: int = 1  # that one call of the target reads in a row
    read: int = 0  # bytes of weights that it reads on a device
    bill: "Bill | None" = None


@dataclass(frozen=True)
class Bill:
    """What a training of heads takes, by sizes alone.

    A token passes the frozen target once and the heads forward and back, at least: 2
    operations a weight in products, and 6. What is run several times (EAGLE-3's steps),
    attention to others, and gradients through the target (PPD) come on top.
    """

    heads: int  # trained parameters
    target: int  # weights in products
    tokens: int  # a step's
    steps: int

    @property
    def operations(self) -> int:
        """Of all steps on all devices, at least."""
        return (2 * self.target + 6 * self.heads) * self.tokens * self.steps


def shape_of(config: Any) -> transformer.Config:
    """The target's Config."""
    if config.get("architecture"):
        data = config.architecture.to_dict()
        return checkpoints.read_config(data, "config.architecture")[1]
    return shape_at(config.model)


def context(config: Any) -> int:
    """Tokens of the longest text that is looked at: `config.context`, if it is set."""
    return config.get("context", 0) or config.prompt_tokens + config.max_new_tokens


def shape_at(name: str) -> transformer.Config:
    path = io.locate(name) / "config.json"
    return checkpoints.read_config(tensors.read_json(path), str(path))[1]


def abstract(model: transformer.Config, dtype: Any, plan: sharding.Plan) -> Any:
    """What `models.load` would return, with shapes for params."""
    lm = transformer.transformer(model, dtype)._replace(plan=plan)
    params = jax.eval_shape(lm.init, KEY(0))
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), params)
    return models.Loaded(lm, laid(params, plan.params(params)))


def laid(tree: Any, shardings: Any) -> Any:
    """Shapes with their places."""

    def one(x: Any, where: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)

    return jax.tree.map(one, tree, shardings)


def size(tree: Any) -> int:
    """Bytes that a tree of placed shapes takes on one device."""
    leaves = jax.tree.leaves(tree)
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves
    )


def count(tree: Any) -> int:
    """Numbers in a tree of shapes."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))


def read_bytes(lm: Any) -> int:
    """Bytes of weights that one call reads on one device."""
    whole = size(lm.params)
    if not lm.config.tied:
        whole -= size(lm.params["embedding"]["tokens"])
    return whole


def head_shapes(config: Any, lm: Any, dtype: Any = None) -> tuple[Any, Any]:
    """The shapes of a recipe's heads, and the draft vocabulary that they have."""
    given = {}
    if config.draft_vocab:
        vocab = lm.config.vocab_size  # any tokens, but no range: data in a real run
        tokens = np.arange(config.draft_vocab) * vocab // config.draft_vocab
        vocabulary = draft_head_run.hook(config, "draft_vocabulary", "draft_vocab")
        given = vocabulary(tokens.astype(np.int32), vocab, config.draft_vocab)
    make = functools.partial(
        draft_head_run.module(config.head).init,
        model=lm.model,
        **config.init.to_dict(),
        **given,
    )
    shapes = jax.eval_shape(lambda key, p: make(key, target=p), KEY(0), lm.params)
    if dtype is not None:
        shapes = {
            n: jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), x)
            if n not in given
            else x
            for n, x in shapes.items()
        }
    return shapes, given


def method_of(config: Any) -> Method:
    """A recipe's method before its heads are trained: hits are made up."""
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
) -> list[Program]:
    """Prefill and the loop of one method, at the config's batch and context."""
    plan = lm.model.plan
    temperature = float(max(config.temperatures))
    parts = compose.compose(method, lm, temperature, given)
    engine = engines.Engine(parts.program)
    params = {decode.TARGET: lm.params}
    for role, draft in given.items():
        own = getattr(draft, "params", draft)
        params[role] = laid(own, plan.params(own))
    longest = context(config)
    prompts = [[1, 1]] * config.batch
    limits = [longest] * config.batch
    keys = engines.request_keys(0, config.batch, 1)

    def make(params: Any) -> Any:
        sizes = (prompts, limits, keys, initial_state.bucket(longest))
        return initial_state.initial_state(
            parts.program, params, parts, *sizes, None, False, None
        )

    state, own = jax.eval_shape(make, params)
    state = laid(state, state_sharding.shardings(plan, state))
    bound = jax.ShapeDtypeStruct((), jnp.int32, sharding=plan.of((), ""))
    caches = size(state.caches)
    taken = {
        "params": size(params[decode.TARGET]),
        "drafts": sum(size(params[role]) for role in given),
        "cache": caches,
        "rest of the state": size(state) - caches,
    }
    fill = functools.partial(
        engine.lower, "prefill", prefill.prefill, (1,), params, state, own
    )
    run = functools.partial(
        engine.lower, "advance", decode.advance, (1,), params, state, bound, bound
    )
    nodes, read = parts.program.drafter.nodes, read_bytes(lm)
    chunk = parts.program.chunk
    return [
        Program(f"prefill, {name}", fill, taken, config.batch, chunk, read),
        Program(f"decode, {name}", run, taken, config.batch, nodes, read),
    ]


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
    """One update at the config's batch; `told`: shapes of what a cache adds to it."""
    t = config.train
    state = jax.eval_shape(
        lambda params: train_step.first_state(params, optimizer, False), params
    )
    places = plan.params(state)
    state = laid(state, places)
    kinds = {n: jnp.bool_ if n == "loss_mask" else jnp.int32 for n in batch}
    shapes = {n: jax.ShapeDtypeStruct(s, kinds[n]) for n, s in batch.items()}
    shapes |= told or {}
    shapes = laid(shapes, plan.rows(shapes))
    step = train_step.make_step(
        *(objective, optimizer, t.rows_at_once, t.clip, 0.0, target),
        compute_dtype=t.get("compute_dtype", ""),
    )
    # The layers of a target whose states are read lie there for the evaluations.
    jitted = jax.jit(
        step, donate_argnums=0, keep_unused=bool(told), out_shardings=(places, None)
    )

    def lower() -> Any:
        with sharding.use(plan):
            return jitted.lower(state, shapes, frozen).compile()

    taken = {
        "params": size(state.params),
        "optimiser": size(state.opt_state),
        "frozen target": size(frozen),
        "batch": size(shapes),
    }
    rows, length = batch["tokens"]
    return Program(name, lower, taken, rows, length, bill=bill)


def of(config: Any) -> stage.Preflight:
    """What the config's stage has compiled; ConfigError where that is nothing."""
    name = config.get("stage", "evaluate")
    own = stage.find(name).preflight
    if own is None:
        names = [other for other in stage.modules() if stage.find(other).preflight]
        raise ConfigError(
            f"stage={name!r} has no program of its own to look at: use a recipe of one "
            f"of {sorted(names)}"
        )
    return own


def teacher(config: Any, lm: Any, reads: tuple, masked: bool) -> tuple[Any, dict]:
    """Return the target's outputs in the step, and the shapes of what a cache gives."""
    if config.get("teacher", sources.ONLINE) == sources.ONLINE:
        return outputs.teacher(lm.model, reads, config.train.get("remat", False)), {}
    c, chosen = config.data, sources.Settings(**config.features)
    taps = sources.needed(reads, chosen.topk)
    kept = sources.layout(lm.config, c.window, masked, reads, chosen)
    said = kept._replace(taps=taps).said
    told = {
        name: jax.ShapeDtypeStruct((c.batch, *x.shape), x.dtype)
        for name, x in said.items()
    }
    return outputs.given(lm.model, taps, bool(chosen.topk)), told
