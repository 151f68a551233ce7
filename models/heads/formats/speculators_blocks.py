"""Block drafters in the format of vLLM's speculators: reading and writing.

DFlash, DFlash 2 and DSpark, as version 0.9.0 of github.com/vllm-project/speculators
saves them. The tensors are those of the authors' files (`block_layouts.py`).
config.json holds the block's fields, and those of a Qwen3 model in
`transformer_layer_config`.

- Id i of `aux_hidden_state_layer_ids` is our state i, what leaves i layers: one more
  than in the authors' files. A last id of the final state, for which `fc` has no
  columns, is of the loss's teacher and is left out.
- The window of a layer is of the tokens before the block's anchor (`before_anchor`).
- `draft_vocab_size` below the vocabulary: `d2t`, `t2d` and `lm_head`, the target's rows
  of these tokens. Other files have neither embedding nor head; copies in them are
  dropped, after a comparison where the target's are given.

A missing or an unknown tensor or field is an error. So is a DSpark file without
`sample_from_anchor`: versions before 0.7 aligned its slots otherwise than later ones.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from models.checkpoints import fields, hub, tensors
from models.errors import CheckpointError, ConfigError
from models.heads import dflash
from models.heads.formats import (
    block_files,
    draft_vocabulary,
    embedding_copies,
    published,
    speculators,
)
from models.heads.modules.head_config import CONFIG

KINDS = ("dflash", "dflash2", "dspark")
ARCHITECTURES = {
    "dflash": "DFlashDraftModel",
    "dflash2": "DFlash2DraftModel",
    "dspark": "DSparkDraftModel",
}
# transformers leaves a field out of the file where it has its class's default.
LAYER: dict[str, dict[str, Any]] = {
    "llama": {**speculators.LAYER, "rms_norm_eps": 1e-6},
    "qwen3": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "use_sliding_window": False,
    },
}
HEAD = embedding_copies.HEAD
VOCABULARY = ("d2t", "t2d", HEAD)  # tensors of a draft vocabulary


def read(
    config: dict[str, Any],
    stored: Mapping[str, Any],
    target: Any,
    embedding: Any = None,
    head: Any = None,
) -> tuple[str, Any, dict[str, Any]]:
    """Convert a speculators checkpoint to params.

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
    speculators.check_target(target)
    f = fields.Fields(config, "config.json")
    kind = f.take("speculators_model_type", "")
    if kind not in KINDS:
        raise ConfigError(f"speculators_model_type={kind!r}: use one of {KINDS}")
    theirs = {n: x for n, x in stored.items() if not n.startswith("verifier_")}
    layer = _layer(f, target)
    block, sizes = _block(kind, f)
    ids = f.take("aux_hidden_state_layer_ids")
    width = f.integer("draft_vocab_size", 32000)
    f.fixed("target_hidden_size", target.d_model)
    for name in ("speculators_version", "speculators_config", "tie_word_embeddings"):
        f.take(name, None)  # how it was made and is served
    f.finish()
    if not isinstance(ids, list) or not ids:
        raise f.wrong(
            "aux_hidden_state_layer_ids", "the numbers of the states it reads"
        )
    _check_sizes(theirs, sizes)
    columns = len(ids)
    if "fc.weight" in theirs:
        columns = theirs["fc.weight"].shape[1] // target.d_model
    if ids[-1] == target.n_layers and len(ids) == columns + 1:
        ids = ids[:-1]
    block["target_layer_ids"] = [i - 1 for i in ids]
    kept = None
    if width != target.vocab_size:
        kept = _vocabulary(theirs, width, target, head)
        theirs = {n: x for n, x in theirs.items() if n not in VOCABULARY}
    flat = {**layer, "dflash_config": block}
    kind, params, arguments = block_files.read(flat, theirs, target, embedding, head)
    windows = any(dflash.config_of(params["backbone"]).windows)
    params = _replaced(params, before_anchor=windows, draft_vocabulary=kept is not None)
    if kept is not None:
        params["backbone"]["kept"] = jnp.asarray(kept)
    if kept is not None and "second" in params:
        rows = params["second"]
        whole = jnp.zeros((rows.shape[0], target.vocab_size), rows.dtype)
        params["second"] = whole.at[:, kept].set(rows)
    return kind, params, arguments


def _layer(f: fields.Fields, target: Any) -> dict[str, Any]:
    """Read `transformer_layer_config`; its layers are Qwen3's whatever its type."""
    raw = f.mapping("transformer_layer_config")
    own = fields.Fields(raw, "transformer_layer_config")
    family = own.take("model_type", "qwen3")
    if family not in LAYER:
        raise own.wrong("model_type", f"one of {sorted(LAYER)}")
    layer = {**LAYER[family], **{n: x for n, x in raw.items() if x is not None}}
    for name in ("attention_bias", "mlp_bias"):
        own.fixed(name, False)
    layer.pop("mlp_bias", None)
    if layer["vocab_size"] != target.vocab_size:
        raise ConfigError(
            f"transformer_layer_config: vocab_size is {layer['vocab_size']}, and the "
            f"target's is {target.vocab_size}: use the target that the heads were "
            "trained on"
        )
    if not layer.get("use_sliding_window", True):
        layer["layer_types"] = [fields.FULL] * layer["num_hidden_layers"]
    elif "use_sliding_window" in raw and "layer_types" not in layer:
        raise ConfigError(
            "transformer_layer_config: use_sliding_window=True without layer_types: "
            "name the layers that have a window"
        )
    if fields.SLIDING in layer.get("layer_types", ()) and "sliding_window" not in layer:
        raise ConfigError(
            "transformer_layer_config: layer_types names sliding layers, and "
            "sliding_window is missing: add the window"
        )
    return layer


def _block(kind: str, f: fields.Fields) -> tuple[dict[str, Any], dict[str, tuple]]:
    """Read the block's fields: those of `dflash_config`, and the tensors' sizes.

    Sizes are, by field: the value, the tensor, and its axis.
    """
    if kind == "dspark" and f.data.get("sample_from_anchor") is None:
        raise ConfigError(
            f"{f.where} lacks sample_from_anchor, which DSpark heads trained before "
            "version 0.7 of speculators have false and later ones true: set it"
        )
    block: dict[str, Any] = {
        "block_size": f.integer("block_size", 8),
        "mask_token_id": f.integer("mask_token_id", least=0),
        "sample_from_anchor": f.flag("sample_from_anchor", False),
        "sliding_window_non_causal": f.flag(
            "sliding_window_non_causal", kind == "dflash2"
        ),
    }
    if kind == "dspark":
        rank = f.integer("markov_rank", 256, least=0)
        form = f.take("markov_head_type", "vanilla")
        sure = f.flag("enable_confidence_head", True)
        with_markov = f.flag("confidence_head_with_markov", True)
        if not rank:
            if sure:
                raise ConfigError(
                    "markov_rank=0 with enable_confidence_head=True: only confidence "
                    "heads that read the token before are implemented"
                )
            return block, {}
        if form == "rnn" and not block["sample_from_anchor"]:
            raise ConfigError(
                "markov_head_type='rnn' with sample_from_anchor=False: its state "
                "begins at a slot that guesses nothing, which is not implemented; use "
                "heads that sample from the anchor"
            )
        block |= {
            "projector_type": "dspark",
            "markov_rank": rank,
            "markov_head_type": form,
            "enable_confidence_head": sure,
            "confidence_head_with_markov": with_markov,
        }
        return block, {"markov_rank": (rank, "markov_head.markov_w1.weight", 1)}
    if kind == "dflash2":
        f.fixed("conv_kernel_size", 2)
        group = f.integer("conv_group_size", 16)
        rank = f.integer("selector_rank", 256)
        block |= {
            "selector_rank": rank,
            "selector_top_k": f.integer("selector_top_k", 16),
        }
        kernel = "layers.0.attention_conv.kernel_projection.weight"
        return block, {
            "selector_rank": (rank, "candidate_selector.predecessor_codebook", 1),
            "conv_group_size": (group, kernel, 0),
        }
    return block, {}


def _check_sizes(theirs: Mapping[str, Any], sizes: dict[str, tuple]) -> None:
    """Compare fields with the tensors' sizes; a missing tensor is found later."""
    for name, (value, tensor, axis) in sizes.items():
        if tensor not in theirs:
            continue
        shape = theirs[tensor].shape
        size = shape[axis]
        if name == "conv_group_size":  # of 4 kernels of a group of channels
            size = 4 * shape[1] // size
        if value != size:
            raise CheckpointError(
                f"{name}={value} in config.json, and {tensor} of shape {shape} has "
                f"{size}: the two belong to different heads"
            )


def _vocabulary(
    theirs: Mapping[str, Any], width: int, target: Any, head: Any
) -> np.ndarray:
    """Read the draft vocabulary of `width` tokens: rising ids int32[V']."""
    missing = [n for n in ("d2t", HEAD) if n not in theirs]
    if missing:
        raise CheckpointError(
            f"draft_vocab_size={width} in config.json, the target has "
            f"{target.vocab_size} tokens, and {missing} are missing: use the whole file"
        )
    rows = theirs[HEAD].shape[0]
    kept = draft_vocabulary.read(theirs, target)
    if kept is None or not len(kept) == width == rows:
        raise CheckpointError(
            f"draft_vocab_size={width} in config.json, d2t has "
            f"{len(theirs['d2t'])} tokens and {HEAD} {rows}: they belong to different "
            "heads"
        )
    if head is not None:
        rows = np.asarray(head)[kept]
        embedding_copies.check(theirs, rows, (HEAD,), "head")
    return kept


def _replaced(params: Any, **changes: Any) -> Any:
    """Return params with other fields of the backbone's config."""
    backbone = params["backbone"]
    own = dataclasses.replace(dflash.config_of(backbone), **changes)
    return {**params, "backbone": {**backbone, CONFIG: own}}


def write(
    kind: str,
    params: Any,
    target: Any,
    verifier: str,
    architectures: Sequence[str] = ("LlamaForCausalLM",),
    taps: Sequence[int] = (),
    head: Any = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert params to a config.json and tensors that `read` takes.

    Args:
        kind: one of KINDS.
        params: the head's params.
        target: the target's config.
        verifier: the target's name on Hugging Face, or its path.
        architectures: the target's `architectures` in config.json.
        taps: the states that the head reads, if not the default ones.
        head: the target's output rows [V, D]; files of a draft vocabulary hold them.

    Raises:
        ConfigError: heads of another form than speculators has.
    """
    speculators.check_target(target)
    if kind not in KINDS:
        raise ConfigError(f"kind={kind!r}: speculators has {KINDS} of block drafters")
    own = dflash.config_of(params["backbone"])
    _check_form(kind, own, params)
    plain, added, width = params, {}, target.vocab_size
    if own.draft_vocabulary:
        if head is None:
            raise ConfigError(
                "head=None: files of a draft vocabulary hold the target's output rows; "
                "give them"
            )
        backbone = dict(params["backbone"])
        kept = np.asarray(backbone.pop("kept"))
        width, plain = len(kept), {**params, "backbone": backbone}
        added = draft_vocabulary.write(kept, target)
        added[HEAD] = np.asarray(head)[kept]
        if "second" in params:
            plain["second"] = params["second"][:, kept]
    plain = _replaced(plain, before_anchor=False, draft_vocabulary=False)
    flat, theirs = block_files.write(kind, plain, target, taps)
    block = flat.pop("dflash_config")
    ids = [i + 1 for i in block.pop("target_layer_ids")]
    for name in ("causal_head", "projector_type"):
        block.pop(name, None)
    for name in ("architectures", "num_target_layers"):
        flat.pop(name)
    sliding = fields.SLIDING in flat["layer_types"]
    config = {
        "architectures": [ARCHITECTURES[kind]],
        "speculators_model_type": kind,
        "speculators_config": speculators.served(
            kind, verifier, architectures, own.drafts
        ),
        "transformer_layer_config": {
            **flat,
            "attention_bias": False,
            "use_sliding_window": sliding,
            "tie_word_embeddings": False,
        },
        "aux_hidden_state_layer_ids": ids,
        "draft_vocab_size": width,
        "sliding_window_non_causal": not own.causal_windows,
        **block,
        "target_hidden_size": None,
        "torch_dtype": str(params["backbone"]["fuse"].dtype),
        "tie_word_embeddings": False,
    }
    return config, theirs | added


def _check_form(kind: str, own: dflash.HeadConfig, params: Any) -> None:
    """Refuse what the format cannot hold."""
    elsewhere = "save the heads with models/heads/formats/block_files.py"
    if own.learned_mask:
        raise ConfigError(
            f"learned_mask=True: speculators has the mask of a token; {elsewhere}"
        )
    if own.causal:
        raise ConfigError(
            f"causal=True: speculators has causal layers with a window alone; "
            f"{elsewhere}"
        )
    if any(own.windows) and not own.before_anchor:
        raise ConfigError(
            f"windows={own.windows} with before_anchor=False: in speculators a window "
            f"is of the tokens before the anchor; {elsewhere}"
        )
    if kind == "dspark" and params[CONFIG].markov == "rnn" and not own.shifted:
        raise ConfigError(
            f"markov='rnn' with shifted=False: in speculators the state begins a slot "
            f"earlier; {elsewhere}"
        )
    if kind == "dflash2" and own.draft_vocabulary:
        raise ConfigError(
            "draft_vocabulary=True: speculators has DFlash 2 of whole vocabularies; "
            "save the heads with models/heads/formats/native.py"
        )


def load(
    folder: str | os.PathLike, target: Any, embedding: Any = None, head: Any = None
) -> tuple[str, Any, dict[str, Any]]:
    """Apply `read` to a folder, or to a repository of the hub."""
    folder = hub.local(folder)
    config = tensors.read_json(folder / "config.json")
    return read(config, published.stored(folder), target, embedding, head)


def save(
    kind: str,
    folder: str | os.PathLike,
    params: Any,
    target: Any,
    verifier: str,
    architectures: Sequence[str] = ("LlamaForCausalLM",),
    taps: Sequence[int] = (),
    head: Any = None,
) -> None:
    """Write params to a folder; arguments as in `write`."""
    about = (verifier, architectures, taps, head)
    config, arrays = write(kind, params, target, *about)
    speculators.store(folder, config, arrays)
