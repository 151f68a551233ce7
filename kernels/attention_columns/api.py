"""Column sums of attention: the entry, and the choice among its forms."""

from collections.abc import Callable

from jax import Array

from kernels import block_traffic, dispatch
from kernels.attention_columns import pallas_tpu, xla
from kernels.dispatch import AUTO, INTERPRET, TPU, XLA, Choice


def choose(
    kernel: str,
    platform: str,
    shape: pallas_tpu.Shape,
    vmem: int | None = None,
    noisy: bool = False,
) -> Choice:
    """Choose the form of a call on `platform`.

    Args:
        kernel: "auto", "pallas" or "xla".
        platform: as of `block_traffic.platform`.
        shape: the static facts of the call.
        vmem: bytes of vector memory for the plan; None: this chip's.
        noisy: whether noise is added to the scores.
    """
    choice = dispatch.choose(kernel, platform, "no kernel for GPUs")
    if choice.form == XLA:
        return choice
    if noisy:
        return Choice(XLA, "noise: a function of positions, which XLA computes")
    try:
        pallas_tpu.plan(shape, vmem or block_traffic.vmem_here(choice.form != TPU))
    except ValueError as error:
        return Choice(XLA, str(error))
    return choice


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
    sinks: Array | None = None,
    kernel: str = AUTO,
    vmem: int | None = None,
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
    sinks            float32[B, H]: a score of every head without a slot, neither scaled
                     nor capped, which takes part in each query's sum; `lse` has it
    kernel           "auto", "pallas" or "xla"; with `noise` always the XLA form
    vmem             bytes of vector memory for the plan (default: this chip's)
    """
    if reduce not in ("sum", "max"):
        raise ValueError(f"reduce={reduce!r}: use 'sum' or 'max'")
    batch, queries, heads, dim = q.shape
    groups, size = k.shape[1:3]
    arguments = (q, k, weight, query_positions, key_positions)
    shape = pallas_tpu.Shape(
        batch,
        groups,
        size,
        dim,
        queries,
        heads // groups,
        q.dtype,
        k.dtype,
        lse is not None,
        reduce == "max",
        softcap,
        bias is not None,
        sinks is not None and lse is None,
    )
    platform = block_traffic.platform()
    form, _ = choose(kernel, platform, shape, vmem, noise is not None)
    if form == XLA:
        return xla.columns(
            *arguments,
            lse=lse,
            noise=noise,
            reduce=reduce,
            softcap=softcap,
            bias=bias,
            sinks=sinks,
        )
    vmem = vmem or block_traffic.vmem_here(form == INTERPRET)
    plan = pallas_tpu.plan(shape, vmem)
    return pallas_tpu.columns(
        plan, *arguments, lse, bias, sinks, vmem=vmem, interpret=form == INTERPRET
    )
