"""P-EAGLE's heads in the format of vLLM's speculators: reading and writing.

As version 0.9.0 of github.com/vllm-project/speculators saves them: the config.json of
EAGLE-3 with `mask_token_id`, and the tensors of `block_layouts.parallel`. The layers
are Llama's and norms stand as in EAGLE-3's paper. Other flags, layers and fields are
refused by name.

The file's embedding is trained with the head. It is kept where it differs from the
target's in another row than the mask's, or where the target's is not given. A pass
guesses as many tokens as `speculators_config` proposes; no other field has the number.
Id i of `eagle_aux_hidden_state_layer_ids` is our state i.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from models.checkpoints import fields, hub, tensors
from models.errors import CheckpointError, ConfigError
from models.heads import eagle3, p_eagle
from models.heads.formats import (
    block_layouts,
    draft_vocabulary,
    embedding_copies,
    layer_rope,
    published,
    speculators,
)
from models.heads.modules import head_config
from models.heads.modules.head_config import CONFIG

KIND, TYPE = "p_eagle", "peagle"  # our name, and that of the files
EMBEDDING = embedding_copies.COPIES[0]
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def read(
    config: dict[str, Any],
    stored: Mapping[str, Any],
    target: Any,
    embedding: Any = None,
) -> tuple[str, Any, dict[str, Any]]:
    """Convert a speculators checkpoint to params.

    Args:
        config: the contents of config.json.
        stored: the tensors by name.
        target: the target's config.
        embedding: the target's embedding [V, D], which the file's may be.

    Returns:
        "p_eagle", the params, and the drafter's arguments.

    Raises:
        CheckpointError: tensors are missing, unknown or misshapen.
        ConfigError: a field that is not implemented, or does not fit the target.
    """
    f = fields.Fields(config, "config.json")
    if f.take("speculators_model_type", "") != TYPE:
        raise f.wrong("speculators_model_type", repr(TYPE))
    raw = f.mapping("transformer_layer_config")
    layers = raw.get("num_hidden_layers", speculators.LAYER["num_hidden_layers"])
    layer = speculators.check_layer(raw, target, layers)
    if f.data.get("norm_before_residual") is None:
        raise ConfigError(
            f"{f.where} lacks norm_before_residual, which is false by default in "
            "speculators and true in vLLM: set it"
        )
    for name in FLAGS:
        f.fixed(name, False)
    f.fixed("target_hidden_size", target.d_model)
    ids = f.take("eagle_aux_hidden_state_layer_ids", None)
    mask = f.integer("mask_token_id", least=0)
    width = f.integer("draft_vocab_size", 32000)
    made = f.mapping("speculators_config")
    for name in ("speculators_version", "embed_requires_grad", "tie_word_embeddings"):
        f.take(name, None)  # how it was made
    f.finish()
    theirs = {n: x for n, x in stored.items() if not n.startswith("verifier_")}
    kept = draft_vocabulary.read(theirs, target)
    if kept is not None and len(kept) == target.vocab_size:
        kept = None
    rows = theirs.pop(EMBEDDING, None)
    weights = {n: x for n, x in theirs.items() if n not in ("d2t", "t2d")}
    plan = block_layouts.parallel(layers)
    params = block_layouts.join(KIND, plan, weights, layer)
    counts = {
        "draft_vocab_size": width,
        "d2t": target.vocab_size if kept is None else len(kept),
        embedding_copies.HEAD: params["head"].shape[0],
    }
    if len(set(counts.values())) > 1:
        raise CheckpointError(f"{counts} tokens: they belong to different heads")
    own, params["mask"] = _embedding(rows, mask, target, embedding)
    if own is not None:
        params["embedding"] = own
    if kept is not None:
        params["kept"] = jnp.asarray(kept)
    where = "transformer_layer_config"
    theta = layer_rope.theta(raw, params["layer_0"], target, where)
    params[CONFIG] = p_eagle.HeadConfig(
        draft_vocabulary=kept is not None,
        depths=_depths(made),
        rope_theta=theta,
        own_embedding=own is not None,
        mask_token=mask,
    )
    p_eagle.check(params, target)
    if not ids or tuple(ids) == eagle3.taps(target):
        return KIND, params, {}
    return KIND, params, {"taps": eagle3.taps(target, tuple(ids))}


def _embedding(rows: Any, mask: int, target: Any, embedding: Any) -> tuple:
    """Return the head's own embedding, None where it is the target's, and m [D]."""
    if mask >= target.vocab_size:
        raise ConfigError(
            f"mask_token_id={mask}, and the target has tokens 0 to "
            f"{target.vocab_size - 1}: use the target that the heads were trained on"
        )
    if rows is None and embedding is None:
        raise CheckpointError(
            f"{EMBEDDING} is missing, and so is the target's embedding: give it"
        )
    if rows is None:
        return None, jnp.asarray(embedding)[mask]
    expected = (target.vocab_size, target.d_model)
    if rows.shape != expected:
        raise CheckpointError(
            f"{EMBEDDING} has the shape {rows.shape}, not {expected}: the head is for "
            "another target"
        )
    own = jnp.asarray(rows)
    if embedding is not None:
        others = embedding_copies.differing(np.asarray(rows), np.asarray(embedding))
        if set(others.tolist()) <= {mask}:
            return None, own[mask]
    return own, own[mask]


def _depths(made: dict[str, Any]) -> int:
    """Read the tokens that a pass guesses from `speculators_config`."""
    default = made.get("default_proposal_method", "greedy")
    for ways in made.get("proposal_methods", ()):
        if ways.get("proposal_type") == default and "speculative_tokens" in ways:
            return ways["speculative_tokens"]
    raise ConfigError(
        "speculators_config names no speculative_tokens of its default_proposal_method "
        f"{default!r}: add the number of tokens that a pass guesses"
    )


def write(
    params: Any,
    target: Any,
    verifier: str,
    architectures: Sequence[str] = ("LlamaForCausalLM",),
    taps: Sequence[int] = (),
    embedding: Any = None,
    mask_token: int = -1,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert params to a config.json and tensors that `read` takes.

    Args:
        params: the head's params.
        target: the target's config.
        verifier: the target's name on Hugging Face, or its path.
        architectures: the target's `architectures` in config.json.
        taps: the states that the head reads, if not EAGLE-3's.
        embedding: the target's embedding [V, D], for heads without one of their own.
        mask_token: whose row of the file's embedding is m; -1: the file's it was read
            from.

    Raises:
        ConfigError: no embedding or no mask token.
    """
    speculators.check_target(target)
    form, bare = p_eagle.config_of(params), dict(head_config.split(params)[0])
    mask = form.mask_token if mask_token < 0 else mask_token
    if not 0 <= mask < target.vocab_size:
        raise ConfigError(
            f"mask_token={mask}: name a token of the target's that texts do not have, "
            "0 or more"
        )
    rows = bare.pop("embedding", embedding)
    if rows is None:
        raise ConfigError(
            "embedding=None: the file holds an embedding, and these heads have none of "
            "their own; give the target's"
        )
    row, kept = bare.pop("mask"), bare.pop("kept", None)
    count = len(p_eagle.layers_of(params))
    shape = p_eagle.shape(params, target)
    plan = block_layouts.parallel(count)
    theirs = block_layouts.split(KIND, plan, bare, shape)
    theirs[EMBEDDING] = np.asarray(jnp.asarray(rows, row.dtype).at[mask].set(row))
    if kept is not None:
        theirs |= draft_vocabulary.write(kept, target)
    layer = layer_rope.described(params["layer_0"], target, form.rope_theta)
    config = {
        "architectures": ["PEagleDraftModel"],
        "speculators_model_type": TYPE,
        "speculators_config": speculators.served(
            TYPE, verifier, architectures, form.depths
        ),
        "transformer_layer_config": {**layer, "num_hidden_layers": count},
        "draft_vocab_size": params["head"].shape[0],
        "eagle_aux_hidden_state_layer_ids": list(eagle3.taps(target, taps)),
        "embed_requires_grad": True,
        "mask_token_id": mask,
        "target_hidden_size": None,
        **dict.fromkeys(FLAGS, False),
        "torch_dtype": str(params["fuse"].dtype),
        "tie_word_embeddings": False,
    }
    return config, theirs


def load(
    folder: str | os.PathLike, target: Any, embedding: Any = None
) -> tuple[str, Any, dict[str, Any]]:
    """Apply `read` to a folder, or to a repository of the hub."""
    folder = hub.local(folder)
    config = tensors.read_json(folder / "config.json")
    return read(config, published.stored(folder), target, embedding)


def save(
    folder: str | os.PathLike,
    params: Any,
    target: Any,
    verifier: str,
    architectures: Sequence[str] = ("LlamaForCausalLM",),
    taps: Sequence[int] = (),
    embedding: Any = None,
    mask_token: int = -1,
) -> None:
    """Write params to a folder; arguments as in `write`."""
    about = (verifier, architectures, taps, embedding, mask_token)
    config, arrays = write(params, target, *about)
    speculators.store(folder, config, arrays)
