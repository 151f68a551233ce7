"""Loading and saving models in HF layout: `load`, `save` and what `load` returns."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models import base, checkpoints, packaged, transformer
from models.cache_layouts import kv_cache
from models.checkpoints import fields, hf, tensors
from models.distributed import axis_rules, sharding
from models.errors import CheckpointError, ConfigError, PromptError
from models.text import hf_tokenizer

DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A language model with its weights and, where there is one, its tokenizer.

    `family` is the HF `model_type` that `save` writes; `generation` the contents of
    generation_config.json.
    """

    model: base.LanguageModel
    params: dict
    tokenizer: hf_tokenizer.Tokenizer | None = None
    family: str = "llama"
    generation: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def config(self) -> transformer.Config:
        return self.model.config

    def chat(self, messages: Sequence[dict[str, Any]], **variables: Any) -> list[int]:
        """The tokens of a conversation, up to where the assistant's answer begins.

        `messages` are dicts with `role` and `content`; `variables` are passed to the
        template. PromptError when there is no template or when it refuses them.
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
) -> Loaded:
    """The model of a directory in HF layout, or a packaged one by name.

    `dtype` is that of the params: by default float32 on CPU, where bfloat16 products
    are slow, and bfloat16 elsewhere. With a `mesh`, whose axes are some of `data`,
    `fsdp` and `tensor` (or its sizes as text, or "auto"), params lie where
    `models.distributed.axis_rules` says, `rules` ("vocab=,batch=data+fsdp") replacing
    some of its table, and everything that is decoded with the model lies there. Weights
    are read tensor by tensor. `kernel` ("auto", "pallas", "xla") says how attention
    reads its cache, and `cache` makes it: dense, or a layout of
    `models.cache_layouts.quantized`.

    ConfigError: config.json lacks or has fields, or is of a family that is not
    supported. CheckpointError: weights or tokenizer are absent or do not fit it.
    """
    directory = locate(name)
    data = tensors.read_json(directory / "config.json")
    family, config = checkpoints.read_config(data, str(directory / "config.json"))
    generation = {}
    if (directory / "generation_config.json").exists():
        generation = tensors.read_json(directory / "generation_config.json")
    config = _with_ids(config, data, generation)
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
    return Loaded(model, params, tokenizer, family.model_type, generation)


def locate(name: str | os.PathLike) -> pathlib.Path:
    """The directory of a packaged or given model."""
    path = pathlib.Path(name)
    if str(name) in packaged.MODELS:
        path = packaged.folder(str(name))
    if not path.is_dir():
        raise CheckpointError(
            f"there is no model {str(name)!r}: give a directory in HF layout "
            f"(config.json, *.safetensors, tokenizer.json) or one of "
            f"{list(packaged.MODELS)}"
        )
    return path


def choose_dtype(dtype: Any) -> np.dtype:
    """`dtype` checked, or the default of this machine's first device."""
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
    """How a param goes to the devices: every device gets its own part of it."""
    if plan is None:
        return lambda path, array: jnp.asarray(array)

    def place(path: str, array: np.ndarray) -> jax.Array:
        axes = axis_rules.param_axes(path.rpartition("/")[2], array.ndim)
        where = plan.of(array.shape, axes)
        return jax.make_array_from_callback(array.shape, where, array.__getitem__)

    return place


def placed(lm: Any, plan: sharding.Plan | None) -> Any:
    """A loaded model moved to where `plan` wants it."""
    if plan is None:
        return lm
    params = sharding.put(lm.params, plan.params(lm.params))
    model = lm.model._replace(plan=plan)
    return dataclasses.replace(lm, model=model, params=params)


def _with_ids(
    config: transformer.Config, data: dict, generation: dict
) -> transformer.Config:
    """`config` with bos and eos: generation_config.json's, else config.json's."""
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
    """Write `lm` in HF layout; transformers 4 and 5 read it, and so does `load`.

    The params keep their dtype. ConfigError when the family's config.json cannot say
    what the Config says; nothing is written then.
    """
    if lm.family not in checkpoints.FAMILIES:
        raise ConfigError(
            f"family={lm.family!r}: use one of {sorted(checkpoints.FAMILIES)}"
        )
    family = checkpoints.FAMILIES[lm.family]
    config = lm.config
    if not isinstance(config, transformer.Config):
        raise ConfigError(
            f"only a transformer can be saved, not a {type(config).__name__}"
        )
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
        **ids,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    _check_written(config, data)
    path = pathlib.Path(directory)
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
