"""Where arrays lie on a mesh of devices: logical axes, mesh axes, one table between.

A mesh has up to three axes: `data` (copies of the weights), `fsdp` (weights cut up and
fetched layer by layer) and `tensor` (products cut up, two sums a layer). Every array
names its own axes in a string, `"embed kv_heads - -"`: `-` is on no axis, `*` is left
to the compiler. `axis_rules.RULES` says over which mesh axes a logical axis is spread;
a dimension that they do not divide stays whole, so that every plan is legal for every
shape.

While a plan is in `use`, `constrain` pins what is traced; without one it does nothing,
and a program for one device is what it was.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from models.distributed import axis_rules, device_mesh
from models.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Plan:
    """A mesh and the rules in force on it; hashable, as a part of a program's name."""

    mesh: Mesh
    rules: tuple[tuple[str, tuple[str, ...]], ...]

    def spec(self, shape: Sequence[int], axes: str) -> PartitionSpec:
        """The cut of an array of `shape` whose dimensions are `axes`."""
        rules, taken = dict(self.rules), set()
        parts: list[Any] = []
        for size, name in zip(shape, axes.split()):
            if name == "*":
                parts.append(PartitionSpec.UNCONSTRAINED)
                continue
            chosen: list[str] = []
            for axis in rules.get(name, ()):
                width = self.mesh.shape.get(axis, 1)
                ways = width * math.prod(self.mesh.shape[a] for a in chosen)
                if width > 1 and axis not in taken and size % ways == 0:
                    chosen.append(axis)
                    taken.add(axis)
            several = tuple(chosen) if len(chosen) > 1 else None
            parts.append(several or (chosen[0] if chosen else None))
        while parts and parts[-1] is None:
            parts.pop()
        return PartitionSpec(*parts)

    def of(self, shape: Sequence[int], axes: str) -> NamedSharding:
        return NamedSharding(self.mesh, self.spec(shape, axes))

    def tree(self, arrays: Any, axes: Any) -> Any:
        """Shardings of a tree, given a tree of the same structure that names axes."""
        return jax.tree.map(lambda x, a: self.of(x.shape, a), arrays, axes)

    def params(self, tree: Any) -> Any:
        """Shardings of params, of gradients, or of an optimiser's state of them."""

        def one(path: tuple, x: Any) -> NamedSharding:
            axes = axis_rules.param_axes(axis_rules.param_name(path), len(x.shape))
            return self.of(x.shape, axes)

        return jax.tree_util.tree_map_with_path(one, tree)

    def rows(self, tree: Any) -> Any:
        """Shardings of arrays whose first dimension is the batch."""
        return jax.tree.map(lambda x: self.of(x.shape, "batch"), tree)

    def parts(self, size: int, axis: str) -> int:
        """Into how many pieces a dimension of `size` is cut."""
        found = next(iter(self.spec((size,), axis)), None)
        names = (found,) if type(found) is str else found or ()
        return math.prod(self.mesh.shape[name] for name in names)

    def share(self) -> tuple[int, int]:
        """(i, n): this process holds the i-th of n equal shares of a batch's rows."""
        ways = math.prod(self.mesh.shape.get(a, 1) for a in dict(self.rules)["batch"])
        rows = self.of((ways,), "batch")
        where: Any = rows.addressable_devices_indices_map((ways,))
        held = [at[0].indices(ways)[:2] for at in where.values()]
        first, last = min(x for x, _ in held), max(x for _, x in held)
        if first % (last - first) or len(set(held)) != last - first:
            raise ConfigError(
                f"a process of the mesh {dict(self.mesh.shape)} holds the rows {held} "
                f"of {ways}: let `tensor` divide the devices of one process"
            )
        return first // (last - first), ways // (last - first)

    def batch(self, batch: Any) -> Any:
        """A global batch from the share of its rows that this process has read."""
        if jax.process_count() == 1:
            return jax.device_put(batch, self.rows(batch))
        count = self.share()[1]

        def whole(x: np.ndarray) -> jax.Array:
            shape = (x.shape[0] * count, *x.shape[1:])
            if self.parts(shape[0], "batch") % count:
                raise ConfigError(
                    f"{count} processes hold shares of a batch, and {shape[0]} rows do "
                    f"not divide over the mesh {dict(self.mesh.shape)}: choose more "
                    "rows a batch, or a smaller `data` axis"
                )
            own = np.asarray(x)
            rows = self.of(shape, "batch")
            return jax.make_array_from_process_local_data(rows, own, shape)

        return jax.tree.map(whole, batch)


def share(plan: Plan | None) -> tuple[int, int]:
    """`Plan.share`; without a plan a process reads every row."""
    return (0, 1) if plan is None else plan.share()


def put(tree: Any, shardings: Any) -> Any:
    """Arrays that every process holds alike, placed on a mesh."""

    def one(x: Any, sharding: NamedSharding) -> jax.Array:
        x = jax.numpy.asarray(x)
        if sharding.is_fully_addressable or not x.is_fully_addressable:
            return jax.device_put(x, sharding)
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(x), sharding))
        local = np.asarray(x)
        return jax.make_array_from_callback(local.shape, sharding, local.__getitem__)

    return jax.tree.map(one, tree, shardings)


def placed(plan: Plan | None, params: Any) -> Any:
    """All params on the plan's devices; what is there already stays as it lies."""
    if plan is None:
        return params
    devices = set(plan.mesh.devices.flat)

    def one(x: Any, where: Any) -> Any:
        x = jax.numpy.asarray(x)
        return x if x.sharding.device_set == devices else put(x, where)

    return jax.tree.map(one, params, plan.params(params))


def fetch(tree: Any) -> Any:
    """Arrays of a mesh as NumPy arrays, whole on every process."""

    def one(x: Any) -> np.ndarray:
        if x.is_fully_addressable or x.is_fully_replicated:
            return np.asarray(x)
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))

    return jax.tree.map(one, tree)


def on(
    mesh: Any, kind: str = "decode", rules: str = "", config: Any = None
) -> Plan | None:
    """The plan of a mesh with the rules of `kind`, some replaced; None without one.

    `mesh` is a `jax.sharding.Mesh`, sizes as text ("data=2,tensor=8"), or "auto": the
    `preset` of the model of this `config` on all devices, and none on a single one.
    `rules` reads like `"vocab=,embed=fsdp,batch=data+fsdp"`.
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
    """The plan of what is trained beside a target that lies by `plan`."""
    return on(None if plan is None else plan.mesh, "train", rules)


_PLAN: contextvars.ContextVar[Plan | None] = contextvars.ContextVar("plan")


@contextlib.contextmanager
def use(plan: Plan | None) -> Iterator[None]:
    """Trace under `plan`. Only around the outermost jit: inner ones are kept."""
    token = _PLAN.set(plan)
    try:
        yield
    finally:
        _PLAN.reset(token)


def active() -> Plan | None:
    return _PLAN.get(None)


def constrain(x: jax.Array, axes: str) -> jax.Array:
    """`x`, laid out by its axes where a plan is in use."""
    plan = active()
    if plan is None:
        return x
    return jax.lax.with_sharding_constraint(x, plan.of(x.shape, axes))


def pieces(size: int, axis: str) -> int:
    """Into how many pieces the plan in use cuts a dimension; 1 without a plan."""
    plan = active()
    return 1 if plan is None else plan.parts(size, axis)


def by_shard(function: Callable, arrays: tuple, axes: tuple) -> jax.Array:
    """`function(*arrays)` by every device on its own part, given the arrays' axes.

    The result has the shape and axes of the first array. For kernels, which the
    compiler cannot cut: it would gather what they read.
    """
    plan = active()
    if plan is None or plan.mesh.size == 1:
        return function(*arrays)
    specs = jax.tree.map(lambda x, a: plan.spec(x.shape, a), arrays, axes)
    cut = jax.shard_map(
        function, mesh=plan.mesh, in_specs=specs, out_specs=specs[0], check_vma=False
    )
    return cut(*arrays)
