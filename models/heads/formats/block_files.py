"""Block drafters in the layouts of their published checkpoints: reading and writing.

Folders of the authors of DFlash (github.com/z-lab/dflash), of DeepSpec (DSpark), of
SpecForge (DSpark, Domino, JetSpec), and of TreeFlash: a Qwen3 config.json with the
block's fields in it, flat or in `dflash_config`, and one safetensors file. The config
decides; no tensor shows the alignment, windows or the states that are read. Copies of
the target's embedding and head are dropped, after a comparison where the target's are
given. A missing or an unknown tensor or field is an error.

Their layer ids are those of outputs: id i is our state i + 1, -1 the embedding.
"""

import dataclasses
import fnmatch
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models import storage
from models.checkpoints import fields, hub
from models.checkpoints.tensors import read_json, write_json
from models.errors import CheckpointError, ConfigError
from models.heads import dflash, dflash2, domino, dspark, treeflash
from models.heads.formats import (
    block_layouts,
    embedding_copies,
    layer_rope,
    published,
)
from models.heads.modules import decoder_layer, head_config
from models.heads.modules.head_config import CONFIG

KINDS = ("dflash", "dflash2", "domino", "dspark", "treeflash")
# Tensors that are no weights of heads: copies of the target's, and buffers.
IGNORED = (*embedding_copies.COPIES, embedding_copies.HEAD, "*rotary_emb.inv_freq")
PREFIXES = ("model.", "logit_head.")
ARCHITECTURES = {
    "dflash": "DFlashDraftModel",
    "dflash2": "DFlash2DraftModel",
    "domino": "DFlashDraftModel",
    "dspark": "Qwen3DSparkModel",
    "treeflash": "TreeFlashDraftModel",
}
SLIDING, FULL = "sliding_attention", "full_attention"
# Fields that are of the target or of training, and change nothing here.
UNREAD = (
    *("num_target_layers", "vocab_size", "num_anchors", "tie_word_embeddings"),
    *("max_position_embeddings", "use_sliding_window", "draft_vocab_size"),
)


def _kind(f: fields.Fields, own: fields.Fields) -> str:
    """Derive the kind of a head from its config."""
    projector = own.take("projector_type", "") or f.take("projector_type", "")
    names = " ".join(f.data.get("architectures") or ())
    if own.data.get("ar_approximation") or f.data.get("ar_approximation"):
        return "treeflash"
    if projector in ("domino", "dspark"):
        return projector
    if "selector_rank" in own.data or "selector_rank" in f.data:
        return "dflash2"
    if "DSpark" in names and f.data.get("markov_rank", 1):
        return "dspark"
    if projector not in ("", "dflash"):
        raise f.wrong("dflash_config", f"a projector_type of {KINDS}")
    return "dflash"


def read(
    config: dict[str, Any],
    stored: Mapping[str, Any],
    target: Any,
    embedding: Any = None,
    head: Any = None,
) -> tuple[str, Any, dict[str, Any]]:
    """Convert a published checkpoint to params.

    Args:
        config: the contents of config.json.
        stored: the tensors by name.
        target: the target's config.
        embedding: the target's embedding [V, D], to compare a copy with.
        head: its output rows [V, D], likewise.

    Returns:
        The kind of the head (one of KINDS), its params, and the drafter's arguments.

    Raises:
        CheckpointError: tensors are missing, unknown, misshapen or unequal copies.
        ConfigError: a field that is not implemented, or does not fit the target.
    """
    f = fields.Fields(dict(config), "config.json")
    nested = {**f.mapping("dflash_config"), **f.mapping("treeflash_config")}
    own = fields.Fields(nested, "dflash_config")
    kind = _kind(f, own)

    def given(name: str, default: Any = None) -> Any:
        here = own.take(name, None)
        return f.take(name, default) if here is None else here

    layers = f.integer("num_hidden_layers")
    ids = given("target_layer_ids")
    if ids is None:
        raise ConfigError(
            "config.json names no target_layer_ids, the layers that the head reads: "
            "add them"
        )
    theirs = {_plain(name): x for name, x in stored.items()}
    mask = "mask_embedding" in theirs
    shifted = kind == "dspark" or "DSpark" in " ".join(config.get("architectures", ()))
    shifted = bool(given("sample_from_anchor", given("shift_label", shifted)))
    types = f.take("layer_types", [FULL] * layers)
    window = f.take("sliding_window", 0) if SLIDING in types else 0
    f.take("sliding_window", 0)
    # In files of the authors of DFlash; null: layers with a window alone are causal.
    every = given("is_causal")
    block_fields = {
        "learned_mask": mask,
        "mask_token": -1 if mask else given("mask_token_id", -1),
        "block": given("block_size"),
        "shifted": shifted,
        "causal": bool(given("causal_head", False) or every),
        "windows": tuple(window if t == SLIDING else 0 for t in types),
        "causal_windows": not given("sliding_window_non_causal", every is False),
    }
    if not window:
        block_fields["windows"] = ()
    given("mask_token_id", -1)
    form = _form(kind, given, target)
    shape = _shape(f, target)
    for name in UNREAD:
        given(name)
    for unread in (f, own):
        _finish(unread)
    convolved = kind == "dflash2"
    plan = [
        *block_layouts.backbone(layers, convolved, mask),
        *block_layouts.head(kind, form),
    ]
    _check_copies(theirs, embedding, head)
    ignored = lambda name: any(fnmatch.fnmatch(name, x) for x in IGNORED)
    weights = {n: x for n, x in theirs.items() if not ignored(n)}
    params = block_layouts.join(kind, plan, weights, shape)
    backbone = params["backbone"]
    theta = layer_rope.theta(
        config, backbone["layer_0"], target, "config.json", layer_rope.THETA
    )
    backbone[CONFIG] = dflash.HeadConfig(**block_fields, rope_theta=theta)
    if form is not None:
        params[CONFIG] = form
    taps = dflash.states(target, tuple(i + 1 for i in ids))
    dflash.check(kind, backbone, target, taps)
    return kind, params, {"taps": taps}


def _form(kind: str, given: Any, target: Any) -> Any:
    """Read a head's own config."""
    if kind == "dspark":
        confidence = bool(given("enable_confidence_head", True))
        if not given("confidence_head_with_markov", True) and confidence:
            raise ConfigError(
                "confidence_head_with_markov=False: only confidence heads that read "
                "the token before are implemented"
            )
        given("markov_rank")
        return dspark.HeadConfig(given("markov_head_type", "vanilla"), confidence)
    if kind == "domino":
        for name in ("emb_dim", "gru_hidden_dim"):
            given(name)
        return domino.HeadConfig(given("pure_draft_prefix_len", 0))
    if kind == "dflash2":
        for name in ("selector_rank", "conv_kernel_size", "conv_group_size"):
            given(name)
        return dflash2.HeadConfig(given("selector_top_k", 16))
    if kind == "treeflash":
        for name in ("ar_approximation", "candidate_tokens"):
            given(name)
        return treeflash.HeadConfig(target.norm_eps)
    for name in ("markov_rank", "enable_confidence_head"):
        given(name)
    return None


def _shape(f: fields.Fields, target: Any) -> Any:
    """Read the layers' geometry, and refuse what they do not have."""
    f.fixed("attention_bias", False)
    f.fixed("hidden_act", "silu")
    eps = f.number("rms_norm_eps", 1e-6)
    heads = f.integer("num_attention_heads")
    width = f.integer("hidden_size")
    geometry = decoder_layer.geometry(target)
    if width != geometry.d_model or eps != geometry.norm_eps:
        raise ConfigError(
            f"hidden_size={width}, rms_norm_eps={eps}, and the target has "
            f"{geometry.d_model} and {geometry.norm_eps}: use the target that the "
            "heads were trained on"
        )
    for name in ("rope_theta", "rope_scaling", "rope_parameters"):
        f.take(name, None)  # read by layer_rope
    return dataclasses.replace(
        geometry,
        n_heads=heads,
        n_kv_heads=f.integer("num_key_value_heads", heads),
        head_dim=f.integer("head_dim", width // heads),
        d_ff=f.integer("intermediate_size"),
    )


def _finish(f: fields.Fields) -> None:
    unread = sorted(set(f.data) - f.read - fields.HARMLESS)
    if unread:
        raise ConfigError(
            f"{f.where} has fields that no block drafter here reads: {unread[:8]}"
        )
    if f.lacking:
        raise ConfigError(f"{f.where} lacks {f.lacking}")


def _plain(name: str) -> str:
    """Strip prefixes, and the suffix that published codebooks do not have."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name.removesuffix(".weight") if "_codebook." in name else name


def _check_copies(theirs: Mapping[str, Any], embedding: Any, head: Any) -> None:
    if embedding is not None:
        embedding_copies.check(theirs, np.asarray(embedding))
    if head is not None:
        names = (embedding_copies.HEAD,)
        embedding_copies.check(theirs, np.asarray(head), names, "head")


def write(
    kind: str, params: Any, target: Any, taps: Sequence[int] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert params to a config.json and tensors that `read` takes.

    `taps` are the states that the head reads, if not the default ones.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind={kind!r}: use one of {KINDS}")
    backbone = params["backbone"]
    own, layers = dflash.config_of(backbone), dflash.layers_of(backbone)
    form = params.get(CONFIG)
    windows = own.windows or (0,) * len(layers)
    if own.draft_vocabulary or (own.before_anchor and any(windows)):
        raise ConfigError(
            f"draft_vocabulary={own.draft_vocabulary}, "
            f"before_anchor={own.before_anchor}: only speculators has these; save the "
            "heads with models/heads/formats/speculators_blocks.py"
        )
    if len(set(windows) - {0}) > 1:
        raise ConfigError(
            f"windows={windows}: files have one window for all layers that have one; "
            "use models/heads/formats/native.py"
        )
    bare, _ = head_config.split(params)
    convolved = "attention_convolution" in layers[0]
    plan = (
        *block_layouts.backbone(len(layers), convolved, own.learned_mask),
        *block_layouts.head(kind, form),
    )
    tensors = block_layouts.split(kind, plan, bare, dflash.shape(backbone, target))
    described = layer_rope.described(layers[0], target, own.rope_theta)
    block: dict[str, Any] = {
        "block_size": own.block,
        "target_layer_ids": [i - 1 for i in dflash.states(target, taps)],
        "sample_from_anchor": own.shifted,
        "causal_head": own.causal,
        **_described(kind, params, form),
    }
    if not own.learned_mask:
        block["mask_token_id"] = own.mask_token
    if any(windows):
        block["sliding_window_non_causal"] = not own.causal_windows
    config = {
        **{n: x for n, x in described.items() if n in KEPT},
        "model_type": "qwen3",
        "architectures": [ARCHITECTURES[kind]],
        "num_hidden_layers": len(layers),
        "num_target_layers": target.n_layers,
        "layer_types": [SLIDING if w else FULL for w in windows],
        "sliding_window": max(windows) or None,
        "dflash_config": block,
    }
    return config, tensors


# Fields of a layer that a block drafter's config.json names.
KEPT = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "rms_norm_eps", "hidden_act", "rope_theta"),
    *("rope_scaling", "rope_parameters", "max_position_embeddings", "vocab_size"),
)


def _described(kind: str, params: Any, form: Any) -> dict[str, Any]:
    """Return a head's own fields of `dflash_config`."""
    if kind == "dspark":
        return {
            "projector_type": "dspark",
            "markov_rank": params["first"].shape[1],
            "markov_head_type": form.markov,
            "enable_confidence_head": form.confidence,
            "confidence_head_with_markov": True,
        }
    if kind == "domino":
        return {
            "projector_type": "domino",
            "emb_dim": params["joint"].shape[1],
            "gru_hidden_dim": params["recurrent"].shape[0],
            "pure_draft_prefix_len": form.pure,
        }
    if kind == "dflash2":
        kernel = params["backbone"]["layer_0"]["attention_convolution"]["kernel"]
        return {
            "selector_rank": params["before"].shape[1],
            "selector_top_k": form.candidates,
            "conv_kernel_size": 2,
            "conv_group_size": kernel.shape[0] // kernel.shape[-1],
        }
    return {"ar_approximation": "swiglu"} if kind == "treeflash" else {}


def load(
    path: str | os.PathLike, target: Any, embedding: Any = None, head: Any = None
) -> tuple[str, Any, dict[str, Any]]:
    """Apply `read` to a folder or a repository with config.json and one file."""
    folder = hub.local(path)
    beside = folder / "config.json"
    if not beside.exists():
        raise CheckpointError(f"{path} has no config.json, which gives a block's form")
    return read(read_json(beside), published.stored(folder), target, embedding, head)


def save(
    kind: str,
    folder: str | os.PathLike,
    params: Any,
    target: Any,
    taps: Sequence[int] = (),
) -> None:
    """Write config.json and model.safetensors to a new folder; see `write`."""
    config, tensors = write(kind, params, target, taps)
    place = storage.path(folder)
    place.mkdir(parents=True, exist_ok=True)
    beside = place / "config.json"
    if beside.exists() and read_json(beside) != config:
        raise CheckpointError(f"{beside} is another model's: use a new folder")
    write_json(beside, config)
    published.store(place / "model.safetensors", tensors)
