"""Meshes over several slices, and rules that are refused."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.distributed import axis_rules, device_mesh, sharding
from models.errors import ConfigError


def slices(count: int, each: int) -> list:
    """Devices as JAX describes them, with the slice that each belongs to."""
    return [
        types.SimpleNamespace(
            id=i,
            slice_index=i // each,
            process_index=i // each,
            platform="cpu",
            device_kind="cpu",
        )
        for i in range(count * each)
    ]


def grid(sizes: dict, devices: list, monkeypatch) -> np.ndarray:
    """Slice numbers over (data, fsdp, tensor)."""
    monkeypatch.setattr(device_mesh, "Mesh", lambda grid, *_, **__: grid)
    found = device_mesh.mesh_of(sizes, devices)
    return np.vectorize(lambda device: device.slice_index)(found)


def test_slices_lie_along_data_or_fsdp(monkeypatch):
    """Never along tensor: a layer's sums stay within a slice."""
    found = grid({"data": 4, "tensor": 2}, slices(2, 4), monkeypatch)
    assert found.shape == (4, 1, 2)
    assert (found == found[:, :, :1]).all() and sorted(set(found.flat)) == [0, 1]
    found = grid({"fsdp": 4, "tensor": 2}, slices(2, 4), monkeypatch)
    assert found.shape == (1, 4, 2) and (found == found[:, :, :1]).all()
    assert found[0, :, 0].tolist() == [0, 0, 1, 1]
    found = grid({"data": 2, "fsdp": 2, "tensor": 2}, slices(2, 4), monkeypatch)
    assert (found == np.array([0, 1])[:, None, None]).all()


def test_fault_one_slice_is_assumed(monkeypatch):
    """Planted: devices in their order, whatever slice they are of."""
    devices = slices(2, 4)
    mixed = [devices[i] for i in (0, 4, 1, 5, 2, 6, 3, 7)]
    sound = grid({"data": 4, "tensor": 2}, mixed, monkeypatch)
    assert (sound == sound[:, :, :1]).all()
    monkeypatch.setattr(device_mesh, "_slices", lambda devices: {0})
    planted = grid({"data": 4, "tensor": 2}, mixed, monkeypatch)
    assert not (planted == planted[:, :, :1]).all()


def test_tensor_over_slices_is_refused():
    with pytest.raises(ConfigError, match="on 2 slices: let data"):
        device_mesh.mesh_of({"data": 1, "tensor": 8}, slices(2, 4))


def test_presets_have_a_copy_in_each_slice():
    assert device_mesh.preset("train", 8e9, 8, 32, 2) == {
        "data": 2,
        "fsdp": 4,
        "tensor": 4,
    }
    assert device_mesh.preset("train", 8e9, 8, 32) == {"fsdp": 8, "tensor": 4}
    assert device_mesh.preset("decode", 80e9, 8, 32, 8) == {"data": 8, "tensor": 4}


def test_slots_of_a_cache_are_not_cut():
    """Lengths are of whole rows: cut slots gave wrong texts without an error."""
    with pytest.raises(ConfigError, match="slots stay on one device"):
        axis_rules.replaced("batch=data,sequence=fsdp")


def test_params_that_no_rule_cuts_are_named(monkeypatch):
    """With their bytes, where the mesh cuts params at all; small ones are not."""
    mesh = jax.sharding.AbstractMesh((2, 1, 2), device_mesh.MESH_AXES)
    plan = sharding.Plan(mesh, tuple(sorted(axis_rules.RULES["decode"].items())))
    shape = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.bfloat16)
    params = {"layer": {"qkv": shape(4096, 8, 6, 128)}, "norm": shape(4096)}
    params["transfer"] = shape(3, 4096, 4096)
    assert sharding.whole(plan, params) == {"transfer": 3 * 4096 * 4096 * 2}
    # Two devices divide neither five KV heads nor their odd width.
    params["layer"]["qkv"] = shape(4096, 5, 6, 127)
    assert set(sharding.whole(plan, params)) == {"transfer", "layer/qkv"}
    copies = jax.sharding.AbstractMesh((4, 1, 1), device_mesh.MESH_AXES)
    plan = sharding.Plan(copies, plan.rules)
    assert sharding.whole(plan, params) == {} == sharding.whole(None, params)
