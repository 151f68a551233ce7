"""Sharding of arrays over a mesh of devices, by logical axes and one table of rules.

A mesh has up to three axes: `data` (copies of the weights), `fsdp` (weights sharded and
fetched layer by layer) and `tensor` (products sharded, two sums a layer). `tensor` is
split into its prime factors. KV heads take as many factors as divide their number, and
the query heads of each KV head take the rest: a device has one copy of one KV head.

An array's logical axes are a string, `"embed kv_heads - head_dim"`: `-` is on no axis,
`*` is left to the compiler. `axis_rules.RULES` maps a logical axis to mesh axes. A
dimension that they do not divide is not sharded, so every plan is legal for every
shape. Of two dimensions on the same mesh axes, the second gets what the first leaves.

While a plan is in `use`, `constrain` fixes the sharding of traced arrays; without a
plan it does nothing.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from models.distributed import axis_rules, device_mesh
from models.errors import ConfigError

ORDERED = ("tpu",)  # platforms on which `axis_rules.ORDER` holds
LARGE = 1 << 24  # bytes of a param that is named if every device holds it whole


@dataclasses.dataclass(frozen=True)
class Plan:
    """A mesh and its rules; hashable, so that it can be part of a program's key."""

    mesh: Mesh
    rules: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def factored(self) -> Mesh:
        """The mesh with `tensor` in its prime factors, on which arrays are placed."""
        return device_mesh.factored(self.mesh)

    def spec(self, shape: Sequence[int], axes: str) -> PartitionSpec:
        """Return the partition of an array of `shape` whose dimensions are `axes`."""
        rules, taken, mesh = dict(self.rules), set(), self.factored
        parts: list[Any] = []
        for size, name in zip(shape, axes.split()):
            if name == "*":
                parts.append(PartitionSpec.UNCONSTRAINED)
                continue
            chosen: list[str] = []
            named = rules.get(name, ())
            for axis in (p for a in named for p in device_mesh.parts_of(mesh, a)):
                width = mesh.shape[axis]
                ways = width * math.prod(mesh.shape[a] for a in chosen)
                if width > 1 and axis not in taken and size % ways == 0:
                    chosen.append(axis)
                    taken.add(axis)
            several = tuple(chosen) if len(chosen) > 1 else None
            parts.append(several or (chosen[0] if chosen else None))
        while parts and parts[-1] is None:
            parts.pop()
        return PartitionSpec(*parts)

    def of(self, shape: Sequence[int], axes: str) -> NamedSharding:
        """Return the sharding of an array of `shape` whose dimensions are `axes`."""
        return NamedSharding(self.factored, self.spec(shape, axes))

    def tree(self, arrays: Any, axes: Any) -> Any:
        """Return the shardings of a tree, from a tree of axes of the same structure."""
        return jax.tree.map(lambda x, a: self.of(x.shape, a), arrays, axes)

    def param(self, name: str, shape: Sequence[int]) -> NamedSharding:
        """Return the sharding of the param `name`."""
        return self.of(shape, axis_rules.param_axes(name, len(shape)))

    def params(self, tree: Any) -> Any:
        """Return the shardings of params, their gradients or an optimiser's state."""

        return jax.tree_util.tree_map_with_path(
            lambda path, x: self.param(axis_rules.param_name(path), x.shape), tree
        )

    def place(self, name: str, shape: Sequence[int]) -> NamedSharding | Format:
        """Return where the param `name` lies and, if not as its shape, in which order.

        For params that are read; those that are trained are placed by `params` alone.
        """
        where = self.param(name, shape)
        order = axis_rules.ORDER.get(name, ())
        if ordered(self) and len(order) == len(shape):
            return Format(Layout(order), where)
        return where

    def places(self, tree: Any) -> Any:
        """Return the `place` of every param in a tree."""
        return jax.tree_util.tree_map_with_path(
            lambda path, x: self.place(axis_rules.param_name(path), x.shape), tree
        )

    def rows(self, tree: Any) -> Any:
        """Return the shardings of arrays whose first dimension is the batch."""
        return jax.tree.map(lambda x: self.of(x.shape, "batch"), tree)

    def parts(self, size: int, axis: str) -> int:
        """Return the number of shards of a dimension of `size`."""
        entry = next(iter(self.spec((size,), axis)), None)
        names = (entry,) if type(entry) is str else entry or ()
        return math.prod(self.factored.shape[name] for name in names)

    def share(self) -> tuple[int, int]:
        """Return (i, n): this process holds the i-th of n shares of a batch's rows."""
        ways = math.prod(self.mesh.shape.get(a, 1) for a in dict(self.rules)["batch"])
        rows = self.of((ways,), "batch")
        indices: Any = rows.addressable_devices_indices_map((ways,))
        spans = [at[0].indices(ways)[:2] for at in indices.values()]
        first, last = min(x for x, _ in spans), max(x for _, x in spans)
        if first % (last - first) or len(set(spans)) != last - first:
            raise ConfigError(
                f"a process of the mesh {dict(self.mesh.shape)} holds the rows {spans} "
                f"of {ways}: let `tensor` divide the devices of one process"
            )
        return first // (last - first), ways // (last - first)

    def batch(self, batch: Any) -> Any:
        """Make a global batch from the share of its rows that this process has read."""
        if jax.process_count() == 1:
            return jax.device_put(batch, self.rows(batch))
        count = self.share()[1]

        def whole(x: np.ndarray) -> jax.Array:
            shape = (x.shape[0] * count, *x.shape[1:])
            if self.parts(shape[0], "batch") % count:
                raise ConfigError(
                    f"{shape[0]} rows, read by {count} processes, do not divide over "
                    f"the mesh {dict(self.mesh.shape)}: choose more rows a batch, or a "
                    "smaller `data` axis"
                )
            local = np.asarray(x)
            rows = self.of(shape, "batch")
            return jax.make_array_from_process_local_data(rows, local, shape)

        return jax.tree.map(whole, batch)


def platform(plan: Plan | None) -> str:
    """Return the platform of a plan's devices, which may not be here, or of JAX's."""
    if plan is None:
        return jax.default_backend()
    return plan.mesh.devices.flat[0].platform


def ordered(plan: Plan | None) -> bool:
    """Return whether params lie in the order of `axis_rules.ORDER`."""
    return platform(plan) in ORDERED


def share(plan: Plan | None) -> tuple[int, int]:
    """Return `Plan.share`; without a plan a process reads every row: (0, 1)."""
    return (0, 1) if plan is None else plan.share()


def devices_of(place: NamedSharding | Format) -> NamedSharding:
    """Return a place without its order."""
    return cast(NamedSharding, getattr(place, "sharding", place))


def put(tree: Any, shardings: Any) -> Any:
    """Place arrays on a mesh; every process must hold equal, whole arrays.

    `shardings` may be `Plan.places`.
    """

    def one(x: Any, sharding: NamedSharding | Format) -> jax.Array:
        if isinstance(sharding, Format):  # reordered where it lies: never whole again
            return jax.device_put(one(x, devices_of(sharding)), sharding)
        x = jax.numpy.asarray(x)
        if sharding.is_fully_addressable or not x.is_fully_addressable:
            return jax.device_put(x, sharding)
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(x), sharding))
        local = np.asarray(x)
        return jax.make_array_from_callback(local.shape, sharding, local.__getitem__)

    return jax.tree.map(one, tree, shardings)


def placed(plan: Plan | None, params: Any) -> Any:
    """Move params to the plan's devices; those already there keep their sharding.

    With or without a plan they lie in the order of `axis_rules.ORDER` then, where
    their devices are `ORDERED`.
    """
    if plan is None and not ordered(plan):
        return params
    devices = None if plan is None else set(plan.mesh.devices.flat)

    def one(path: tuple, x: Any) -> Any:
        x, name = jax.numpy.asarray(x), axis_rules.param_name(path)
        if plan is not None and x.sharding.device_set != devices:
            return put(x, plan.place(name, x.shape))
        return in_order(name, x)

    return jax.tree_util.tree_map_with_path(one, params)


def in_order(name: str, x: Any) -> Any:
    """Return the param `name`, reordered where it lies if its order is another."""
    order = axis_rules.ORDER.get(name, ())
    platforms = {device.platform for device in x.sharding.device_set}
    if len(order) != x.ndim or not platforms <= set(ORDERED):
        return x
    layout = x.format.layout
    if layout is not None and layout.major_to_minor == order:
        return x
    return jax.device_put(x, Format(Layout(order), x.sharding))


def whole(plan: Plan | None, params: Any, least: int = LARGE) -> dict[str, int]:
    """Return the params of `least` bytes or more that every device holds whole.

    Path -> bytes. Without a mesh that cuts params there is none. Params may be shapes.
    """
    found: dict[str, int] = {}
    if plan is None or plan.mesh.size == plan.mesh.shape.get("data", 1):
        return found
    places = jax.tree.leaves(plan.params(params))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    for (path, leaf), where in zip(leaves, places):
        size = int(leaf.size * leaf.dtype.itemsize)
        if where.is_fully_replicated and size >= least:
            found[jax.tree_util.keystr(path, simple=True, separator="/")] = size
    return found


def warn_of_whole(plan: Plan | None, params: Any) -> None:
    """Log the params that `whole` finds, where there are any."""
    for path, size in whole(plan, params).items():
        logging.warning(
            "every device holds all of %s (%.0f MB): no rule of "
            "models/distributed/axis_rules.py cuts it",
            *(path, size / 1e6),
        )


def fetch(tree: Any) -> Any:
    """Gather arrays of a mesh as NumPy arrays, whole on every process."""

    def one(x: Any) -> np.ndarray:
        if x.is_fully_addressable or x.is_fully_replicated:
            return np.asarray(x)
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(one, tree)


def on(
    mesh: Any, kind: str = "decode", rules: str = "", config: Any = None
) -> Plan | None:
    """Make the plan of a mesh; None without a mesh.

    Args:
        mesh: a `jax.sharding.Mesh`, sizes as text ("data=2,tensor=8"), or "auto": the
            `device_mesh.preset` on all devices, no mesh on a single device.
        kind: "decode" or "train", a key of `axis_rules.RULES`.
        rules: replaced rules, like "vocab=,embed=fsdp,batch=data+fsdp".
        config: the model's config, for "auto".
    """
    if type(mesh) is str:
        mesh = device_mesh.from_text(mesh, kind, config)
    if mesh is None:
        return None
    known = device_mesh.MESH_AXES
    unknown = [axis for axis in mesh.axis_names if axis not in known]
    if unknown:
        raise ConfigError(f"the mesh has axes {unknown}: use some of {known}")
    table = {**axis_rules.RULES[kind], **axis_rules.replaced(rules)}
    auto = (AxisType.Auto,) * len(mesh.axis_names)
    plain = Mesh(mesh.devices, mesh.axis_names, axis_types=auto)
    return Plan(plain, tuple(sorted(table.items())))


def training(plan: Plan | None, rules: str = "") -> Plan | None:
    """Make the plan for params trained beside a target that is sharded by `plan`."""
    return on(None if plan is None else plan.mesh, "train", rules)


_PLAN: contextvars.ContextVar[Plan | None] = contextvars.ContextVar("plan")


@contextlib.contextmanager
def use(plan: Plan | None) -> Iterator[None]:
    """Trace under `plan`. Use it around the outermost jit: inner traces are cached."""
    token = _PLAN.set(plan)
    try:
        yield
    finally:
        _PLAN.reset(token)


def active() -> Plan | None:
    return _PLAN.get(None)


def total(x: jax.Array, size: int, axis: str) -> jax.Array:
    """Sum `x` over the shards of a dimension of `size`; within `by_shard` alone."""
    names = cutting((size,), axis)
    return jax.lax.psum(x, names) if names else x


def cutting(shape: Sequence[int], axes: str) -> tuple[str, ...]:
    """Return the mesh axes that cut an array in the plan in use; () without one."""
    plan = active()
    if plan is None or plan.mesh.size == 1:
        return ()
    parts = [part for part in plan.spec(shape, axes) if part is not None]
    return tuple(n for part in parts for n in ((part,) if type(part) is str else part))


def constrain(x: jax.Array, axes: str) -> jax.Array:
    """Constrain the sharding of `x` by its axes where a plan is in use."""
    plan = active()
    if plan is None:
        return x
    return jax.lax.with_sharding_constraint(x, plan.of(x.shape, axes))


def pieces(size: int, axis: str) -> int:
    """Return the number of shards of a dimension in the plan in use; 1 without one."""
    plan = active()
    return 1 if plan is None else plan.parts(size, axis)


def by_shard(
    function: Callable, arrays: tuple, axes: tuple, result: Callable | None = None
) -> Any:
    """Apply `function(*arrays)` on every device to its own shard (`jax.shard_map`).

    Kernels need this, and so do reads and writes at computed indices: the compiler
    cannot partition them and would gather their inputs.

    Args:
        function: maps the shards to the result's shard.
        arrays: the arguments, arrays or trees.
        axes: the axes of each, as a tree of the same structure.
        result: maps the result, of shapes alone, to its axes. None: the result has the
            shape and axes of the first argument.
    """
    plan = active()
    if plan is None or plan.mesh.size == 1:
        return function(*arrays)
    specs = jax.tree.map(lambda x, a: plan.spec(x.shape, a), arrays, axes)
    out = specs[0]
    if result is not None:
        with use(None):
            made = jax.eval_shape(function, *arrays)
        out = jax.tree.map(lambda x, a: plan.spec(x.shape, a), made, result(made))
    cut = jax.shard_map(
        function,
        mesh=plan.factored,
        in_specs=specs,
        out_specs=out,
        check_vma=False,
    )
    return cut(*arrays)
