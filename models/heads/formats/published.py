"""Draft heads in the layouts of their published checkpoints: reading and writing.

Medusa (`FasterDecoding/medusa-*`), Hydra (`ankner/hydra-*`), EAGLE-1/2 and EAGLE-3
(`yuhuili/EAGLE*`, and the names that others give EAGLE-3's). The tensors decide. Where
config.json differs, e.g. two heads for five, `load` warns. The RoPE of EAGLE's layer is
config.json's alone (`layer_rope.py`): it is kept with the head and written beside it.
Files are safetensors; convert a pickle first. `speculators.py` reads the folders of
vLLM's speculators, whose config.json does decide.
"""

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from safetensors import SafetensorError
from safetensors.flax import load_file
from safetensors.numpy import save_file

from models import storage, transformer
from models.checkpoints import hf, hub
from models.checkpoints.tensors import read_json, write_json
from models.errors import CheckpointError, ConfigError
from models.heads import eagle, eagle3, hydra, medusa
from models.heads.formats import draft_vocabulary, embedding_copies, layer_rope
from models.heads.modules import decoder_layer, head_config

KINDS = ("eagle", "eagle3", "hydra", "medusa")
TURNED = ("eagle", "eagle3")  # kinds whose layer has a RoPE of its own
# Tensors in the files that are no weights of heads: copies, unused weights, buffers.
IGNORED = (
    *embedding_copies.COPIES,
    "*rotary_emb.inv_freq",
    "prefix_embeding_layer.embed_tokens.weight",
    "t2d",
)


def _join_inputs(c: Any, theirs: Any) -> Any:
    flat = theirs[0].T  # [n D, D]
    return flat.reshape(-1, flat.shape[1], flat.shape[1])


def _split_inputs(c: Any, x: Any) -> tuple:
    return (x.reshape(-1, x.shape[2]).T,)


# One weight [D, n D] of n inputs side by side <-> [n, D, D], a matrix an input.
INPUTS = hf.Layout(_join_inputs, _split_inputs)


class Item(NamedTuple):
    """One of our params, its tensors in the file, and tensors that repeat the first."""

    ours: str
    theirs: tuple[str, ...]
    layout: hf.Layout = hf.SAME
    same: tuple[str, ...] = ()


def layer(ours: str, theirs: str) -> Iterator[Item]:
    """Yield the items of a decoder layer without its first norm."""
    attention, mlp = f"{theirs}.self_attn.", f"{theirs}.mlp."
    yield Item(
        f"{ours}/qkv",
        tuple(f"{attention}{x}_proj.weight" for x in "qkv"),
        hf.KERNEL_HEADS,
    )
    yield Item(f"{ours}/out", (f"{attention}o_proj.weight",), hf.KERNEL)
    up = (f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight")
    yield Item(f"{ours}/up", up, hf.KERNEL_PAIR)
    yield Item(f"{ours}/down", (f"{mlp}down_proj.weight",), hf.KERNEL)
    yield Item(f"{ours}/norm", (f"{theirs}.post_attention_layernorm.weight",))


def _medusa(heads: int, blocks: int, has_rows: bool) -> Iterator[Item]:
    """Yield Medusa's items; the first checkpoints have no output rows."""
    for i in range(heads):
        repeated = range(1, blocks)
        weights = tuple(f"{i}.{j}.linear.weight" for j in repeated)
        biases = tuple(f"{i}.{j}.linear.bias" for j in repeated)
        yield Item(f"res/{i}", (f"{i}.0.linear.weight",), hf.KERNEL, weights)
        yield Item(f"bias/{i}", (f"{i}.0.linear.bias",), hf.SAME, biases)
        if has_rows:
            yield Item(f"head/{i}", (f"{i}.{blocks}.weight",))


def _hydra(heads: int, blocks: int, prefix: bool) -> Iterator[Item]:
    """Yield Hydra's items; with a prefix layer, a dropout precedes every module."""
    first, step = (1, 2) if prefix else (0, 1)
    for i in range(heads):
        at, mlp = f"head_{i}", f"hydra_mlp.{i}"
        for ours, theirs in (("mix", "linear"), ("skip", "res_connection")):
            name = f"{mlp}.{first}.{theirs}"
            yield Item(f"{at}/{ours}", (f"{name}.weight",), INPUTS)
            yield Item(f"{at}/{ours}_bias", (f"{name}.bias",))
        if blocks > 1:
            names = [f"{mlp}.{first + step * j}.linear" for j in range(1, blocks)]
            weights = tuple(f"{name}.weight" for name in names)
            biases = tuple(f"{name}.bias" for name in names)
            yield Item(f"{at}/res", weights[:1], hf.KERNEL, weights[1:])
            yield Item(f"{at}/res_bias", biases[:1], hf.SAME, biases[1:])
        name = f"hydra_lm_head.{i}.1" if prefix else f"hydra_lm_head.{i}"
        yield Item(f"{at}/head", (f"{name}.weight",))
        yield Item(f"{at}/head_bias", (f"{name}.bias",))
    if prefix:
        whole = "prefix_embeding_layer"  # the spelling of the files
        yield from layer("prefix", f"{whole}.layers.0")
        norm = f"{whole}.layers.0.input_layernorm.weight"
        yield Item("prefix/input_norm", (norm,))
        yield Item("prefix/final_norm", (f"{whole}.norm.weight",))


def _eagle(bias: bool) -> Iterator[Item]:
    yield Item("fuse", ("fc.weight",), INPUTS)
    if bias:
        yield Item("bias", ("fc.bias",))
    yield from layer("layer", "layers.0")


def _eagle3() -> Iterator[Item]:
    yield Item("fuse", ("fc.weight",), INPUTS)
    yield Item("embedding_norm", ("midlayer.input_layernorm.weight",))
    yield Item("feature_norm", ("midlayer.hidden_norm.weight",))
    yield from layer("layer", "midlayer")
    yield Item("norm", ("norm.weight",))
    yield Item("head", ("lm_head.weight",))


def _highest(names: Any, pattern: str) -> int:
    """Return the greatest number that the pattern matches in the names; -1 if none."""
    matches = [re.match(pattern, name) for name in names]
    return max((int(m.group(1)) for m in matches if m), default=-1)


def _read_plan(kind: str, names: set[str]) -> tuple[list[Item], dict[str, int]]:
    """Derive a file's items, and the settings of its heads, from its tensors' names."""
    if kind == "medusa":
        heads = _highest(names, r"(\d+)\.0\.linear\.weight$") + 1
        blocks = _highest(names, r"0\.(\d+)\.linear\.weight$") + 1
        has_rows = _highest(names, rf"(\d+)\.{blocks}\.weight$") >= 0
        plan = list(_medusa(heads, blocks, has_rows))
        return plan, {"heads": heads, "blocks": blocks, "own": has_rows}
    if kind == "hydra":
        prefix = any(name.startswith("prefix_embeding_layer.") for name in names)
        heads = _highest(names, r"hydra_mlp\.(\d+)\.") + 1
        last = _highest(names, r"hydra_mlp\.0\.(\d+)\.linear\.weight$")
        blocks = (last + 1) // 2 if prefix else last + 1
        plan = list(_hydra(heads, blocks, prefix))
        return plan, {"heads": heads, "blocks": blocks, "prefix": prefix}
    if kind == "eagle":
        return list(_eagle("fc.bias" in names)), {"bias": "fc.bias" in names}
    return list(_eagle3()), {}


def _expected(kind: str, plan: dict[str, int], target: Any, draft_ids: Any) -> Any:
    """Return the shapes of heads for this target."""
    rows = jax.ShapeDtypeStruct((target.vocab_size, target.d_model), jnp.float32)
    key = jax.random.key(0)

    def init(rows: Any) -> Any:
        if kind == "medusa":
            output = rows if plan["own"] else None
            return medusa.init(key, target, output, plan["heads"])
        if kind == "hydra":
            deep = plan["blocks"] > 1
            return hydra.init(
                key, target, rows, plan["heads"], bool(plan["prefix"]), deep
            )
        if kind == "eagle":
            return eagle.init(key, target, bool(plan["bias"]))
        return eagle3.init(key, target, rows, draft_ids)

    return jax.eval_shape(init, rows)


def read(
    kind: str,
    tensors: Mapping[str, Any],
    target: Any,
    embedding: Any = None,
    config: Mapping[str, Any] | None = None,
) -> tuple[Any, dict]:
    """Convert published tensors to params, and to the arguments of their drafter.

    `target` is the target's config. A copy of its embedding in the file is dropped,
    after a comparison where `embedding` [V, D] is given. `config` is the head's
    config.json, of which EAGLE's RoPE is read; None: the target's RoPE.

    Raises:
        CheckpointError: tensors are missing, unknown, misshapen or unequal copies.
    """
    _check_kind(kind)
    theirs = {_plain(kind, name): x for name, x in tensors.items()}
    if embedding is not None:
        embedding_copies.check(theirs, np.asarray(embedding))
    names = {
        name
        for name in theirs
        if not any(fnmatch.fnmatch(name, pattern) for pattern in IGNORED)
    }
    plan, settings = _read_plan(kind, names)
    required = {n for item in plan for n in (*item.theirs, *item.same)}
    missing, unknown = required - names, names - required - {"d2t"}
    if missing or unknown or not plan:
        raise CheckpointError(
            f"the file is not one of {kind} heads (missing {sorted(missing)[:8]}, "
            f"unknown {sorted(unknown)[:8]}): check `kind` and the file"
        )
    draft_ids = draft_vocabulary.read(theirs, target) if kind == "eagle3" else None
    bare, configs = head_config.split(_expected(kind, settings, target, draft_ids))
    expected = hf.flatten(bare)
    flat: dict[str, Any] = {}
    shape = decoder_layer.geometry(target)
    for item in plan:
        for name in item.same:
            if not np.array_equal(theirs[name], theirs[item.theirs[0]]):
                raise CheckpointError(
                    f"{name} differs from {item.theirs[0]}: the blocks of a head share "
                    "their weights, and these were trained apart"
                )
        try:
            flat[item.ours] = item.layout.join(shape, [theirs[n] for n in item.theirs])
        except (TypeError, ValueError) as error:
            shapes = [theirs[n].shape for n in item.theirs]
            raise CheckpointError(
                f"{item.theirs} of shapes {shapes} do not fit a target of width "
                f"{target.d_model} ({error})"
            ) from error
    if kind == "medusa":
        for name in sorted({item.ours.partition("/")[0] for item in plan}):
            parts = [flat.pop(f"{name}/{i}") for i in range(settings["heads"])]
            flat[name] = jnp.stack(parts)
    if draft_ids is not None:
        flat["kept"] = jnp.asarray(draft_ids)
    wrong = [
        f"{name} {flat[name].shape}, expected {x.shape}"
        for name, x in expected.items()
        if flat[name].shape != x.shape
    ]
    if wrong:
        raise CheckpointError(f"these heads are for another target: {wrong[:4]}")
    params = jax.tree.map(jnp.asarray, hf.unflatten(flat))
    if config is not None and kind in TURNED:
        base = layer_rope.theta(config, params["layer"], target, "config.json")
        configs[""] = replace(configs[""], rope_theta=base)
    return head_config.joined(params, configs), _arguments(kind, settings)


def write(kind: str, params: Any, target: Any, blocks: int = 1) -> dict[str, Any]:
    """Convert params to published tensors; `blocks` is Medusa's or Hydra's depth."""
    _check_kind(kind)
    flat = dict(hf.flatten(head_config.split(params)[0]))
    if kind == "medusa":
        heads = medusa.count(params)
        for name in {"res", "bias", "head"} & set(params):
            stacked = flat.pop(name)
            flat.update({f"{name}/{i}": stacked[i] for i in range(heads)})
        plan = list(_medusa(heads, blocks, medusa.config_of(params).output_rows))
    elif kind == "hydra":
        plan = list(_hydra(hydra.count(params), blocks, hydra.config_of(params).prefix))
    else:
        plan = list(
            _eagle(eagle.config_of(params).bias) if kind == "eagle" else _eagle3()
        )
    other = sorted(set(flat) - {item.ours for item in plan} - {"kept"})
    if other:
        raise CheckpointError(
            f"published {kind} heads have no place for {other}: save heads with such "
            "norms with models/heads/formats/speculators.py"
        )
    config, out = decoder_layer.geometry(target), {}
    for item in plan:
        parts = item.layout.split(config, flat[item.ours])
        out.update(dict(zip(item.theirs, parts, strict=True)))
        out.update(dict.fromkeys(item.same, parts[0]))
    if kind == "eagle3" and eagle3.config_of(params).draft_vocabulary:
        out.update(draft_vocabulary.write(params["kept"], target))
    return out


def load(
    kind: str, path: str | os.PathLike, target: Any, embedding: Any = None
) -> tuple[Any, dict]:
    """Apply `read` to a safetensors file, or to the only one in a folder or repository.

    config.json beside it gives EAGLE's RoPE; where the tensors differ from it in
    another field, a warning names both values.
    """
    path = hub.local(path)
    beside = (path if path.is_dir() else path.parent) / "config.json"
    claims = read_json(beside) if beside.exists() else None
    params, arguments = read(kind, stored(path), target, embedding, claims)
    if claims is None:
        plain = transformer.rope(decoder_layer.geometry(target).head_dim, 10000.0)
        if kind in TURNED and plain != decoder_layer.geometry(target).ropes[0]:
            logging.warning("%s is missing: the head's RoPE is the target's", beside)
        return params, arguments
    for name, value in _shown(kind, params, arguments).items():
        if claims.get(name, value) != value:
            mismatch = f"{name}={claims[name]!r}, and the tensors {value!r}"
            logging.warning("%s has %s: the tensors are used", beside, mismatch)
    return params, arguments


def stored(path: str | os.PathLike) -> dict[str, Any]:
    """Read the tensors of a safetensors file, or of the only one in a folder."""
    place = storage.path(path)
    if place.is_dir():
        files = sorted(place.glob("*.safetensors"))
        if len(files) != 1:
            raise CheckpointError(
                f"{path} holds {len(files)} safetensors files: give the path of the "
                "heads' file (convert a .bin or .pt file first)"
            )
        place = files[0]
    if place.suffix != ".safetensors":
        raise CheckpointError(
            f"{place} is no safetensors file: convert it (a pickle can run any code)"
        )
    try:
        with storage.local_copy(place) as file:
            return load_file(str(file))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{place} cannot be read ({error})") from error


def save(
    kind: str, path: str | os.PathLike, params: Any, target: Any, blocks: int = 1
) -> None:
    """Write params to a safetensors file; see `write`.

    EAGLE's config.json is written beside it. Raises `CheckpointError` where another
    one is there.
    """
    tensors = write(kind, params, target, blocks)
    if kind in TURNED:
        form = (eagle if kind == "eagle" else eagle3).config_of(params)
        config = layer_rope.described(params["layer"], target, form.rope_theta)
        config = {**config, **_shown(kind, params, {})}
        beside = storage.path(path).parent / "config.json"
        if beside.exists() and read_json(beside) != config:
            raise CheckpointError(f"{beside} is another model's: use a new folder")
        write_json(beside, config)
    store(path, tensors)


def store(path: str | os.PathLike, tensors: Mapping[str, Any]) -> None:
    """Write a safetensors file. NumPy arrays keep ids of 64 bits, as JAX would not."""
    with storage.new_file(storage.path(path)) as part:
        save_file({n: np.ascontiguousarray(x) for n, x in tensors.items()}, str(part))


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"kind={kind!r}: use one of {KINDS}")


def _plain(kind: str, name: str) -> str:
    """Strip from a name the prefixes of merged checkpoints and other exporters."""
    name = name.removeprefix("medusa_head.")
    if kind == "eagle3" and name.startswith("layers.0."):
        return "midlayer." + name.removeprefix("layers.0.")
    return name


def _arguments(kind: str, settings: dict[str, int]) -> dict[str, int]:
    if kind in ("medusa", "hydra"):
        return {"blocks": settings["blocks"]}
    return {}


def _shown(kind: str, params: Any, settings: dict[str, int]) -> dict[str, Any]:
    """Return the tensors' values of fields that a config.json may have."""
    if kind == "eagle":
        return {"bias": eagle.config_of(params).bias}
    if kind == "eagle3":
        return {"draft_vocab_size": params["head"].shape[0]}
    heads = (medusa if kind == "medusa" else hydra).count(params)
    return {f"{kind}_num_heads": heads, f"{kind}_num_layers": settings["blocks"]}
