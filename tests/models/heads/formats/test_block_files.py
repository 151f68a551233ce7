"""Block drafters' published layouts: written and read back, and what is refused."""

import jax
import numpy as np
import pytest

from models.errors import CheckpointError, ConfigError
from models.heads import dflash, dflash2, domino, dspark, treeflash
from models.heads.formats import block_files
from models.heads.modules import head_config
from tests.decoding.drafters import agreement

KEY = jax.random.key(0)
SMALL = {"layers": 2, "block": 4}
MAKERS = {
    "dflash": (dflash, {"windows": (0, 7), "causal_windows": False}),
    "jetspec": (dflash, {"causal": True, "learned_mask": False, "mask_token": 3}),
    "dflash2": (dflash2, {"rank": 4, "convolution": 8, "candidates": 5}),
    "domino": (domino, {"width": 6, "rank": 4, "pure": 2}),
    "dspark": (dspark, {"rank": 4}),
    "gated": (dspark, {"rank": 4, "markov": "gated", "confidence": False}),
    "rnn": (dspark, {"rank": 4, "markov": "rnn"}),
    "treeflash": (treeflash, {}),
}


def target():
    return agreement.target().config


def made(name: str):
    module, fields = MAKERS[name]
    params = module.init(KEY, target(), **{**SMALL, **fields})
    kind = module.__name__.rpartition(".")[2]
    return kind, agreement.stirred(params)


@pytest.mark.parametrize("name", list(MAKERS))
def test_a_folder_is_read_back(name, tmp_path):
    """Params and configs, to the bit. Planted: a number of one tensor."""
    kind, params = made(name)
    block_files.save(kind, tmp_path, params, target(), (1,))
    found_kind, found, arguments = block_files.load(tmp_path, target())
    assert (found_kind, arguments) == (kind, {"taps": (1,)})
    ours, theirs = head_config.split(params), head_config.split(found)
    assert ours[1] == theirs[1]
    same = jax.tree.map(lambda a, b: bool((a == b).all()), ours[0], theirs[0])
    assert all(jax.tree.leaves(same))
    config, tensors = block_files.write(kind, params, target(), (1,))
    tensors["fc.weight"] = tensors["fc.weight"] + 1
    planted = head_config.split(block_files.read(config, tensors, target())[1])[0]
    assert not (planted["backbone"]["fuse"] == ours[0]["backbone"]["fuse"]).all()


@pytest.mark.parametrize("change", ["missing", "unknown"])
def test_other_tensors_are_refused(change):
    kind, params = made("dspark")
    config, tensors = block_files.write(kind, params, target())
    if change == "missing":
        del tensors["markov_head.markov_w2.weight"]
    else:
        tensors["layers.0.self_attn.sinks"] = np.zeros(4)
    with pytest.raises(CheckpointError, match=change):
        block_files.read(config, tensors, target())


def test_copies_of_the_target_s_rows_are_compared():
    kind, params = made("dflash")
    config, tensors = block_files.write(kind, params, target())
    rows = np.asarray(agreement.target().params["embedding"]["tokens"])
    tensors["embed_tokens.weight"] = tensors["lm_head.weight"] = rows
    block_files.read(config, tensors, target(), rows, rows)
    tensors["lm_head.weight"] = rows + 1
    with pytest.raises(CheckpointError, match="not the target's head"):
        block_files.read(config, tensors, target(), rows, rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 64}, "hidden_size=64"),
        ({"attention_bias": True}, "attention_bias"),
        ({"num_experts": 4}, "num_experts"),
        ({"dflash_config": {"block_size": 4}}, "target_layer_ids"),
        (
            {
                "rope_parameters": {
                    "rope_type": "linear",
                    "rope_theta": 10000.0,
                    "factor": 2.0,
                }
            },
            "RoPE",
        ),
    ],
)
def test_fields_that_do_not_fit(change, words):
    kind, params = made("dflash")
    config, tensors = block_files.write(kind, params, target())
    with pytest.raises(ConfigError, match=words):
        block_files.read({**config, **change}, tensors, target())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"windows": (5, 7)}, r"windows=\(5, 7\)"),
        ({"windows": (0, 7), "before_anchor": True}, "before_anchor=True"),
        ({"draft_vocabulary": True}, "draft_vocabulary=True"),
    ],
)
def test_what_the_layouts_cannot_hold(fields, words):
    params = dflash.init(KEY, target(), **SMALL, **fields)
    with pytest.raises(ConfigError, match=words):
        block_files.write("dflash", params, target())


def test_states_that_the_target_lacks():
    """Planted: the last that it has."""
    kind, params = made("dflash")
    config, tensors = block_files.write(kind, params, target(), (1,))
    last = {**config["dflash_config"], "target_layer_ids": [target().n_layers - 1]}
    block_files.read({**config, "dflash_config": last}, tensors, target())
    last["target_layer_ids"] = [target().n_layers]
    with pytest.raises(ConfigError, match=r"taps=\(3,\)"):
        block_files.read({**config, "dflash_config": last}, tensors, target())


def test_the_alignment_is_the_config_s():
    """DeepSpec's flat fields: its architecture is shifted, and so is a flag."""
    kind, params = made("dspark")
    config, tensors = block_files.write(kind, params, target())
    flat = {**config, **config.pop("dflash_config")}
    del flat["dflash_config"], flat["sample_from_anchor"], flat["projector_type"]
    _, found, _ = block_files.read(flat, tensors, target())
    assert dflash.config_of(found["backbone"]).shifted
    other = {**flat, "sample_from_anchor": False}
    _, found, _ = block_files.read(other, tensors, target())
    assert not dflash.config_of(found["backbone"]).shifted
