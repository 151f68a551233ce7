"""Block drafters read from files of their authors' code give that code's laws."""

import functools
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from models import transformer
from models.heads import dflash, dflash2, domino, dspark, treeflash
from models.heads.formats import block_files
from models.heads.modules import block_head
from models.heads.modules.block_head import Slot

FOLDER = pathlib.Path(__file__).parents[3] / "golden" / "blocks"
CASES = ("dflash", "dflash2", "domino", "dspark", "gated", "rnn", "treeflash")
HEADS = {
    "dflash": dflash.HEAD,
    "dflash2": dflash2.HEAD,
    "domino": domino.HEAD,
    "dspark": dspark.HEAD,
    "treeflash": treeflash.HEAD,
}
NEAR = 1e-4  # float32 of two codes, logits of a few units


@functools.cache
def target():
    """The target's shape as the files' config.json has it, but for its own RoPE."""
    return transformer.Config(
        vocab_size=97,
        d_model=32,
        n_layers=6,
        n_heads=4,
        n_kv_heads=2,
        head_dim=8,
        d_ff=48,
        max_positions=64,
        norm_eps=1e-6,
        ropes=(transformer.rope(8, 10000.0),),
    )


@functools.cache
def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)


def laws(given: dict, target, params, kind: str, read: tuple, late: int = 0):
    """Logits of the block's slots; `late` moves the anchor of the text.

    Args:
        given: the arrays of a golden file.
        target: the target's config.
        params: the head's.
        kind: of the head.
        read: the states that it reads.
        late: tokens by which the block's place is early.
    """
    backbone, anchor = params["backbone"], int(given["anchor"])
    rows, tokens = given["embedding"], given["tokens"]
    width = dflash.config_of(backbone).block
    hidden = given["features"].reshape(*given["features"].shape[:2], len(read), -1)
    # What stands at the anchor and behind it is not seen.
    behind = np.full((hidden.shape[0], 3, *hidden.shape[2:]), 9.0, np.float32)
    hidden = jnp.asarray(np.concatenate([hidden[:, :anchor], behind], 1))
    features = dflash.features(backbone, hidden, 1e-6)
    mask = rows[dflash.config_of(backbone).mask_token]
    x = dflash.inputs(backbone, jnp.asarray(rows[tokens[:, anchor]])[:, None], mask)
    at = jnp.full((len(tokens), 1), anchor - late, jnp.int32)
    raw = dflash.at_anchors(backbone, target, features, x, at)
    slots = Slot(raw, dflash.normed(backbone, raw, 1e-6))
    head = lambda states: dflash.limited(backbone, states @ given["head"].T)
    count = dflash.config_of(backbone).drafts
    assert count in (width, width - 1)
    before = tokens[:, None, anchor : anchor + count]
    form = HEADS[kind]
    summary = block_head.summaries(
        form, params, jnp.asarray(before), jnp.asarray(rows[before]), slots
    )
    found = form.logits(params, slots, head(slots.states), summary, head)
    return found[:, 0], slots.states[:, 0], before[:, 0]


@pytest.mark.parametrize("name", CASES)
def test_laws_are_those_of_the_authors_code(name):
    """Planted: the block begins one token early."""
    given = golden(name)
    rows, head = given["embedding"], given["head"]
    folder = FOLDER / name
    kind, params, arguments = block_files.load(folder, target(), rows, head)
    assert arguments == {"taps": (2, 4)}
    found, states, before = laws(given, target(), params, kind, arguments["taps"])
    np.testing.assert_allclose(found, given["logits"], atol=NEAR, rtol=NEAR)
    if kind == "dspark":
        slot = Slot(states, states)
        sure = dspark.rated(params, dspark.watched(params, jnp.asarray(before), slot))
        np.testing.assert_allclose(sure, given["confidence"], atol=NEAR, rtol=NEAR)
    planted, *_ = laws(given, target(), params, kind, arguments["taps"], late=1)
    wrong = ~np.isclose(planted, given["logits"], atol=NEAR, rtol=NEAR)
    assert wrong.any(-1).all()


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_read_again(name, tmp_path):
    kind, params, arguments = block_files.load(FOLDER / name, target())
    block_files.save(kind, tmp_path, params, target(), **arguments)
    again = block_files.load(tmp_path, target())
    assert again[0] == kind and again[2] == arguments
    found, *_ = laws(golden(name), target(), again[1], kind, arguments["taps"])
    np.testing.assert_allclose(found, golden(name)["logits"], atol=NEAR, rtol=NEAR)


def test_the_files_say_what_made_them():
    for name in CASES:
        about = json.loads(str(golden(name)["about"]))
        assert set(about) == {"source", "torch", "transformers"}
