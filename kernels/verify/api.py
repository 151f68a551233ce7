"""Over the logits of a block of nodes: the entry, and which form runs where.

    verify      one read: best token, log-sum-exp, scores of given tokens, Gumbel race
    residual    one read of two laws: a draw of norm((p - q)+)
    thresholds  one read, 64 looks in fast memory: top-k and top-p without a sort

Nothing of the size of the logits is written. Noise is given: that of a position is the
same for all its nodes (`decoding/noise.py`), so that a tree of depth D has D + 1 rows
of it and not one a node. Parts of a vocabulary are merged by `merge`, `merge_rest`.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from kernels import block_traffic, dispatch
from kernels.dispatch import AUTO, GPU, INTERPRET, XLA, Choice
from kernels.verify import pallas_gpu, pallas_tpu, reference
from kernels.verify.law_statistics import Facts as Facts
from kernels.verify.law_statistics import Rest as Rest
from kernels.verify.law_statistics import merge as merge
from kernels.verify.law_statistics import merge_rest as merge_rest
from kernels.verify.tiling import Shape as Shape
from kernels.verify.tiling import plan, plan_rest, plan_search


def choose(kernel: str, platform: str, shape: Shape, search: bool = False) -> Choice:
    """The form for a call of this shape on `platform`; `search`: of `thresholds`."""
    against = pallas_gpu.NO_SEARCH if search else pallas_gpu.reason_against(shape)
    return dispatch.choose(kernel, platform, against)


def verify(
    logits: Array,
    temperature: ArrayLike = 1.0,
    tokens: Array | None = None,
    noise: Array | None = None,
    depth: Array | None = None,
    *,
    offset: ArrayLike = 0,
    kernel: str = AUTO,
    vmem: int | None = None,
) -> Facts:
    """What one pass over `logits` [B, N, V] tells; see `Facts`.

    temperature  > 0, of any shape that broadcasts to [B, N]
    tokens       int32[B, N, M]: whose scores are asked for
    noise        float32[B, P, V]: row `depth[b, n]` is node n's; without `depth` there
                 is one row a node. None: nothing is drawn, and `drawn` is `best`
    offset       the first token of these logits, where they are part of a vocabulary
    """
    batch, nodes = logits.shape[:2]
    heat = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), (batch, nodes))
    if tokens is None:
        tokens = jnp.zeros((batch, nodes, 0), jnp.int32)
    if depth is not None and noise is None:
        raise ValueError("depth says which row of noise is whose: give noise, too")
    if noise is not None and depth is None and noise.shape != logits.shape:
        raise ValueError(
            f"noise {noise.shape} is not of each node of logits {logits.shape}: give "
            "depth, or noise of the shape of the logits"
        )
    local = tokens - offset
    form, _ = choose(kernel, block_traffic.platform(), _shape(logits))
    if form == GPU:
        if noise is not None and depth is None:
            depth = jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32), heat.shape)
        found = pallas_gpu.verify(_shape(logits), logits, heat, local, noise, depth)
        return _numbered(found, offset)
    alone = nodes == 1 or form == XLA  # one row of noise a node
    if depth is not None and alone:
        assert noise is not None
        noise = jnp.take_along_axis(noise, depth[..., None], 1)
        depth = None
    if form == XLA:
        found = reference.verify(logits, heat, local, noise)
    else:
        arrays = _turn(nodes == 1, (logits, heat, local, noise, depth))
        rows = 0 if noise is None else arrays[3].shape[1]
        shape = _shape(
            arrays[0], tokens=tokens.shape[2], noises=rows, shared=depth is not None
        )
        interpret = form == INTERPRET
        vmem = vmem or block_traffic.vmem_here(interpret)
        cut = plan(shape, vmem)
        found = pallas_tpu.verify(cut, *arrays, vmem=vmem, interpret=interpret)
        found = Facts(*_turn(nodes == 1, found))
    return _numbered(found, offset)


def _numbered(found: Facts, offset: ArrayLike) -> Facts:
    return found._replace(best=found.best + offset, drawn=found.drawn + offset)


def residual(
    p_logits: Array,
    q_logits: Array,
    p_lse: Array,
    q_lse: Array,
    noise: Array,
    *,
    offset: ArrayLike = 0,
    kernel: str = AUTO,
    vmem: int | None = None,
) -> Rest:
    """A draw of norm((p - q)+) at each node; see `Rest`.

    Laws are logits [B, N, V] with the log-sum-exp [B, N] of the whole vocabulary;
    `noise` float32[B, N, V] is fresh Gumbel noise of each node.
    """
    form, _ = choose(kernel, block_traffic.platform(), _shape(p_logits))
    arrays = (p_logits, q_logits, p_lse, q_lse, noise)
    if form == XLA:
        found = reference.residual(*arrays)
    elif form == GPU:
        found = pallas_gpu.residual(_shape(p_logits), *arrays)
    else:
        turned = p_logits.shape[1] == 1
        arrays = _turn(turned, arrays)
        shape = _shape(arrays[0], shared=False)
        interpret = form == INTERPRET
        vmem = vmem or block_traffic.vmem_here(interpret)
        cut = plan_rest(shape, vmem)
        found = pallas_tpu.residual(cut, *arrays, vmem=vmem, interpret=interpret)
        found = Rest(*_turn(turned, found))
    return found._replace(drawn=found.drawn + offset, spare=found.spare + offset)


def thresholds(
    logits: Array,
    k: ArrayLike,
    mass: ArrayLike = 1.0,
    *,
    kernel: str = AUTO,
    vmem: int | None = None,
) -> tuple[Array, Array]:
    """float32[B, N] twice: `logits >= first` keeps the k best tokens and all ties of
    the least; of those, `logits >= second` keeps the nucleus of mass `mass`.

    `k` and `mass` broadcast to [B, N] and may be traced; k >= V and mass >= 1 (whose
    threshold is -inf) keep everything.
    """
    nodes = logits.shape[:2]
    best = jnp.broadcast_to(jnp.asarray(k, jnp.int32), nodes)
    share = jnp.broadcast_to(jnp.asarray(mass, jnp.float32), nodes)
    form, _ = choose(kernel, block_traffic.platform(), _shape(logits), search=True)
    if form == XLA:
        return reference.thresholds(logits, best, share)
    interpret = form == INTERPRET
    turned = logits.shape[1] == 1
    logits, best, share = _turn(turned, (logits, best, share))
    shape = _shape(logits)
    vmem = vmem or block_traffic.vmem_here(interpret)
    cut = plan_search(shape, vmem)
    found = pallas_tpu.thresholds(
        cut, logits, best, share, vmem=vmem, interpret=interpret
    )
    return _turn(turned, found)


def _shape(logits: Array, **more: Any) -> Shape:
    batch, nodes, vocab = logits.shape
    return Shape(batch, nodes, vocab, logits.dtype, **more)


def _turn(turned: bool, arrays: tuple) -> tuple:
    """One node a row: rows of the batch fill the tiles that nodes leave empty."""
    if not turned:
        return tuple(arrays)
    return tuple(None if x is None else x.swapaxes(0, 1) for x in arrays)
