"""Meshes of devices: their axes, their sizes as text, and presets by a model's size."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from models.errors import ConfigError

MESH_AXES = ("data", "fsdp", "tensor")
AUTO = "auto"

# (at most this many parameters, chips that share one copy of the weights in decoding).
# At two bytes each, half of a 16 GiB chip remains for caches and activations.
SIZES = ((3e9, 1), (6e9, 2), (12e9, 4), (24e9, 8), (math.inf, 16))


def from_text(text: str, kind: str, config: Any) -> Mesh | None:
    """Make a mesh from sizes as text, or from "auto"; None for "" or a single device.

    Args:
        text: "data=2,tensor=8", "auto" or "".
        kind: "decode" or "train".
        config: the transformer's config, for "auto".
    """
    if text and text != AUTO:
        return mesh_of(parse(text))
    if jax.device_count() == 1 or not text:
        return None
    slices = len(_slices(jax.devices()))
    size, heads = weights(config), heads_of(kind, config)
    return mesh_of(preset(kind, size, heads, jax.device_count(), slices))


def weights(config: Any) -> int:
    """Estimate the number of params of a transformer with this config."""
    c = config
    layers = sum(_layer_weights(c, c.layer(i)) for i in range(c.n_layers))
    return layers + (1 if c.tied else 2) * c.vocab_size * c.d_model


def _layer_weights(c: Any, shape: Any) -> int:
    """Estimate the number of params of a layer of a shape."""
    a, e, products = c.latent, shape.experts, 3 if c.gated else 2
    width = 2 * (c.n_heads + shape.n_kv_heads) * shape.head_dim
    if a:  # queries, the latent, its bases, and the output
        width = c.n_heads * (a.plain + a.turned + a.value) + a.rank + a.turned
    ff = e.count * e.width + e.shared if e else shape.d_ff
    bases = c.n_heads * a.rank * (a.plain + a.value) if a else 0
    return c.d_model * (width + products * ff) + bases


def heads_of(kind: str, config: Any) -> int:
    """Return the number of heads that a preset's `tensor` divides.

    In decoding query heads: weights may need more devices than there are KV heads, and
    several then hold the same one. In training KV heads, since `fsdp` cuts weights.
    """
    return int(config.n_kv_heads if kind == "train" else config.n_heads)


def mesh_of(sizes: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """Make a mesh of these sizes (1 where absent); a size of -1 takes the rest.

    Where the devices are of several TPU slices, these lie along `data`, or along `fsdp`
    where `data` is 1: what crosses them goes through the data centre's network.

    Raises:
        ConfigError: sizes that are not those of the devices, or that would put `tensor`
            across slices.
    """
    devices = list(jax.devices() if devices is None else devices)
    unknown = set(sizes) - set(MESH_AXES)
    shape = [int(sizes.get(axis, 1)) for axis in MESH_AXES]
    rest = math.prod(n for n in shape if n > 0)
    if -1 in shape and len(devices) % rest == 0:
        shape[shape.index(-1)] = len(devices) // rest
    if unknown or min(shape) < 1 or math.prod(shape) != len(devices):
        raise ConfigError(
            f"mesh={dict(sizes)} on {len(devices)} devices: give sizes of {MESH_AXES} "
            f"whose product is {len(devices)}; one may be -1"
        )
    auto = (AxisType.Auto,) * 3
    slices = len(_slices(devices))
    if slices > 1:
        outer = _across(shape, slices)
        inner = [size // ways for size, ways in zip(shape, outer)]
        grid = mesh_utils.create_hybrid_device_mesh(
            inner, outer, devices, allow_split_physical_axes=True
        )
    else:
        make = mesh_utils.create_device_mesh
        grid = make(shape, devices, allow_split_physical_axes=True)
    return Mesh(grid, MESH_AXES, axis_types=auto)


@functools.cache
def factored(mesh: Any) -> Any:
    """Split the `tensor` axis into one axis for each prime factor of its size.

    A dimension may then be cut by part of `tensor`: eight KV heads lie over eight of
    sixteen devices, and two devices hold each.

    Args:
        mesh: a `Mesh`, or an `AbstractMesh` where only shapes are needed.

    Returns:
        A mesh of the same devices in the same order. The parts of `tensor` are named
        `tensor_0`, `tensor_1`, and so on; a prime size keeps its name.
    """
    names: list[str] = []
    sizes: list[int] = []
    for axis, size in mesh.shape.items():
        factors = _primes(size) if axis == "tensor" else [size]
        several = len(factors) > 1
        names += [f"{axis}_{i}" if several else axis for i in range(len(factors))]
        sizes += factors
    auto = (AxisType.Auto,) * len(names)
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(tuple(sizes), tuple(names), axis_types=auto)
    return Mesh(mesh.devices.reshape(sizes), names, axis_types=auto)


def parts_of(mesh: Any, axis: str) -> list[str]:
    """Return the axes of the factored `mesh` that a mesh axis was split into."""
    return [name for name in mesh.axis_names if name.partition("_")[0] == axis]


def _primes(size: int) -> list[int]:
    """Return the prime factors of `size` in order; [1] for 1."""
    factors, factor = [], 2
    while factor * factor <= size:
        while size % factor == 0 and size > factor:
            factors.append(factor)
            size //= factor
        factor += 1
    return [*factors, size]


def _slices(devices: Sequence[Any]) -> set[int]:
    """Return the numbers of the TPU slices that the devices are of; {0} elsewhere."""
    return {getattr(device, "slice_index", None) or 0 for device in devices}


def _across(shape: Sequence[int], slices: int) -> list[int]:
    """Return how many slices lie along each axis of MESH_AXES."""
    data, fsdp, _ = shape
    if data % slices == 0:
        return [slices, 1, 1]
    if data == 1 and fsdp % slices == 0:
        return [1, slices, 1]
    raise ConfigError(
        f"mesh={dict(zip(MESH_AXES, shape))} on {slices} slices: let data, or fsdp "
        f"with data=1, be a multiple of {slices}"
    )


def parse(text: str) -> dict[str, int]:
    """Parse sizes of mesh axes from a text like "data=2,tensor=8"."""
    try:
        pairs = [item.split("=") for item in filter(None, text.split(","))]
        return {name.strip(): int(size) for name, size in pairs}
    except ValueError:
        raise ConfigError(
            f"mesh={text!r}: write sizes of {MESH_AXES}, as in 'data=2,tensor=8'"
        ) from None


def covers(text: str, devices: int) -> bool:
    """Test whether sizes as text make a mesh of so many devices; "auto" and "" do."""
    sizes = [] if text == AUTO else list(parse(text).values())
    rest = math.prod(n for n in sizes if n > 0)
    if not sizes or -1 in sizes:
        return devices % rest == 0
    return rest == devices


def preset(
    kind: str, parameters: float, heads: int, devices: int, slices: int = 1
) -> dict[str, int]:
    """Choose mesh sizes for a model: `tensor` by memory and heads.

    Args:
        kind: "decode" or "train".
        parameters: the number of params.
        heads: the number of heads that `tensor` divides; see `heads_of`.
        devices: the number of devices, of all slices.
        slices: the number of TPU slices; training has a copy of the weights in each.
    """
    chips = next(ways for most, ways in SIZES if parameters <= most)
    tensor = math.gcd(math.gcd(chips, heads), devices // slices)
    if kind != "train":
        return {"data": devices // tensor, "tensor": tensor}
    within = {"fsdp": devices // slices // tensor, "tensor": tensor}
    return {"data": slices, **within} if slices > 1 else within
