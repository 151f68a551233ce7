"""Tables of checkpoint families: layouts of tensors, loading and saving by a table.

A family is a table of tensor names and layouts, with a reader and a writer of
config.json. A layout is a pair of inverse functions, so that saving is the inverse of
loading by construction; `split` also gives the shapes of the files' tensors.
"""

import fnmatch
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models import storage, transformer
from models.checkpoints import fields, tensors
from models.errors import CheckpointError, ConfigError

Config = transformer.Config


class Layout(NamedTuple):
    """`join(config, theirs) -> ours` and `split(config, ours) -> theirs`."""

    join: Callable
    split: Callable


class Entry(NamedTuple):
    """One of our params and the names of its tensors.

    `{i}` is the layer. Names with `{j}` are there for every expert, one after another.
    """

    ours: str
    theirs: tuple[str, ...]
    layout: Layout
    of: Callable[[Config], bool] = lambda config: True  # whether a layer's params are


def _concatenate(parts: Any, axis: int) -> Any:
    library = np if isinstance(parts[0], np.ndarray) else jnp
    return library.concatenate(parts, axis)  # type: ignore[attr-defined]


def _join_heads(c: Config, theirs: Any) -> Any:
    rest = theirs[0].shape[1:]
    parts = [x.reshape(c.n_kv_heads, -1, c.head_dim, *rest) for x in theirs]
    return _concatenate(parts, 1)


def _split_heads(c: Config, x: Any) -> tuple:
    rest = x.shape[3:]
    parts: tuple = (x[:, :-2], x[:, -2], x[:, -1])
    if c.layer(0).key_is_value:
        parts = (x[:, :-1], x[:, -1])
    return tuple(part.reshape(-1, *rest) for part in parts)


def _cut_heads(c: Config, x: Any) -> tuple:
    q, kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    return x[:q], x[q : q + kv], x[q + kv :]


def _flip(layout: Layout) -> Layout:
    return Layout(
        lambda c, theirs: layout.join(c, [x.T for x in theirs]),
        lambda c, x: tuple(part.T for part in layout.split(c, x)),
    )


def _kernel(layout: Layout) -> Layout:
    """Move the input axis first: weights are `[out, in]` in the files."""

    def join(c: Config, theirs: Any) -> Any:
        x = layout.join(c, theirs)
        return x.transpose(x.ndim - 1, *range(x.ndim - 1))

    def split(c: Config, x: Any) -> tuple:
        return layout.split(c, x.transpose(*range(1, x.ndim), 0))

    return Layout(join, split)


def _join_experts(c: Config, theirs: Any) -> Any:
    """Join gate and up of every expert, `[F, D]`, to `[E, D, 2, F]`."""
    return (
        np.stack(theirs)
        .reshape(len(theirs) // 2, 2, *theirs[0].shape)
        .transpose(0, 3, 1, 2)
    )


def _split_experts(c: Config, x: Any) -> tuple:
    parts = x.transpose(0, 2, 3, 1)
    return tuple(part for expert in parts for part in expert)


SAME = Layout(lambda c, t: t[0], lambda c, x: (x,))
HEADS = Layout(_join_heads, _split_heads)  # q, k, v with rows by head
FUSED_HEADS = Layout(  # one tensor: all q heads, then k, then v
    lambda c, t: _join_heads(c, _cut_heads(c, t[0])),
    lambda c, x: (_concatenate(_split_heads(c, x), 0),),
)
PAIR = Layout(  # gate, up
    lambda c, t: _concatenate([x[None] for x in t], 0),
    lambda c, x: (x[0], x[1]),
)
FUSED_PAIR = Layout(  # one tensor: all gate rows, then all up rows
    lambda c, t: t[0].reshape(2, -1, *t[0].shape[1:]),
    lambda c, x: (x.reshape(-1, *x.shape[2:]),),
)
KERNEL, KERNEL_HEADS, KERNEL_PAIR = _kernel(SAME), _kernel(HEADS), _kernel(PAIR)
KERNEL_FUSED_HEADS, KERNEL_FUSED_PAIR = _kernel(FUSED_HEADS), _kernel(FUSED_PAIR)
TRANSPOSED_HEADS = _kernel(_flip(FUSED_HEADS))  # `[in, out]` in the files (GPT-2)


EXPERT_PAIRS = Layout(_join_experts, _split_experts)
EXPERTS = Layout(  # `[D, F]` of every expert
    lambda c, t: np.stack(t).swapaxes(1, 2),
    lambda c, x: tuple(x.swapaxes(1, 2)),
)
FUSED_EXPERT_PAIRS = Layout(  # `[E, 2 F, D]`, gate rows first
    lambda c, t: t[0].reshape(len(t[0]), 2, -1, t[0].shape[2]).transpose(0, 3, 1, 2),
    lambda c, x: (x.transpose(0, 2, 3, 1).reshape(len(x), -1, x.shape[1]),),
)
FUSED_EXPERTS = Layout(  # `[E, D, F]`
    lambda c, t: t[0].swapaxes(1, 2), lambda c, x: (x.swapaxes(1, 2),)
)


LACED_PAIRS = Layout(  # `[E, D, 2 F]`, gate and up columns in turn
    lambda c, t: t[0].reshape(*t[0].shape[:2], -1, 2).swapaxes(2, 3),
    lambda c, x: (x.swapaxes(2, 3).reshape(*x.shape[:2], -1),),
)
LACED_BIASES = Layout(  # `[E, 2 F]`
    lambda c, t: t[0].reshape(len(t[0]), -1, 2).swapaxes(1, 2),
    lambda c, x: (x.swapaxes(1, 2).reshape(len(x), -1),),
)
LACED_ROWS = Layout(  # `[E, 2 F, ...]`, gate and up rows in turn
    lambda c, t: t[0].reshape(len(t[0]), -1, 2, *t[0].shape[2:]).swapaxes(1, 2),
    lambda c, x: (x.swapaxes(1, 2).reshape(len(x), -1, *x.shape[3:]),),
)
BY_GROUP = Layout(  # a number of each head
    lambda c, t: t[0].reshape(c.n_kv_heads, -1), lambda c, x: (x.reshape(-1),)
)


def norm(ours: str, theirs: str, bias: bool = False) -> tuple[Entry, ...]:
    """Make the entries of one norm: the scale, and with `bias` the bias."""
    scale = Entry(f"{ours}/scale", (f"{theirs}.weight",), SAME)
    return (scale, Entry(f"{ours}/bias", (f"{theirs}.bias",), SAME))[: 1 + bias]


@dataclass(frozen=True)
class Family:
    """The table of one HF `model_type`: its tensors, and its config.json.

    Tensor names begin with the first of `prefixes` that a checkpoint uses; a leading
    "/" in `entries` marks names without a prefix. Entries whose param a config lacks
    (biases, the head of a tied model) are skipped, so one table serves every config.
    Tensors that match `ignored` hold no weights of the language model. Files that have
    the names of one of the `alternatives` are read by it, in place of the entries of
    the same params; none is written.
    """

    model_type: str
    architectures: tuple[str, ...]
    entries: tuple[Entry, ...]
    read: Callable[[fields.Fields], Config]
    write: Callable[[Config], dict[str, Any]]
    prefixes: tuple[str, ...] = ("model.", "")
    ignored: tuple[str, ...] = ()
    alternatives: tuple[tuple[Entry, ...], ...] = ()

    def reading(self, stored: Any, prefix: str) -> "Family":
        """Return the family with the alternatives that the names `stored` are of."""
        entries = self.entries
        for found in self.alternatives:
            pattern = _name(found[0].theirs[0], prefix)
            if fnmatch.filter(stored, pattern.format(i="*", j="*")):
                ours = {entry.ours for entry in found}
                entries = (*(e for e in entries if e.ours not in ours), *found)
        return replace(self, entries=entries)


class Slot(NamedTuple):
    """One param of a config, and the names and shapes of its tensors in the files."""

    path: str
    shape: tuple[int, ...]
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    layout: Layout
    config: Config  # whose layers are all as the param's


def slots(family: Family, config: Config, prefix: str) -> list[Slot]:
    """List every param of `config`, in the order of the table and of the layers."""
    model = transformer.transformer(config)
    tree = jax.eval_shape(lambda: model.init(jax.random.key(0)))
    shapes = {path: x.shape for path, x in flatten(tree).items()}
    out = []
    for entry in family.entries:
        layered = entry.ours.startswith("layer_{i}")
        for i in range(config.n_layers if layered else 1):
            path = entry.ours.format(i=i)
            own = _alike(config, i)
            if path not in shapes or not entry.of(own):
                continue
            names = tuple(
                _name(name, prefix).format(i=i, j=j)
                for j in range(_experts(own) if "{j}" in entry.theirs[0] else 1)
                for name in entry.theirs
            )
            ours = jax.ShapeDtypeStruct(shapes.pop(path), jnp.float32)
            split: Any = functools.partial(entry.layout.split, own)
            theirs = jax.eval_shape(split, ours)
            out.append(
                Slot(
                    path,
                    ours.shape,
                    names,
                    tuple(x.shape for x in theirs),
                    entry.layout,
                    own,
                )
            )
    if shapes:
        raise ConfigError(
            f"{family.model_type} has no tensors for {sorted(shapes)}: this config "
            "belongs to another family"
        )
    return out


def _alike(config: Config, layer: int) -> Config:
    """Return the config of a model whose layers are all as layer `layer`."""
    if not config.shapes:
        return config
    shape = config.layer(layer)
    return replace(
        config,
        n_kv_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        d_ff=shape.d_ff,
        shapes=(shape,),
        kinds=(0,) * config.n_layers,
    )


def _experts(config: Config) -> int:
    experts = config.layer(0).experts
    return experts.count if experts else 0


def _name(name: str, prefix: str) -> str:
    return name[1:] if name.startswith("/") else prefix + name


def flatten(tree: dict, prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts to {"a/b": leaf}."""
    out = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            out.update(flatten(value, f"{prefix}{key}/"))
        else:
            out[prefix + key] = value
    return out


def unflatten(flat: dict[str, Any]) -> dict:
    """Nest {"a/b": leaf} again: the inverse of `flatten`."""
    tree: dict = {}
    for path, value in flat.items():
        *parents, leaf = path.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[leaf] = value
    return tree


def load_params(
    family: Family,
    config: Config,
    directory: storage.Path,
    dtype: Any,
    place: Callable[[str, np.ndarray], jax.Array],
) -> dict:
    """Load the params of a directory, at most one at a time on the host.

    Args:
        family: the table of tensors.
        config: the model's config.
        directory: the folder of the safetensors files.
        dtype: the dtype of the params.
        place: called with a param's path and array; puts it on the devices.

    Raises:
        CheckpointError: tensors are missing, extra or mis-shaped. The message lists
            *all* of them; none has been read.
    """
    stored = tensors.scan(directory)
    prefix = _prefix(family, stored)
    specs = slots(family.reading(stored, prefix), config, prefix)
    shapes = {n: s for slot in specs for n, s in zip(slot.names, slot.shapes)}
    missing = sorted(set(shapes) - set(stored))
    extra = sorted(set(stored) - set(shapes))
    skip = [*family.ignored, *(["*lm_head.weight"] if config.tied else [])]
    extra = [n for n in extra if not any(fnmatch.fnmatch(n, p) for p in skip)]
    wrong = [
        f"{n}: {stored[n].shape} in the file, {shape} by config.json"
        for n, shape in shapes.items()
        if n in stored and stored[n].shape != shape
    ]
    faults = {"missing": missing, "extra": extra, "mis-shaped": wrong}
    if any(faults.values()):
        text = "; ".join(f"{k} tensors: {v}" for k, v in faults.items() if v)
        raise CheckpointError(
            f"{directory}: {text}. The weights do not belong to this config.json "
            f"({family.model_type}): correct it, or copy the weights again"
        )
    flat = {}
    for slot in specs:
        parts = [stored[name].read() for name in slot.names]
        ours = slot.layout.join(slot.config, parts)
        # Always a copy in memory: never an alias of the file, which may change.
        kind = ours.dtype if ours.dtype == np.uint8 else dtype  # codes stay codes
        flat[slot.path] = place(slot.path, np.array(ours, dtype=kind, order="C"))
    return unflatten(flat)


def _prefix(family: Family, stored: dict[str, tensors.Stored]) -> str:
    first = next(
        entry.theirs[0] for entry in family.entries if entry.ours == "embedding/tokens"
    )
    for prefix in family.prefixes:
        if prefix + first in stored:
            return prefix
    return family.prefixes[0]


def save_params(
    family: Family,
    config: Config,
    params: dict,
    directory: storage.Path,
    shard_bytes: int = tensors.SHARD_BYTES,
) -> None:
    """Write `params` under the family's names, param by param.

    Files hold about `shard_bytes` bytes each.
    """
    flat = flatten(params)
    specs = slots(family, config, family.prefixes[0])
    wrong = {s.path for s in specs} ^ set(flat)
    wrong |= {s.path for s in specs if s.path in flat and flat[s.path].shape != s.shape}
    if wrong:
        raise CheckpointError(
            f"params do not belong to this config: {sorted(wrong)} are missing, extra "
            "or mis-shaped; apply unstack_layers to stacked params first"
        )

    def group(slot: Slot) -> tensors.Group:
        def make() -> tuple[np.ndarray, ...]:
            return slot.layout.split(slot.config, np.asarray(flat[slot.path]))

        return tensors.Group(slot.names, slot.shapes, flat[slot.path].dtype, make)

    tensors.write(directory, [group(slot) for slot in specs], shard_bytes)
