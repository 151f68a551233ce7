"""Streams beside the target: models, laws of its states, and masks of the host."""

from collections.abc import Callable, Mapping
from typing import Any

from jax import Array

from decoding import base
from decoding.automata import matchers
from decoding.loops import host_words
from models.base import Block


def models(streams: base.Streams) -> dict[str, base.Stream]:
    """Return the streams that are models, which have caches and prompts."""
    return {n: s for n, s in streams.items() if isinstance(s, base.Stream)}


def taps(streams: base.Streams) -> tuple:
    """Return the target's states that streams read."""
    derived = [s for s in streams.values() if isinstance(s, base.Derived)]
    return tuple(dict.fromkeys(tap for stream in derived for tap in stream.taps))


def run(
    streams: Mapping[str, Any],
    params: base.Params,
    hidden: Mapping[Any, Array],
    caches: Mapping[str, Any],
    block: Callable[[str], Block],
    texts: host_words.Texts | None = None,
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Compute every stream at the nodes that the target has run.

    Args:
        streams: by name.
        params: all params, by name.
        hidden: tap -> [B, N, D], the target's states at the nodes.
        caches: the target's and the streams', by name.
        block: name of a model -> the nodes as the block of its cache.
        texts: the nodes as texts, for the host; None: it is not asked.

    Returns:
        Name -> logits float32[B, N, V], or words uint32[B, N, W]; and all caches.
    """
    aux, after = {}, dict(caches)
    for name, stream in streams.items():
        if isinstance(stream, matchers.Matched):
            assert texts is not None
            aux[name] = host_words.words(name, stream, texts)
            continue
        weights = base.read(params, stream.params)
        if isinstance(stream, base.Derived):
            states = {tap: hidden[tap] for tap in stream.taps}
            aux[name] = stream.logits(weights, states)
        else:
            out, after[name] = stream.model(weights, caches[name], block(name))
            aux[name] = out.logits
    return aux, after
