"""Block drafters of vLLM's speculators: its code's laws, round trips, and refusals."""

import dataclasses
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from models import transformer
from models.checkpoints.tensors import read_json
from models.errors import CheckpointError, ConfigError
from models.heads import dflash, dflash2, domino, dspark, p_eagle
from models.heads.formats import speculators_blocks, speculators_parallel
from models.heads.modules import decoder_layer, head_config
from models.heads.modules.block_head import Slot
from models.heads.modules.head_config import CONFIG
from tests.decoding.drafters import agreement
from tests.models.heads.formats.test_block_golden import laws

FOLDER = pathlib.Path(__file__).parents[3] / "golden" / "speculators"
BLOCKS = ("dflash", "dflash2", "dflash_small", "dspark", "gated", "rnn")
CASES = (*BLOCKS, "peagle")
NEAR = 1e-4  # float32 of two codes, logits of a few units
KEPT = np.arange(1, 61, 3)


@functools.cache
def target():
    """The target's shape as the files' config.json has it, but for its own RoPE."""
    return transformer.Config(
        vocab_size=61,
        d_model=16,
        n_layers=6,
        n_heads=4,
        n_kv_heads=2,
        head_dim=8,
        d_ff=24,
        max_positions=64,
        norm_eps=1e-6,
        ropes=(transformer.rope(8, 5000.0),),
    )


@functools.cache
def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz") as file:
        return dict(file)


def files(name: str) -> tuple[dict, dict]:
    """config.json and the tensors of a golden folder."""
    folder = FOLDER / name
    return read_json(folder / "config.json"), load_file(folder / "model.safetensors")


def read(name: str, config: dict | None = None, tensors: dict | None = None) -> tuple:
    given = golden(name)
    theirs, weights = files(name)
    weights = weights if tensors is None else tensors
    about = (config or theirs, weights, target(), given["embedding"])
    if name == "peagle":
        return speculators_parallel.read(*about)
    return speculators_blocks.read(*about, given["head"])


def written(name: str, params, kind: str, taps) -> tuple[dict, dict]:
    given, names = golden(name), ("some/target", ("LlamaForCausalLM",), taps)
    if name == "peagle":
        return speculators_parallel.write(params, target(), *names)
    return speculators_blocks.write(kind, params, target(), *names, given["head"])


def near(found, wanted) -> np.ndarray:
    return np.isclose(found, wanted, atol=NEAR, rtol=NEAR)


@pytest.mark.parametrize("name", BLOCKS)
def test_laws_are_those_of_the_official_code(name):
    """Planted: another alignment of windows, or of the place."""
    given = golden(name)
    kind, params, arguments = read(name)
    assert arguments == {"taps": (2, 4)}
    backbone = params["backbone"]

    def of(params, late: int = 0) -> tuple:
        return laws(given, target(), params, kind, arguments["taps"], late)

    found, states, before = of(params)
    small = found.shape[-1] != given["logits"].shape[-1]
    assert small == ("kept" in backbone) == (name in ("dflash_small", "dspark"))
    if small:
        np.testing.assert_array_equal(backbone["kept"], KEPT)
        assert np.isneginf(np.delete(found, KEPT, -1)).all()
    cut = lambda found: found[..., KEPT] if small else found
    assert near(cut(found), given["logits"]).all()
    if "confidence" in given:
        slot = Slot(states, states)
        sure = dspark.rated(params, dspark.watched(params, jnp.asarray(before), slot))
        assert near(sure, given["confidence"]).all()
    assert not near(cut(of(params, late=1)[0]), given["logits"]).all(-1).any()
    own = dflash.config_of(backbone)
    if own.windows:
        form = dataclasses.replace(own, before_anchor=False)
        planted = {**params, "backbone": {**backbone, CONFIG: form}}
        wrong = ~near(cut(of(planted)[0]), given["logits"])
        assert wrong.any(-1).all()


def test_passes_of_p_eagle_are_those_of_the_official_code():
    """Planted: the target's embedding in place of the head's own."""
    given = golden("peagle")
    kind, params, arguments = read("peagle")
    assert (kind, arguments) == ("p_eagle", {"taps": (1, 3, 5)})
    assert p_eagle.config_of(params).depths == 3
    hidden = given["features"].reshape(*given["features"].shape[:2], 3, -1)
    g = decoder_layer.joint(jnp.asarray(hidden), params["fuse"])
    tokens, anchor = np.roll(given["tokens"], -1, 1), int(given["anchor"])
    at = jnp.full((len(tokens), 1), anchor, jnp.int32)

    def of(rows) -> np.ndarray:
        first, more = p_eagle.over_text(params, target(), rows, g, at)
        outputs = jnp.concatenate([first[:, anchor, None], more[:, 0]], 1)
        return p_eagle.logits(params, outputs, 1e-6)

    theirs = jnp.asarray(given["embedding"][tokens])
    found = of(p_eagle.embed(params, jnp.asarray(tokens), theirs))
    assert near(found, given["logits"]).all()
    np.testing.assert_array_equal(params["kept"], KEPT)
    assert not near(of(theirs), given["logits"]).all(-1).any()


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_what_was_read(name):
    """Tensors and params to the bit, and every field. Planted: a changed tensor."""
    theirs, tensors = files(name)
    kind, params, arguments = read(name)
    config, back = written(name, params, kind, arguments["taps"])
    assert set(back) == set(tensors)
    for key, x in back.items():
        assert tensors[key].dtype == x.dtype
        np.testing.assert_array_equal(x, tensors[key], err_msg=key)
    by_us = {"auto_map", "transformers_version", "speculators_version", "dtype"}
    for key in set(theirs) - by_us - {"transformer_layer_config", "speculators_config"}:
        assert config[key] == theirs[key], key
    ways = [x["speculators_config"]["proposal_methods"][0] for x in (config, theirs)]
    assert ways[0]["speculative_tokens"] == ways[1]["speculative_tokens"]
    again = read(name, config, back)
    assert (again[0], again[2]) == (kind, arguments)
    first, second = head_config.split(params), head_config.split(again[1])
    assert first[1] == second[1]
    same = lambda a, b: all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))
    assert same(first[0], second[0])
    back["fc.weight"] = back["fc.weight"] + 1
    assert not same(first[0], head_config.split(read(name, config, back)[1])[0])


@pytest.mark.parametrize("name", CASES)
def test_other_tensors_are_refused_by_their_names(name):
    _, tensors = files(name)
    for gone in tensors:
        if gone in ("t2d", "embed_tokens.weight"):  # of which another tensor holds all
            continue
        rest = {n: x for n, x in tensors.items() if n != gone}
        with pytest.raises(CheckpointError, match=gone.replace(".", r"\.")):
            read(name, tensors=rest)
    with pytest.raises(CheckpointError, match=r"unknown \['layers\.0\.sinks'\]"):
        read(name, tensors={**tensors, "layers.0.sinks": np.zeros(4)})


def test_copies_of_the_target_s_rows_are_compared():
    """Of the embedding, of the whole head, and of the draft vocabulary's rows."""
    given = golden("dflash")
    _, tensors = files("dflash")
    names = {"embed_tokens.weight": "embedding", "lm_head.weight": "head"}
    copies = {n: given[x] for n, x in names.items()}
    copies["verifier_norm.weight"] = np.ones(16)
    plain = head_config.split(read("dflash")[1])[0]
    held = head_config.split(read("dflash", tensors={**tensors, **copies})[1])[0]
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, plain, held)))
    for name, part in names.items():
        wrong = {**tensors, **copies, name: copies[name] + 1}
        with pytest.raises(CheckpointError, match=f"not the target's {part}"):
            read("dflash", tensors=wrong)
    _, tensors = files("dflash_small")
    rows = np.asarray(tensors["lm_head.weight"]) + 1
    with pytest.raises(CheckpointError, match="not the target's head"):
        read("dflash_small", tensors={**tensors, "lm_head.weight": rows})


def test_p_eagle_s_embedding_may_be_the_target_s():
    """But for the mask's row. Planted: another row differs, too."""
    given = golden("peagle")
    config, tensors = files("peagle")
    rows = given["embedding"].copy()
    rows[60] = 7.0
    _, params, arguments = read(
        "peagle", None, {**tensors, "embed_tokens.weight": rows}
    )
    assert "embedding" not in params and (params["mask"] == 7).all()
    about = ("some/target", (), arguments["taps"])
    _, back = speculators_parallel.write(
        params, target(), *about, embedding=given["embedding"]
    )
    np.testing.assert_array_equal(back["embed_tokens.weight"], rows)
    with pytest.raises(ConfigError, match="embedding=None"):
        speculators_parallel.write(params, target(), *about)
    del tensors["embed_tokens.weight"]
    _, params, _ = read("peagle", None, tensors)
    np.testing.assert_array_equal(params["mask"], given["embedding"][60])
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight is missing"):
        speculators_parallel.read(config, tensors, target())
    rows[3] += 1
    found = read("peagle", None, {**tensors, "embed_tokens.weight": rows})[1]
    assert (found["embedding"] == rows).all()


def layer(**fields) -> dict:
    theirs = read_json(FOLDER / "dflash" / "config.json")["transformer_layer_config"]
    return {"transformer_layer_config": {**theirs, **fields}}


LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
REFUSED = [
    ("dspark", {"sample_from_anchor": None}, "lacks sample_from_anchor"),
    ("rnn", {"sample_from_anchor": False}, "markov_head_type='rnn'"),
    ("dspark", {"markov_rank": 7}, "markov_rank=7 in config.json"),
    ("dspark", {"markov_rank": 0}, "markov_rank=0 with enable_confidence"),
    ("dspark", {"confidence_head_with_markov": False}, "confidence_head_with_markov"),
    ("dspark", {"draft_vocab_size": 21}, "draft_vocab_size=21"),
    ("dflash", {"draft_vocab_size": 20}, r"\['d2t', 'lm_head.weight'\] are missing"),
    ("dflash2", {"conv_kernel_size": 3}, "conv_kernel_size=3"),
    ("dflash2", {"conv_group_size": 8}, "conv_group_size=8"),
    ("dflash2", {"selector_rank": 7}, "selector_rank=7"),
    ("dflash", {"mask_token_id": None}, "mask_token_id"),
    ("dflash", {"mask_token_id": 61}, "mask_token=61"),
    ("dflash", {"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids"),
    ("dflash", {"aux_hidden_state_layer_ids": []}, "the numbers of the states"),
    ("dflash", {"aux_hidden_state_layer_ids": [2, 7]}, r"taps=\(2, 7\)"),
    ("dflash", {"aux_hidden_state_layer_ids": [2, 3, 4]}, "read 2 states"),
    ("dflash", {"target_hidden_size": 32}, "target_hidden_size=32"),
    ("dflash", {"refiner": True}, "refiner"),
    ("dflash", {"speculators_model_type": "xpress"}, "'xpress'"),
    ("dflash", layer(model_type="gemma3"), "'gemma3'"),
    ("dflash", layer(vocab_size=60), "vocab_size is 60"),
    ("dflash", layer(attention_bias=True), "attention_bias=True"),
    ("dflash", layer(sliding_window=None), "sliding_window is missing"),
    ("dflash", layer(layer_types=None), "without layer_types"),
    ("dflash", layer(num_experts=4), "num_experts"),
    ("dflash", layer(rope_parameters=LINEAR), "a scaled RoPE must be the target's"),
    ("peagle", {"norm_before_residual": None}, "lacks norm_before_residual"),
    ("peagle", {"norm_before_residual": True}, "norm_before_residual=True"),
    ("peagle", {"fc_norm": True}, "fc_norm=True"),
    ("peagle", {"draft_vocab_size": 61}, "'draft_vocab_size': 61, 'd2t': 20"),
    ("peagle", {"mask_token_id": 61}, "mask_token_id=61"),
    ("peagle", {"speculators_config": {}}, "names no speculative_tokens"),
    ("peagle", {"speculators_model_type": "eagle3"}, "'eagle3'"),
    ("peagle", layer(), "model_type='qwen3'"),
]


@pytest.mark.parametrize(("name", "change", "words"), REFUSED)
def test_what_is_not_followed_is_refused_by_its_name(name, change, words):
    config, _ = files(name)
    with pytest.raises((CheckpointError, ConfigError), match=words):
        read(name, {**config, **change})


def test_fields_with_other_meanings():
    """Ids, windows and classes' defaults. Planted: a window that is in no layer."""
    config, tensors = files("dflash")
    form = lambda config: dflash.config_of(read("dflash", config)[1]["backbone"])
    own = form(config)
    assert (own.windows, own.before_anchor, own.causal_windows) == ((0, 6), True, True)
    unused = form({**config, **layer(use_sliding_window=False, sliding_window=None)})
    assert (unused.windows, unused.before_anchor) == ((), False)
    late = {**config, "aux_hidden_state_layer_ids": [2, 4, target().n_layers]}
    assert read("dflash", late)[2] == {"taps": (2, 4)}  # fc has columns for two
    raw = config["transformer_layer_config"]
    llama = {**raw, "model_type": "llama", "mlp_bias": False}
    del llama["rms_norm_eps"]  # LlamaConfig's default
    assert form({**config, "transformer_layer_config": llama}) == own
    rank = {"speculators_model_type": "dspark", "markov_rank": 0}
    bare = {**config, **rank, "enable_confidence_head": False}
    kind, params, _ = read("dflash", {**bare, "sample_from_anchor": True}, tensors)
    assert kind == "dflash" and dflash.config_of(params["backbone"]).shifted


def test_what_the_format_cannot_hold_is_refused():
    lm = agreement.target()
    key, config = jax.random.key(0), lm.config
    shape = {"layers": 1, "learned_mask": False, "mask_token": 3}
    write = functools.partial(speculators_blocks.write, target=config, verifier="x")
    for fields, words in [
        ({"learned_mask": True}, "learned_mask=True"),
        ({"causal": True}, "causal=True"),
        ({"windows": (5,)}, "before_anchor=False"),
    ]:
        params = dflash.init(key, config, **{**shape, **fields})
        with pytest.raises(ConfigError, match=words):
            write("dflash", params)
    params = dspark.init(key, config, markov="rnn", rank=4, shifted=False, **shape)
    with pytest.raises(ConfigError, match="markov='rnn'"):
        write("dspark", params)
    with pytest.raises(ConfigError, match="kind='domino'"):
        write("domino", domino.init(key, config, width=4, rank=4, **shape))
    kind, params, _ = read("dflash_small")
    with pytest.raises(ConfigError, match="head=None"):
        speculators_blocks.write(kind, params, target(), "x", taps=(2, 4))
    scaled = dataclasses.replace(config, embed_scale=2.0)
    with pytest.raises(ConfigError, match="embed_scale=2"):
        speculators_blocks.write("dflash", params, scaled, "x")
    params = dflash2.init(key, config, rank=4, convolution=8, candidates=5, **shape)
    written, tensors = write("dflash2", params)
    assert written["selector_top_k"] == 5 and written["sliding_window_non_causal"] == 0
    rows = decoder_layer.output_rows(lm.params)
    parallel = p_eagle.init(key, config, rows, layers=1, depths=3)
    with pytest.raises(ConfigError, match="mask_token=-1"):
        speculators_parallel.write(parallel, config, "x", embedding=rows)
    config_, tensors = speculators_parallel.write(
        parallel, config, "x", embedding=rows, mask_token=5
    )
    again = speculators_parallel.read(config_, tensors, config, rows)[1]
    np.testing.assert_array_equal(again["mask"], parallel["mask"])


def test_the_files_say_what_made_them():
    for name in CASES:
        about = json.loads(str(golden(name)["about"]))
        assert about["source"] == "speculators 0.9.0"
