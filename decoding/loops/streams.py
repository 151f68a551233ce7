"""Streams beside the target: other models on the same nodes, and laws of its states."""

from collections.abc import Callable, Mapping
from typing import Any

from jax import Array

from decoding import base
from models.base import Block


def models(streams: base.Streams) -> dict[str, base.Stream]:
    """Return the streams that are models, which have caches and prompts."""
    return {n: s for n, s in streams.items() if isinstance(s, base.Stream)}


def taps(streams: base.Streams) -> tuple:
    """Return the target's states that streams read."""
    derived = [s for s in streams.values() if isinstance(s, base.Derived)]
    return tuple(dict.fromkeys(tap for stream in derived for tap in stream.taps))


def run(
    streams: base.Streams,
    params: base.Params,
    hidden: Mapping[Any, Array],
    caches: Mapping[str, Any],
    block: Callable[[str], Block],
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Compute the logits of every stream at the nodes that the target has run.

    Args:
        streams: by name.
        params: all params, by name.
        hidden: tap -> [B, N, D], the target's states at the nodes.
        caches: the target's and the streams', by name.
        block: name of a model -> the nodes as the block of its cache.

    Returns:
        Name -> float32[B, N, V], and all caches.
    """
    aux, after = {}, dict(caches)
    for name, stream in streams.items():
        weights = base.read(params, stream.params)
        if isinstance(stream, base.Derived):
            states = {tap: hidden[tap] for tap in stream.taps}
            aux[name] = stream.logits(weights, states)
        else:
            out, after[name] = stream.model(weights, caches[name], block(name))
            aux[name] = out.logits
    return aux, after
