"""Loading and saving models in HF layout: `load`, `save` and the `Loaded` model."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models import (
    base,
    checkpoints,
    compile_cache,
    cpu_host,
    packaged,
    storage,
    transformer,
)
from models.cache_layouts import kv_cache
from models.checkpoints import fields, hf, hub, masked_diffusion, rope, tensors
from models.distributed import sharding
from models.errors import CheckpointError, ConfigError, PromptError
from models.heads.formats import native
from models.text import hf_tokenizer

DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Heads:
    """Trained draft heads of a model, and the folder that they are from."""

    folder: str
    params: Any


@dataclasses.dataclass(frozen=True, repr=False)
class Loaded:
    """A language model with its weights and, where there is one, its tokenizer.

    `family` is the HF `model_type` that `save` writes; `generation` the contents of
    generation_config.json; `heads` are draft heads to decode with. `auto_map` names
    upstream's classes, in files that are neither downloaded nor imported here.
    """

    model: base.LanguageModel
    params: dict
    tokenizer: hf_tokenizer.Tokenizer | None = None
    family: str = "llama"
    generation: dict[str, Any] = dataclasses.field(default_factory=dict)
    heads: Heads | None = None
    auto_map: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        leaves = jax.tree.leaves(self.params)
        count = sum(leaf.size for leaf in leaves)
        short = f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
        parts = [self.family, f"{short} params", str(leaves[0].dtype)]
        parts.append(f"{self.config.vocab_size} tokens")
        parts += [f"heads {self.heads.folder}"] if self.heads else []
        return f"Loaded({', '.join(parts)})"

    def generate(self, prompts: Sequence[Any], **settings: Any) -> Any:
        """Decode prompts with this model: `decoding.generate(self, prompts, ...)`."""
        import decoding  # which imports this package

        return decoding.generate(self, prompts, **settings)

    @property
    def config(self) -> transformer.Config:
        return self.model.config

    def chat(self, messages: Sequence[dict[str, Any]], **variables: Any) -> list[int]:
        """Encode a conversation, up to the beginning of the assistant's answer.

        `messages` are dicts with `role` and `content`; `variables` are passed to the
        template. PromptError if there is no template or it refuses the messages.
        """
        if self.tokenizer is None:
            raise PromptError(
                "chat needs a tokenizer: this model was loaded without tokenizer.json"
            )
        return self.tokenizer.chat(messages, **variables)


def load(
    name: str | os.PathLike,
    mesh: Any = None,
    dtype: Any = None,
    kernel: str = "auto",
    cache: Callable[..., kv_cache.KVCache] = kv_cache.dense,
    rules: str = "",
    heads: str | os.PathLike | None = None,
    revision: str | None = None,
    rope_theta: float | None = None,
    quantised: bool = True,
) -> Loaded:
    """Load a model in HF layout, tensor by tensor, from disk or from the hub.

    Compiled programs are kept from then on (`models/compile_cache.py`).

    Args:
        name: the directory, the name of a packaged model, or a repository of the hub,
            `owner/name` or `owner/name@revision`, which is downloaded into
            huggingface_hub's cache.
        mesh: a mesh with axes among `data`, `fsdp` and `tensor`, sizes as text, or
            "auto". Params are sharded over it, and so is everything decoded with them.
        dtype: of the params; by default float32 on CPU, where bfloat16 products are
            slow, and bfloat16 elsewhere.
        kernel: "auto", "pallas" or "xla", which reads the cache in attention. The
            layers of draft heads choose as "auto" does.
        cache: makes an empty cache: dense, or a layout of `models.cache_layouts`.
        rules: replaces some of the sharding rules in `models.distributed.axis_rules`,
            like "vocab=,batch=data+fsdp".
        heads: the folder of trained draft heads, the name of packaged ones, or a
            repository of the hub. They and their method are then the default of
            `decoding.generate`.
        revision: the branch, tag or commit of a repository; by default its main branch.
        rope_theta: replaces the base of the rotary embedding, by default config.json's.
            Over 700 tokens `tiny` repeats 2 % of a fact's tokens at its own base,
            10,000, and 65 % at 40,000 (`experiments/benchmarks/needle.py`).

        quantised: whether weights that a file holds in codes (gpt-oss's experts, MXFP4)
            stay so; False decodes them all to `dtype`.

    Raises:
        ConfigError: config.json lacks fields, has unknown ones, or is of a family that
            is not supported; or `rope_theta` for a model without one plain RoPE.
        CheckpointError: weights or tokenizer are absent or do not fit config.json; or a
            repository is missing, gated or cannot be reached.
    """
    cpu_host.settle()
    compile_cache.enable()
    directory = locate(name, revision)
    data = tensors.read_json(directory / "config.json")
    family, config = checkpoints.read_config(data, str(directory / "config.json"))
    generation = {}
    if (directory / "generation_config.json").exists():
        generation = tensors.read_json(directory / "generation_config.json")
    config = _with_ids(config, data, generation)
    if rope_theta is not None:
        config = rope.with_base(config, rope_theta)
    config = config if quantised else config.widened()
    dtype = choose_dtype(dtype)
    tokenizer = hf_tokenizer.load(directory, config.eos)
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{directory}: tokenizer.json has ids up to {tokenizer.vocab_size - 1} and "
            f"the embedding {config.vocab_size} rows: they belong to different models"
        )
    plan = sharding.on(mesh, "decode", rules, config)
    params = hf.load_params(family, config, directory, dtype, placer(plan))
    model = transformer.transformer(config, dtype, kernel, cache)._replace(plan=plan)
    auto_map = data.get("auto_map") or {}
    lm = Loaded(
        model, params, tokenizer, family.model_type, generation, auto_map=auto_map
    )
    if heads is None:
        return lm
    with_heads = Heads(str(heads), native.load(str(heads), lm))
    return dataclasses.replace(lm, heads=with_heads)


def locate(
    name: str | os.PathLike,
    revision: str | None = None,
    files: tuple[str, ...] = hub.MODEL,
) -> storage.Path:
    """Return the directory of a packaged model, of one at a path, or of a download.

    `files` are patterns of the names that a repository's download is limited to.
    """
    if str(name) in packaged.MODELS and revision is None:
        path = packaged.folder(str(name))
    else:
        path = hub.local(name, revision, files)
    if not path.is_dir():
        raise CheckpointError(
            f"there is no model {str(name)!r}: give a directory in HF layout "
            f"(config.json, *.safetensors, tokenizer.json), a repository of the hub "
            f"(owner/name), or one of {list(packaged.MODELS)}"
        )
    return path


def choose_dtype(dtype: Any) -> np.dtype:
    """Check `dtype`; None gives the default of this machine's backend."""
    if dtype is None:
        dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    try:
        chosen = np.dtype(dtype)
    except TypeError:
        chosen = None
    if chosen is None or chosen.name not in DTYPES:
        raise ConfigError(f"dtype={dtype!r}: use one of {DTYPES}")
    return chosen


def placer(plan: sharding.Plan | None) -> Callable[[str, np.ndarray], jax.Array]:
    """Return a function (path, array) that shards a param over the plan's devices."""

    def place(path: str, array: np.ndarray) -> jax.Array:
        name = path.rpartition("/")[2]
        if plan is None:
            return sharding.in_order(name, jnp.asarray(array))
        where = plan.place(name, array.shape)
        on = sharding.devices_of(where)
        x = jax.make_array_from_callback(array.shape, on, array.__getitem__)
        return jax.device_put(x, where)

    return place


def placed(lm: Any, plan: sharding.Plan | None) -> Any:
    """Move a loaded model to the devices of `plan`."""
    if plan is None:
        return lm
    params = sharding.put(lm.params, plan.places(lm.params))
    model = lm.model._replace(plan=plan)
    return dataclasses.replace(lm, model=model, params=params)


def _with_ids(
    config: transformer.Config, data: dict, generation: dict
) -> transformer.Config:
    """Set bos and eos: those of generation_config.json, else of config.json."""
    data = {**data.get("text_config", {}), **data}
    sources = [fields.Fields(generation, ""), fields.Fields(data, "")]
    eos = next((x for f in sources if (x := f.ids("eos_token_id"))), ())
    bos = next((x for f in sources if (x := f.ids("bos_token_id"))), (None,))
    for name, ids in (("eos_token_id", eos), ("bos_token_id", bos)):
        bad = [i for i in ids if i is not None and not _is_id(i, config.vocab_size)]
        if bad:
            raise ConfigError(
                f"{name}={bad} is outside the vocabulary of {config.vocab_size}: "
                "correct generation_config.json or config.json"
            )
    return dataclasses.replace(config, bos=bos[0], eos=eos)


def _is_id(value: Any, vocab_size: int) -> bool:
    return isinstance(value, int) and 0 <= value < vocab_size


def save(
    lm: Loaded,
    directory: str | os.PathLike,
    shard_bytes: int = tensors.SHARD_BYTES,
) -> None:
    """Write `lm` in HF layout, for transformers 4 and 5 and for `load`.

    The params keep their dtype. Where config.json names classes of upstream's own
    (`auto_map`), transformers needs their files beside it: copy them from upstream.

    Raises:
        ConfigError: the family's config.json cannot express the Config. Nothing is
            written then.
    """
    if lm.family not in checkpoints.FAMILIES:
        raise ConfigError(
            f"family={lm.family!r}: use one of {sorted(checkpoints.FAMILIES)}"
        )
    family = checkpoints.FAMILIES[lm.family]
    config = lm.config
    if not isinstance(config, transformer.Config):
        raise ConfigError(
            f"a model whose config is a {type(config)} cannot be saved: save a "
            "transformer"
        )
    if config.labels:
        family = checkpoints.scorer(family)
    dtype = lm.params["embedding"]["tokens"].dtype.name
    ids = {
        "bos_token_id": config.bos,
        "eos_token_id": _one_or_all(config.eos),
        # HF's default, where this is absent, may lie outside a small vocabulary.
        "pad_token_id": lm.generation.get("pad_token_id"),
    }
    data = {
        "architectures": [family.architectures[0]],
        "model_type": family.model_type,
        **family.write(config),
        **masked_diffusion.write(config),
        **ids,
        "dtype": dtype,
        "torch_dtype": dtype,
        **({"auto_map": lm.auto_map} if lm.auto_map else {}),
    }
    _check_written(config, data)
    path = storage.path(directory)
    path.mkdir(parents=True, exist_ok=True)
    hf.save_params(family, config, lm.params, path, shard_bytes)
    tensors.write_json(path / "config.json", data)
    tensors.write_json(path / "generation_config.json", {**lm.generation, **ids})
    if lm.tokenizer is not None:
        lm.tokenizer.save(path)


def _one_or_all(ids: tuple[int, ...]) -> int | list[int] | None:
    if len(ids) > 1:
        return list(ids)
    return ids[0] if ids else None


def _check_written(config: transformer.Config, data: dict) -> None:
    _, read = checkpoints.read_config(data, "the config.json to be written")
    read = dataclasses.replace(read, bos=config.bos, eos=config.eos)
    lost = [
        f"{field.name}={getattr(config, field.name)!r}"
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != getattr(read, field.name)
    ]
    if lost:
        raise ConfigError(
            f"config.json of {data['model_type']} cannot express {lost}: save under "
            f"another family of {sorted(checkpoints.FAMILIES)}"
        )
