"""Published heads as folders of ours: what they are, their params and their method."""

import jax
import numpy as np
import pytest

import decoding
import models
from decoding import Method
from experiments import import_heads
from models.checkpoints.tensors import read_json, write_json
from models.heads import dflash, dspark, eagle3, medusa, p_eagle
from models.heads.formats import (
    block_files,
    native,
    published,
    speculators,
    speculators_blocks,
    speculators_parallel,
)
from models.heads.modules import decoder_layer, head_config
from tests.decoding.drafters import agreement

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A random model on disk."""
    lm = agreement.target()
    folder = tmp_path_factory.mktemp("target")
    models.save(models.Loaded(lm.model, lm.params), folder)
    return folder


def write(kind: str, folder) -> tuple:
    """Heads in a layout of theirs: their params, and what the command line adds."""
    lm = agreement.target()
    rows = decoder_layer.output_rows(lm.params)
    if kind == "dspark":
        params = dspark.init(KEY, lm.config, rank=4, layers=1, block=4)
        params = agreement.stirred(params)
        block_files.save(kind, folder, params, lm.config, (1,))
        return params, []
    if kind == "dflash":  # of speculators, with a draft vocabulary and a window
        shape = {"layers": 2, "block": 4, "windows": (0, 5), "before_anchor": True}
        mask = {"learned_mask": False, "mask_token": 3, "draft_vocabulary": True}
        params = dflash.init(KEY, lm.config, **shape, **mask)
        params["backbone"]["kept"] = np.arange(0, agreement.VOCAB, 2, np.int32)
        params = agreement.stirred(params)
        about = ("its target", (), (1,), rows)
        speculators_blocks.save(kind, folder, params, lm.config, *about)
        return params, []
    if kind == "p_eagle":
        params = p_eagle.init(KEY, lm.config, rows, layers=2, depths=3)
        params = agreement.stirred(params)
        names = {"embedding": lm.params["embedding"]["tokens"], "mask_token": 3}
        speculators_parallel.save(folder, params, lm.config, "its target", **names)
        return params, []
    if kind == "eagle3":
        kept = np.arange(0, agreement.VOCAB, 2)
        params = agreement.stirred(eagle3.init(KEY, lm.config, rows, kept))
        speculators.save(kind, folder, params, lm.config, "its target")
        return params, []
    params = agreement.stirred(medusa.init(KEY, lm.config, rows, 3))
    published.save(kind, folder / "heads.safetensors", params, lm.config)
    return params, ["--kind=medusa"]


@pytest.mark.parametrize("kind", ["dflash", "dspark", "eagle3", "medusa", "p_eagle"])
def test_heads_decode_as_those_that_were_written(kind, target, tmp_path):
    """Planted: other numbers of the same shapes."""
    (tmp_path / "theirs").mkdir()
    params, flags = write(kind, tmp_path / "theirs")
    own = ["--model", str(target), "--heads", str(tmp_path / "theirs")]
    ours = tmp_path / "ours"
    assert import_heads.main([*own, "--export", str(ours), *flags]) == 0
    lm = models.load(target)
    found = native.load(ours, lm)
    plain, written = head_config.split(found)[0], head_config.split(params)[0]
    near = jax.tree.map(lambda a, b: bool(np.allclose(a, b, atol=1e-6)), plain, written)
    assert all(jax.tree.leaves(near))
    method = Method.from_config(native.method(ours))

    def calls(heads) -> list[int]:
        out = decoding.generate(
            lm, [[5, 9, 4]], method, max_new_tokens=12, drafts={"heads": heads}
        )
        return [out.tokens, out.stats.target_calls.tolist()]

    assert calls(found) == calls(params)
    assert read_json(ours / "heads.json")["head"] == kind
    planted = jax.tree.map(lambda x: x + 1 if x.dtype == np.float32 else x, plain)
    near = jax.tree.map(np.allclose, planted, written)
    assert not all(jax.tree.leaves(near))


@pytest.mark.parametrize(
    ("name", "says"),
    [("exists", "give a new folder"), ("nothing", "--kind="), ("kind", "use one of")],
)
def test_what_cannot_be_converted_is_refused(name, says, target, tmp_path, capsys):
    theirs, flags = tmp_path / "theirs", []
    theirs.mkdir()
    write("medusa", theirs)
    if name == "exists":
        (tmp_path / "ours").mkdir()
    if name == "kind":
        flags = ["--kind=medussa"]
    own = ["--model", str(target), "--heads", str(theirs)]
    assert import_heads.main([*own, "--export", str(tmp_path / "ours"), *flags]) == 2
    assert says in capsys.readouterr().err


def test_a_config_that_is_no_heads_is_refused(target, tmp_path, capsys):
    """A model's own config.json names no states that a head reads."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    write("medusa", theirs)
    write_json(theirs / "config.json", read_json(target / "config.json"))
    own = ["--model", str(target), "--heads", str(theirs)]
    assert import_heads.main([*own, "--export", str(tmp_path / "ours")]) == 2
    assert "target_layer_ids" in capsys.readouterr().err
