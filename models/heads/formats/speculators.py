"""Draft heads in the format of vLLM's speculators: reading and writing.

A folder holds model.safetensors and a config.json, whose flags give what the tensors
do not show (github.com/vllm-project/speculators, 0.7; EAGLE-1's form is that of earlier
versions). Tensors have the published names (`models/heads/formats/published.py`), but
for EAGLE-1's `fusion_fc` and `transformer` and EAGLE-3's `layers.0`.

norm_before_residual, norm_before_fc, fc_norm and norm_output are supported
(`models/heads/eagle3.py`). Other flags, layers, features and unknown fields are refused
by name. A copy of the target's embedding (`embed_tokens`) is dropped, after a
comparison where the target's is given.

Block drafters are in `speculators_blocks.py`, P-EAGLE in `speculators_parallel.py`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from models import storage
from models.checkpoints import fields, hub, tensors
from models.checkpoints.families import llama
from models.errors import CheckpointError, ConfigError
from models.heads import eagle, eagle3
from models.heads.formats import layer_rope, published
from models.heads.modules import decoder_layer
from models.heads.modules.head_config import CONFIG

KINDS = ("eagle", "eagle3")
ARCHITECTURES = {"eagle": "EagleSpeculator", "eagle3": "Eagle3Speculator"}
# Prefixes of tensor names: of speculators, and of the published files.
PREFIXES = {
    "eagle": (("fusion_fc.", "fc."), ("transformer.", "layers.0.")),
    "eagle3": (("layers.0.", "midlayer."),),
}
# Flags that move a norm: its name in our params when set, and when not.
MOVED = {
    "norm_before_residual": ("residual_norm", "feature_norm"),
    "norm_output": ("output_norm", "norm"),
}
# Flags that add norms before fc, and the tensors they are in.
FUSED = {
    "fc_norm": tuple(f"fc_norm.{i}.weight" for i in range(3)),
    "norm_before_fc": ("input_norm.weight",),
}
# transformers leaves a field out of the file where it has its class's default.
LAYER = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}


def read(
    config: dict[str, Any],
    stored: Mapping[str, Any],
    target: Any,
    embedding: Any = None,
    taps: Sequence[int] = (),
) -> tuple[str, Any]:
    """Convert a speculators checkpoint to params.

    Args:
        config: the contents of config.json.
        stored: the tensors by name.
        target: the target's config.
        embedding: the target's embedding [V, D], to compare a copy with.
        taps: the states that EAGLE-3's head reads, if not the paper's; pass the same
            to its drafter.

    Returns:
        The kind of the head ("eagle" or "eagle3"), and its params.
    """
    f = fields.Fields(config, "config.json")
    kind = f.take("speculators_model_type", "")
    _check_kind(kind)
    flags = _eagle(f) if kind == "eagle" else _eagle3(f, target, taps)
    raw_layer = f.mapping("transformer_layer_config")
    check_layer(raw_layer, target)
    for name in ("speculators_version", "speculators_config", "tie_word_embeddings"):
        f.take(name, None)  # how it was made and is served
    f.finish()
    theirs = {
        _renamed(kind, name): x
        for name, x in stored.items()
        if not name.startswith("verifier_")
    }
    used = [name for flag in FUSED if flags.get(flag) for name in FUSED[flag]]
    missing = [name for name in used if name not in theirs]
    if missing:
        raise CheckpointError(
            f"config.json sets norms before fc, and their tensors {missing} are "
            "missing: the two belong to different heads"
        )
    norms = [jnp.asarray(theirs.pop(name)) for name in used]
    params = published.read(kind, theirs, target, embedding)[0]
    where = "transformer_layer_config"
    theta = layer_rope.theta(raw_layer, params["layer"], target, where)
    params[CONFIG] = replace(params[CONFIG], rope_theta=theta)
    if kind == "eagle":
        if eagle.config_of(params).bias != flags["fusion_bias"]:
            raise CheckpointError(
                f"fusion_bias={flags['fusion_bias']} in config.json, and the tensors "
                "disagree: the two belong to different heads"
            )
        return kind, params
    if params["head"].shape[0] != flags["draft_vocab_size"]:
        raise CheckpointError(
            f"draft_vocab_size={flags['draft_vocab_size']} in config.json, and lm_head "
            f"has {params['head'].shape[0]} rows: the two belong to different heads"
        )
    for flag, (moved, plain) in MOVED.items():
        if flags[flag]:
            params[moved] = params.pop(plain)
    if norms:
        width = 3 * target.d_model // len(norms)
        if any(x.shape != (width,) for x in norms):
            raise CheckpointError(
                f"{used} have shapes {[x.shape for x in norms]}, not ({width},): they "
                "belong to another target"
            )
        params["fuse_norm"] = jnp.stack(norms) if flags["fc_norm"] else norms[0]
    form = replace(
        eagle3.config_of(params),
        fuse_norm=("rows" if flags["fc_norm"] else "whole") if norms else "",
        **{moved: bool(flags[flag]) for flag, (moved, _) in MOVED.items()},
    )
    return kind, {**params, CONFIG: form}


def write(
    kind: str,
    params: Any,
    target: Any,
    verifier: str,
    architectures: Sequence[str] = ("LlamaForCausalLM",),
    drafts: int = 5,
    taps: Sequence[int] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert params to a config.json and tensors.

    Args:
        kind: one of `KINDS`.
        params: the head's params.
        target: the target's config.
        verifier: the target's name on Hugging Face, or its path.
        architectures: the target's `architectures` in config.json.
        drafts: tokens proposed per round.
        taps: as in `read`.

    Returns:
        The contents of config.json, and the tensors by name.
    """
    _check_kind(kind)
    check_target(target)
    weights = {n: x for n, x in params.items() if n != CONFIG}
    theta = (eagle if kind == "eagle" else eagle3).config_of(params).rope_theta
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[kind]],
        "speculators_model_type": kind,
        "speculators_config": served(kind, verifier, architectures, drafts),
        "transformer_layer_config": layer_rope.described(
            weights["layer"], target, theta
        ),
        "torch_dtype": str(weights["fuse"].dtype),
        "tie_word_embeddings": False,
    }
    added: dict[str, Any] = {}
    if kind == "eagle":
        config["transformer_layer_architecture"] = "LlamaDecoderLayer"
        config["architectures"].append("LlamaDecoderLayer")
        config["layernorms"] = False
        config["fusion_bias"] = eagle.config_of(params).bias
    else:
        config["draft_vocab_size"] = weights["head"].shape[0]
        config["target_hidden_size"] = None
        config["eagle_aux_hidden_state_layer_ids"] = list(eagle3.taps(target, taps))
        config["embed_requires_grad"] = False
        form = eagle3.config_of(params)
        for flag, (moved, plain) in MOVED.items():
            config[flag] = getattr(form, moved)
            if config[flag]:
                weights[plain] = weights.pop(moved)
        config["fc_norm"] = form.fuse_norm == "rows"
        config["norm_before_fc"] = form.fuse_norm == "whole"
        if form.fuse_norm:
            flag = "fc_norm" if config["fc_norm"] else "norm_before_fc"
            parts = weights.pop("fuse_norm").reshape(len(FUSED[flag]), -1)
            added = dict(zip(FUSED[flag], parts, strict=True))
    theirs = published.write(kind, weights, target)
    return config, {_original(kind, n): x for n, x in theirs.items()} | added


def load(
    folder: str | os.PathLike,
    target: Any,
    embedding: Any = None,
    taps: Sequence[int] = (),
) -> tuple[str, Any]:
    """Apply `read` to a folder, or to a repository of the hub."""
    folder = hub.local(folder)
    config = tensors.read_json(folder / "config.json")
    return read(config, published.stored(folder), target, embedding, taps)


def save(
    kind: str,
    folder: str | os.PathLike,
    params: Any,
    target: Any,
    verifier: str,
    architectures: Sequence[str] = ("LlamaForCausalLM",),
    drafts: int = 5,
    taps: Sequence[int] = (),
) -> None:
    """Write params to a folder; arguments as in `write`."""
    about = (verifier, architectures, drafts, taps)
    config, arrays = write(kind, params, target, *about)
    store(folder, config, arrays)


def store(
    folder: str | os.PathLike, config: dict[str, Any], arrays: dict[str, Any]
) -> None:
    """Write config.json and the tensors to a folder."""
    folder = storage.path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    published.store(folder / tensors.SINGLE, arrays)
    tensors.write_json(folder / "config.json", config)


def served(
    kind: str, verifier: str, architectures: Sequence[str], drafts: int
) -> dict[str, Any]:
    """Return `speculators_config`; arguments as in `write`."""
    return {
        "algorithm": kind,
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": drafts}],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": verifier, "architectures": list(architectures)},
    }


def _check_kind(kind: Any) -> None:
    if kind not in KINDS:
        raise ConfigError(
            f"speculators_model_type={kind!r} is not supported: use a head of one of "
            f"{KINDS} here, and speculators_blocks.py or speculators_parallel.py for "
            "dflash, dflash2, dspark and peagle"
        )


def check_target(target: Any) -> None:
    scale = decoder_layer.geometry(target).embed_scale
    if scale != 1.0:
        raise ConfigError(
            f"embed_scale={scale}: the speculators format has no scaled embeddings and "
            "cannot hold heads for this target; use models/heads/formats/native.py"
        )


def _eagle(f: fields.Fields) -> dict[str, Any]:
    f.fixed("layernorms", False)  # HASS's variant
    if f.take("transformer_layer_architecture", "auto") != "auto":
        f.fixed("transformer_layer_architecture", "LlamaDecoderLayer")
    return {"fusion_bias": f.flag("fusion_bias", False)}


def _eagle3(f: fields.Fields, target: Any, taps: Sequence[int]) -> dict[str, Any]:
    if f.data.get("norm_before_residual") is None:
        raise ConfigError(
            f"{f.where} lacks norm_before_residual, which is false by default in "
            "speculators and true in vLLM: set it"
        )
    f.fixed("embed_requires_grad", False)
    f.fixed("target_hidden_size", target.d_model)
    f.fixed("eagle_aux_hidden_state_layer_ids", list(eagle3.taps(target, taps)))
    flags: dict[str, Any] = {name: f.flag(name, False) for name in (*MOVED, *FUSED)}
    flags["draft_vocab_size"] = f.integer("draft_vocab_size")
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise ConfigError("norm_before_fc and fc_norm are both set: set one at most")
    f.complete()
    return flags


def check_layer(raw: dict[str, Any], target: Any, layers: int = 1) -> Any:
    """Refuse draft layers whose config differs from the target's; return theirs."""
    check_target(target)
    f = fields.Fields({**LAYER, **raw}, "transformer_layer_config")
    f.fixed("model_type", "llama")
    f.fixed("num_hidden_layers", layers)
    if set(f.take("layer_types", ())) == {fields.FULL}:
        for name in ("sliding_window", "use_sliding_window"):
            f.take(name, None)  # of no layer
    f.fixed("attention_bias", False)
    f.fixed("mlp_bias", False)
    f.fixed("hidden_act", "silu")
    layer, expected = llama.read(f), decoder_layer.geometry(target)
    f.finish()
    pairs: dict[str, tuple] = {
        "vocab_size": (layer.vocab_size, expected.vocab_size),
        "hidden_size": (layer.d_model, expected.d_model),
        "rms_norm_eps": (layer.norm_eps, expected.norm_eps),
    }
    for name, (theirs, ours) in pairs.items():
        if theirs != ours:
            raise ConfigError(
                f"transformer_layer_config: {name} is {theirs}, and the target's is "
                f"{ours}: a head's layer must agree with its target's in this field"
            )
    return layer


def _renamed(kind: str, name: str) -> str:
    for theirs, ours in PREFIXES[kind]:
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _original(kind: str, name: str) -> str:
    for theirs, ours in PREFIXES[kind]:
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name
