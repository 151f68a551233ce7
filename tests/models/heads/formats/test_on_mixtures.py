"""Published heads on mixtures of experts, whose layers are dense all the same.

Drafters are released for Qwen3-MoE and gpt-oss in the layouts of EAGLE-3 and DFlash.
"""

import functools

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from decoding.conformance import toy_heads
from models.heads import dflash
from models.heads.formats import block_files, published
from models.heads.modules import decoder_layer, head_config
from tests.conformance import test_families as families
from tests.decoding.drafters import agreement

TARGETS = ("qwen3_moe", "gpt_oss", "deepseek_v2", "gemma4_text")


@functools.cache
def heads(family: str, name: str):
    return toy_heads.heads(name, families.target(family))


def same(ours, theirs) -> bool:
    alike = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), ours, theirs)
    return all(jax.tree.leaves(alike))


@pytest.mark.parametrize("family", TARGETS)
def test_the_layer_is_dense_and_of_the_target_s_heads(family):
    """Planted: the one wide head of a latent cache, or the heads of sliding layers."""
    config = families.target(family).config
    c = decoder_layer.geometry(config)
    assert not c.shapes and c.latent is None and not c.sinks and c.layer(0).window == 0
    wanted = {"qwen3_moe": (2, 16), "gpt_oss": (2, 8), "gemma4_text": (2, 8)}
    wanted["deepseek_v2"] = (4, 6)
    assert (c.n_kv_heads, c.head_dim) == wanted[family]
    assert len(c.ropes) == 1 and 2 * len(c.ropes[0].frequencies) <= c.head_dim


@pytest.mark.parametrize("family", TARGETS)
def test_eagle3_files_come_back(family, tmp_path):
    """With the map of a draft vocabulary. Planted: another head's number."""
    config = families.target(family).config
    params = heads(family, "drafters/eagle3")
    tensors = published.write("eagle3", params, config)
    assert {"d2t", "t2d"} <= set(tensors)
    arrays = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    save_file(arrays, str(tmp_path / "model.safetensors"))
    embedding = families.target(family).params["embedding"]["tokens"]
    found, _ = published.load("eagle3", tmp_path, config, embedding)
    ours, theirs = (head_config.split(x)[0] for x in (params, found))
    assert same(ours, theirs)
    planted = {**theirs, "norm": theirs["norm"] + 1}
    assert not same(ours, planted)


@pytest.mark.parametrize("family", TARGETS)
def test_dflash_files_come_back(family, tmp_path):
    """The states that the head reads are named in its config.json."""
    config = families.target(family).config
    fields = {"layers": 2, "block": 4}
    params = agreement.stirred(dflash.init(jax.random.key(0), config, **fields))
    block_files.save("dflash", tmp_path, params, config, (1,))
    kind, found, arguments = block_files.load(tmp_path, config)
    assert (kind, arguments) == ("dflash", {"taps": (1,)})
    assert same(head_config.split(params)[0], head_config.split(found)[0])
