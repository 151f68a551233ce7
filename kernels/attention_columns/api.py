"""Column sums of attention: the entry, and the choice among its forms."""

from collections.abc import Callable

from jax import Array

from kernels.attention_columns import xla


def columns(
    q: Array,
    k: Array,
    weight: Array,
    query_positions: Array,
    key_positions: Array,
    *,
    lse: Array | None = None,
    noise: Callable[[Array, Array], Array] | None = None,
    reduce: str = "sum",
    softcap: float = 0.0,
    bias: Array | None = None,
) -> Array:
    """Sum the attention weights that each slot gets from queries: float32[B, G, S].

    Keys are read once, or twice without `lse`; values never. No array has the size of
    queries times slots.

    q                [B, M, H, d], scaled; query head h reads KV head h // (H / G)
    k                [B, G, S, d], the cache
    weight           float32[B, M] >= 0: the factor of a query's weights; 0: left out
    query_positions  int32[B, M]
    key_positions    int32[B, G, S]: of the token in each slot, -1 where there is none;
                     a query sees the tokens up to its own
    lse              float32[B, M, H]: the log of each query's sum of exponentials;
                     None: computed here
    noise            (query_positions [B, M], key_positions [B, G, s]) -> float32
                     [B, G, M, H / G, s], added to the scores of a stretch of s slots
    reduce           "sum" or "max", over the queries and the heads of a group
    softcap          c: scores become c tanh(score / c); 0: none
    bias             float32[B, G, S], added to the scores after `softcap`
    """
    if reduce not in ("sum", "max"):
        raise ValueError(f"reduce={reduce!r}: use 'sum' or 'max'")
    return xla.columns(
        q,
        k,
        weight,
        query_positions,
        key_positions,
        lse=lse,
        noise=noise,
        reduce=reduce,
        softcap=softcap,
        bias=bias,
    )
