"""The speculators format: folders written by its names and flags, numpy arithmetic."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.errors import CheckpointError, ConfigError
from models.heads import eagle3
from models.heads.formats import published as public
from models.heads.formats import speculators
from tests.models import published_weights
from tests.models.published_weights import EPS, KEPT, TARGET, VD, D, E, V, X

# What transformers' LlamaConfig writes: no field that has its default there.
LAYER = {
    "model_type": "llama",
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": published_weights.FF,
    "num_hidden_layers": 1,
    "num_attention_heads": published_weights.H,
    "num_key_value_heads": published_weights.G,
    "head_dim": published_weights.HD,
    "rms_norm_eps": EPS,
    "rope_theta": 10000.0,
    "use_cache": True,
}
MADE = {
    "algorithm": "eagle3",
    "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
    "default_proposal_method": "greedy",
    "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
}


def eagle3_folder(*flags: str) -> tuple[dict, dict]:
    """config.json with these flags set, and the tensors they ask for."""
    names = {f"layers.0.{n}.weight": (D,) for n in ("hidden_norm", "input_layernorm")}
    shapes = {
        "fc.weight": (D, 3 * D),
        **names,
        **published_weights.llama("layers.0", 2 * D),
    }
    shapes |= {"norm.weight": (D,), "lm_head.weight": (VD, D)}
    shapes |= {"embed_tokens.weight": (V, D), "verifier_norm.weight": (D,)}
    shapes["verifier_lm_head.weight"] = (VD, D)
    if "fc_norm" in flags:
        shapes |= {f"fc_norm.{i}.weight": (D,) for i in range(3)}
    if "norm_before_fc" in flags:
        shapes["input_norm.weight"] = (3 * D,)
    tensors = published_weights.made(shapes)
    tensors["d2t"] = (KEPT - np.arange(VD)).astype(np.int64)
    tensors["t2d"] = np.isin(np.arange(V), KEPT)
    known = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    config = {
        "architectures": ["Eagle3Speculator"],
        "auto_map": {"": "eagle3.Eagle3SpeculatorConfig"},
        "speculators_model_type": "eagle3",
        "speculators_version": "0.7.0",
        "speculators_config": MADE,
        "transformer_layer_config": LAYER,
        "draft_vocab_size": VD,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [2, 2, 1],
        "embed_requires_grad": False,
        "transformers_version": "5.0.0",
        **{flag: flag in flags for flag in known},
    }
    return config, tensors


def eagle_folder(bias: bool) -> tuple[dict, dict]:
    shapes = {"fusion_fc.weight": (D, 2 * D), **published_weights.llama("transformer")}
    if bias:
        shapes["fusion_fc.bias"] = (D,)
    config = {
        "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
        "speculators_model_type": "eagle",
        "speculators_config": {**MADE, "algorithm": "eagle"},
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "transformer_layer_config": LAYER,
        "layernorms": False,
        "fusion_bias": bias,
    }
    return config, published_weights.made(shapes)


CASES = {
    "plain": (),
    "residual": ("norm_before_residual", "fc_norm"),
    "output": ("norm_before_fc", "norm_output"),
}
# Other readings of the same tensors, which each case must tell from its own.
WRONG = {
    "plain": [("norm_before_residual",), ("norm_output",)],
    "residual": [("norm_before_residual",), ("fc_norm",)],
    "output": [("norm_before_fc",), ("norm_output",)],
}


def by_numpy(w: dict, flags: tuple) -> np.ndarray:
    """Logits of the first step, and of the second after the last state but one."""
    parts = [X, 2 * X, -E]
    if "fc_norm" in flags:
        own = [w[f"fc_norm.{i}.weight"] for i in range(3)]
        parts = [published_weights.rms(x, scale) for x, scale in zip(parts, own)]
    joined = np.concatenate(parts, -1)
    if "norm_before_fc" in flags:
        joined = published_weights.rms(joined, w["input_norm.weight"])
    g = joined @ w["fc.weight"].T

    def step(g):
        e = published_weights.rms(E, w["layers.0.input_layernorm.weight"])
        n = published_weights.rms(g, w["layers.0.hidden_norm.weight"])
        r = n if "norm_before_residual" in flags else g
        a = published_weights.layer(w, "layers.0", np.concatenate([e, n], -1), r)
        normed = published_weights.rms(a, w["norm.weight"])
        own = normed if "norm_output" in flags else a
        return own, normed @ w["lm_head.weight"].T

    own, first = step(g)
    _, second = step(np.concatenate([g[:-1], own[-2:-1]]))
    return np.concatenate([first, second[-1:]])


@jax.jit
def by_us(params):
    x, e = jnp.asarray(X, jnp.float32), jnp.asarray(E, jnp.float32)
    g = eagle3.features(params, jnp.stack([x, 2 * x, -e], -2), EPS)[None]
    a = eagle3.unroll(params, TARGET, e[None], g, 2, lambda s, a: a)[:, 0]
    return eagle3.logits(params, jnp.concatenate([a[0], a[1, -2:-1]]), EPS)


@pytest.mark.parametrize("case", CASES)
def test_flags_mean_what_numpy_says(case):
    """To 1e-4 in float32, two steps deep; planted: a flag that is not followed."""
    config, tensors = eagle3_folder(*CASES[case])
    kind, params = speculators.read(config, tensors, TARGET)
    found, wanted = np.asarray(by_us(params)), by_numpy(tensors, CASES[case])
    assert kind == "eagle3"
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)
    np.testing.assert_array_equal(params["kept"], KEPT)
    for flags in WRONG[case]:
        assert np.abs(by_numpy(tensors, flags) - found)[-1].max() > 1e-2


@pytest.mark.parametrize("name", ["eagle", "eagle, bias", *CASES])
def test_what_is_written_is_what_was_read(name, tmp_path):
    """All tensors but copies of the target's, bit for bit, and every flag."""
    if name in CASES:
        config, tensors = eagle3_folder(*CASES[name])
    else:
        config, tensors = eagle_folder("bias" in name)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "theirs" / "model.safetensors")
    kind, params = speculators.load(tmp_path / "theirs", TARGET)
    speculators.save(kind, tmp_path / "ours", params, TARGET, "some/target", drafts=3)
    back = load_file(tmp_path / "ours" / "model.safetensors")
    copies = {n for n in tensors if n.startswith(("embed_tokens", "verifier_"))}
    assert set(back) == set(tensors) - copies
    for key, x in back.items():
        np.testing.assert_array_equal(x, tensors[key], err_msg=key)
    if kind == "eagle3":
        assert back["d2t"].dtype == np.int64 and back["t2d"].dtype == bool
    said = json.loads((tmp_path / "ours" / "config.json").read_text())
    told = {"auto_map", "transformers_version", "speculators_version", "use_cache"}
    for key in set(config) - told - {"transformer_layer_config"}:
        assert said[key] == config[key], key
    for key in set(LAYER) - told:
        assert said["transformer_layer_config"][key] == LAYER[key], key
    again = speculators.load(tmp_path / "ours", TARGET)[1]
    same = jax.tree.map(np.array_equal, params, again)
    assert all(jax.tree.leaves(same))
    again["layer"]["norm"] = again["layer"]["norm"] + 1  # planted: a changed tensor
    same = jax.tree.map(np.array_equal, params, again)
    assert not all(jax.tree.leaves(same))


def test_the_published_layouts_hold_the_same():
    """EAGLE-1's tensors have other names only; flags have no place in EAGLE-3's."""
    config, tensors = eagle_folder(True)
    names = {n: n.replace("fusion_fc", "fc") for n in tensors}
    plain = {
        m.replace("transformer.", "layers.0."): tensors[n] for n, m in names.items()
    }
    ours = speculators.read(config, tensors, TARGET)[1]
    theirs = public.read("eagle", plain, TARGET)[0]
    same = jax.tree.map(np.array_equal, ours, theirs)
    assert all(jax.tree.leaves(same))
    params = speculators.read(*eagle3_folder(), TARGET)[1]
    assert "midlayer.hidden_norm.weight" in public.write("eagle3", params, TARGET)
    params = speculators.read(*eagle3_folder(*CASES["residual"]), TARGET)[1]
    with pytest.raises(CheckpointError, match=r"no place for \['fuse_norm', 'resid"):
        public.write("eagle3", params, TARGET)


def test_the_whole_vocabulary_and_a_copy_of_the_embedding():
    config, tensors = eagle3_folder()
    del tensors["d2t"], tensors["t2d"]
    tensors["lm_head.weight"] = np.ones((V, D), np.float32)
    config["draft_vocab_size"] = V
    rows = tensors["embed_tokens.weight"]
    params = speculators.read(config, tensors, TARGET, rows)[1]
    assert "kept" not in params
    told, back = speculators.write("eagle3", params, TARGET, "some/target")
    assert told["draft_vocab_size"] == V and "d2t" not in back
    with pytest.raises(CheckpointError, match="not the target's embedding"):
        speculators.read(config, tensors, TARGET, rows + 1)  # planted: another's


SCALED = {"rope_type": "linear", "factor": 2.0}
REFUSED = [
    ({"norm_before_residual": None}, "norm_before_residual"),
    ({"embed_requires_grad": True}, "embed_requires_grad=True"),
    ({"target_hidden_size": 2 * D}, "target_hidden_size=32"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, r"layer_ids=\[1, 2, 3\]"),
    ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm"),
    ({"norm_after_fc": True}, "norm_after_fc"),
    ({"quantization_config": {"bits": 8}}, "quantization_config"),
    ({"speculators_model_type": "dflash"}, "'dflash'"),
    ({"draft_vocab_size": None}, "draft_vocab_size"),
    ({"draft_vocab_size": V}, "draft_vocab_size=37 in config.json"),
    ({"fc_norm": True}, "fc_norm.0.weight"),
    ({"transformer_layer_config": {**LAYER, "num_hidden_layers": 2}}, "layers=2"),
    ({"transformer_layer_config": {**LAYER, "model_type": "qwen3"}}, "'qwen3'"),
    (
        {"transformer_layer_config": {**LAYER, "rope_scaling": SCALED}},
        "a scaled RoPE must be the target's",
    ),
    ({"transformer_layer_config": {**LAYER, "rms_norm_eps": 1e-6}}, "rms_norm_eps"),
    ({"transformer_layer_config": {**LAYER, "sliding_window": 8}}, "sliding_window"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_what_is_not_followed_is_refused_by_its_name(change, said):
    config, tensors = eagle3_folder()
    with pytest.raises((CheckpointError, ConfigError), match=said):
        speculators.read({**config, **change}, tensors, TARGET)


def test_a_window_of_no_layer_is_left_out():
    """As trainers write it. Planted: a layer that has it."""
    config, tensors = eagle3_folder()
    spare = {**LAYER, "sliding_window": 8, "use_sliding_window": False}
    full = {**spare, "layer_types": ["full_attention"]}
    speculators.read({**config, "transformer_layer_config": full}, tensors, TARGET)
    sliding = {**spare, "layer_types": ["sliding_attention"]}
    with pytest.raises(ConfigError, match="sliding_window"):
        config["transformer_layer_config"] = sliding
        speculators.read(config, tensors, TARGET)


def test_a_plain_rope_stays_with_the_head():
    """Of another base than the target's. Planted: the head read as the target turns."""
    config, tensors = eagle3_folder()
    config["transformer_layer_config"] = {**LAYER, "rope_theta": 5e5}
    kind, params = speculators.read(config, tensors, TARGET)
    assert params["config"].rope_theta == 5e5
    said, back = speculators.write(kind, params, TARGET, "some/target")
    assert said["transformer_layer_config"]["rope_theta"] == 5e5
    assert speculators.read(said, back, TARGET)[1]["config"] == params["config"]
    planted = speculators.read(*eagle3_folder(), TARGET)[1]
    assert np.abs(by_us(params) - by_us(planted)).max() > 1e-3


def test_eagle_1_is_checked_too():
    config, tensors = eagle_folder(True)
    for change in ({"layernorms": True}, {"fusion_bias": False}):
        with pytest.raises((CheckpointError, ConfigError), match=next(iter(change))):
            speculators.read({**config, **change}, tensors, TARGET)
    config, tensors = eagle3_folder()
    tensors["fc_norm.0.weight"] = np.ones(D, np.float32)  # and no flag
    with pytest.raises(CheckpointError, match=r"unknown \['fc_norm"):
        speculators.read(config, tensors, TARGET)
    config, tensors = eagle3_folder("fc_norm")
    tensors["fc_norm.1.weight"] = np.ones(D + 1, np.float32)
    with pytest.raises(CheckpointError, match=r"\(17,\).* not \(16,\)"):
        speculators.read(config, tensors, TARGET)
    scaled = dataclasses.replace(TARGET, embed_scale=2.0)
    with pytest.raises(ConfigError, match="embed_scale=2"):
        speculators.write("eagle", {}, scaled, "some/target")


def test_other_states_are_written_and_must_be_named():
    """Planted: a head of other states, read as one of the paper's."""
    params = speculators.read(*eagle3_folder(), TARGET)[1]
    own = (0, 1, TARGET.n_layers)
    config, tensors = speculators.write("eagle3", params, TARGET, "some/x", taps=own)
    assert config["eagle_aux_hidden_state_layer_ids"] == list(own)
    kind, again = speculators.read(config, tensors, TARGET, taps=own)
    assert kind == "eagle3" and jax.tree.structure(again) == jax.tree.structure(params)
    with pytest.raises(ConfigError, match="eagle_aux_hidden_state_layer_ids"):
        speculators.read(config, tensors, TARGET)
