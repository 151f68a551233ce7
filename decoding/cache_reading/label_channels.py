"""The order of a model's key channels by their importance, and the file that holds it.

A file is JSON: `channels[layer][KV head]` lists the head's channels, the most important
first.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from models import storage
from models.cache_layouts.held import full_heads
from models.errors import MethodError

COMMAND = "python -m experiments.label_channels"


def of_model(config: Any, channels: Any, width: int) -> np.ndarray:
    """Return the first `width` channels of every layer and KV head, int32[L, G, width].

    Args:
        config: the model's.
        channels: a file's name, or the lists; None: all channels, if `width` is theirs.
        width: channels of a head that are used.

    Raises:
        MethodError: no channels, no such file, or those of another model.
    """
    if full_heads(config) != (config.n_kv_heads, config.head_dim):
        raise MethodError(
            "channels of a model whose full layers have other heads than most: a table "
            "has the same for all layers; use a policy without channels"
        )
    shape = (config.n_layers, config.n_kv_heads)
    if channels is None:
        if width != config.head_dim:
            raise MethodError(
                f"{width} of {config.head_dim} channels and none named: give "
                f"channels=FILE, which `{COMMAND}` writes"
            )
        channels = np.broadcast_to(np.arange(width), (*shape, width))
    if isinstance(channels, str):
        channels = load(channels)
    if len({len(head) for layer in channels for head in layer}) == 1:
        table = np.asarray(channels, np.int32)[..., :width]
        heads = table.reshape(-1, table.shape[-1])
        differ = all(len({*head}) == width for head in heads.tolist())
        if table.shape == (*shape, width) and differ:
            if 0 <= table.min() and table.max() < config.head_dim:
                return table
    raise MethodError(
        f"channels: this model needs {width} different ones below {config.head_dim} of "
        f"each of {shape[0]} layers and {shape[1]} KV heads: run `{COMMAND}` for it"
    )


def load(name: str) -> Sequence[Sequence[Sequence[int]]]:
    """Read a file that `save` wrote.

    Raises:
        MethodError: there is none, or it holds something else.
    """
    path = storage.path(name)
    try:
        return json.loads(path.read_text())["channels"]
    except FileNotFoundError:
        raise MethodError(
            f"channels={name!r} does not exist: write it with `{COMMAND}`"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise MethodError(
            f"channels={name!r} is no file of `{COMMAND}`: write it anew"
        ) from None


def save(name: str, order: np.ndarray, about: dict[str, Any]) -> None:
    """Write the channels int[L, G, d], and what they were measured on."""
    content = json.dumps({**about, "channels": order.tolist()})
    path = storage.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write(path, content)
