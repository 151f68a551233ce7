"""The tensors of published drafters of one pass, by our params.

Those of block drafters (`block_files.py`, `speculators_blocks.py`) and of P-EAGLE
(`speculators_parallel.py`).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from models.checkpoints import hf
from models.errors import CheckpointError
from models.heads.formats import published
from models.heads.formats.published import Item


def _join_rows(c: Any, theirs: Any) -> Any:
    return theirs[0].T.reshape(theirs[0].shape[1], 3, -1)


# Three stacked weights [3 G, in] <-> [in, 3, G].
TRIPLE = hf.Layout(_join_rows, lambda c, x: (x.reshape(x.shape[0], -1).T,))
# [2 F, in] <-> [in, 2, F], and its bias [2 F] <-> [2, F].
DOUBLE = hf.Layout(
    lambda c, t: t[0].T.reshape(t[0].shape[1], 2, -1),
    lambda c, x: (x.reshape(x.shape[0], -1).T,),
)
HALVES = hf.Layout(lambda c, t: t[0].reshape(2, -1), lambda c, x: (x.reshape(-1),))
# [1, in] <-> [in], and [1] <-> [].
ROW = hf.Layout(lambda c, t: t[0].reshape(-1), lambda c, x: (x.reshape(1, -1),))
NUMBER = hf.Layout(lambda c, t: t[0].reshape(()), lambda c, x: (x.reshape(1),))
# [2 2 D / g, D] <-> [D, 2, 2, D / g].
TAPS = hf.Layout(
    lambda c, t: t[0].T.reshape(t[0].shape[1], 2, 2, -1),
    lambda c, x: (x.reshape(x.shape[0], -1).T,),
)

# [1, 1, n D] <-> [n, D].
STATES = hf.Layout(
    lambda c, t: t[0].reshape(-1, c.d_model), lambda c, x: (x.reshape(1, 1, -1),)
)


def backbone(layers: int, convolved: bool, mask: bool) -> Iterator[Item]:
    at = "backbone/"
    yield Item(f"{at}fuse", ("fc.weight",), published.INPUTS)
    yield Item(f"{at}feature_norm", ("hidden_norm.weight",))
    yield Item(f"{at}norm", ("norm.weight",))
    if mask:
        yield Item(f"{at}mask", ("mask_embedding",))
    for i in range(layers):
        ours, theirs = f"{at}layer_{i}", f"layers.{i}"
        yield from published.layer(ours, theirs)
        yield Item(f"{ours}/input_norm", (f"{theirs}.input_layernorm.weight",))
        for name in ("q_norm", "k_norm"):
            yield Item(f"{ours}/{name}", (f"{theirs}.self_attn.{name}.weight",))
        for name in ("attention", "mlp") if convolved else ():
            own, file = f"{ours}/{name}_convolution", f"{theirs}.{name}_conv"
            yield Item(f"{own}/base", (f"{file}.base_kernel",))
            yield Item(f"{own}/kernel", (f"{file}.kernel_projection.weight",), TAPS)


def head(kind: str, form: Any) -> Iterator[Item]:
    """Yield the items of a head; `form` is the head's own config."""
    if kind == "dspark":
        yield Item("first", ("markov_head.markov_w1.weight",))
        yield Item("second", ("markov_head.markov_w2.weight",), hf.KERNEL)
        name = {"gated": "gate", "rnn": "joint"}.get(form.markov)
        if name:
            file = f"markov_head.{name}_proj"
            yield Item(name, (f"{file}.weight",), hf.KERNEL)
            yield Item(f"{name}_bias", (f"{file}.bias",))
        if form.confidence:
            yield Item("confidence", ("confidence_head.proj.weight",), ROW)
            yield Item("confidence_bias", ("confidence_head.proj.bias",), NUMBER)
    if kind == "domino":
        yield Item("inputs", ("prefix_gru.weight_ih_l0",), TRIPLE)
        yield Item("recurrent", ("prefix_gru.weight_hh_l0",), TRIPLE)
        yield Item("joint", ("embed_proj.0.weight",), hf.KERNEL)
        yield Item("output", ("embed_proj.2.weight",), hf.KERNEL)
    if kind == "dflash2":
        at = "candidate_selector"
        yield Item("before", (f"{at}.predecessor_codebook",))
        yield Item("after", (f"{at}.successor_codebook",))
        yield Item("hidden", (f"{at}.hidden_projection.weight",), hf.KERNEL)
    if kind == "treeflash":
        at = "ar_approximation"
        yield Item("up", (f"{at}.ug.weight",), DOUBLE)
        yield Item("up_bias", (f"{at}.ug.bias",), HALVES)
        yield Item("down", (f"{at}.d.weight",), hf.KERNEL)
        yield Item("embedding_norm", (f"{at}.norm.weight",))


def parallel(layers: int) -> Iterator[Item]:
    """Yield P-EAGLE's items but those of the embedding."""
    yield Item("fuse", ("fc.weight",), published.INPUTS)
    yield Item("mask_hidden", ("mask_hidden",), STATES)
    yield Item("norm", ("norm.weight",))
    yield Item("head", ("lm_head.weight",))
    for i in range(layers):
        file = f"layers.{i}"
        yield from published.layer(f"layer_{i}", file)
        name = f"layer_{i}/input_norm" if i else "embedding_norm"
        yield Item(name, (f"{file}.input_layernorm.weight",))
        if not i:
            yield Item("feature_norm", (f"{file}.hidden_norm.weight",))


def join(kind: str, items: Iterable[Item], theirs: Mapping[str, Any], c: Any) -> Any:
    """Convert a file's tensors to params.

    Args:
        kind: of the head, for errors.
        items: all that the head has.
        theirs: the tensors by name.
        c: the config of its layers.

    Raises:
        CheckpointError: tensors are missing, unknown or misshapen.
    """
    plan = list(items)
    required = {n for item in plan for n in item.theirs}
    missing, unknown = required - set(theirs), set(theirs) - required
    if missing or unknown:
        raise CheckpointError(
            f"the file is not one of {kind} heads of this config (missing "
            f"{sorted(missing)[:8]}, unknown {sorted(unknown)[:8]}): use the config "
            "and the tensors of one head"
        )
    flat = {}
    for item in plan:
        try:
            parts = [jnp.asarray(theirs[n]) for n in item.theirs]
            flat[item.ours] = item.layout.join(c, parts)
        except (TypeError, ValueError) as error:
            shapes = [theirs[n].shape for n in item.theirs]
            raise CheckpointError(
                f"{item.theirs} of shapes {shapes} do not fit the config ({error})"
            ) from error
    return hf.unflatten(flat)


def split(kind: str, items: Iterable[Item], params: Any, c: Any) -> dict[str, Any]:
    """Convert params without configs to a file's tensors: the inverse of `join`."""
    flat = dict(hf.flatten(params))
    tensors: dict[str, Any] = {}
    for item in items:
        parts = item.layout.split(c, flat.pop(item.ours))
        tensors |= {n: np.asarray(x) for n, x in zip(item.theirs, parts)}
    if flat:
        raise CheckpointError(f"{sorted(flat)} are no params of {kind} heads")
    return tensors
