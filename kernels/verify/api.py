"""Statistics of the logits of a block of nodes: the entry, and the choice of forms.

    verify      one read: best token, log-sum-exp, scores of given tokens, Gumbel race
    residual    one read of two laws: a draw of norm((p - q)+)
    thresholds  one read, 64 scans in fast memory: top-k and top-p without a sort

Nothing of the size of the logits is written. Noise is an argument. All nodes of a
position share it (`decoding/noise.py`), so that a tree of depth D has D + 1 rows of
noise instead of one a node. `merge` and `merge_rest` merge parts of a vocabulary.
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
    """Choose the form of a call on `platform`; `search`: a call of `thresholds`."""
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
    """Compute the `Facts` of `logits` [B, N, V] in one pass.

    temperature  > 0, of any shape that broadcasts to [B, N]
    tokens       int32[B, N, M]: the tokens to score
    noise        float32[B, P, V]: row `depth[b, n]` is node n's; without `depth` there
                 is one row a node. None: nothing is drawn, and `drawn` is `best`
    depth        int32[B, N]
    offset       the first token of these logits, where they are part of a vocabulary
    kernel       "auto", "pallas" or "xla"
    vmem         bytes of vector memory for the plan (default: this chip's)
    """
    batch, nodes = logits.shape[:2]
    heat = jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), (batch, nodes))
    if tokens is None:
        tokens = jnp.zeros((batch, nodes, 0), jnp.int32)
    if depth is not None and noise is None:
        raise ValueError("depth selects rows of noise, and there is none: give noise")
    if noise is not None and depth is None and noise.shape != logits.shape:
        raise ValueError(
            f"noise of shape {noise.shape} for logits of shape {logits.shape}: give "
            "depth, or noise of the shape of the logits"
        )
    local = tokens - offset
    form, _ = choose(kernel, block_traffic.platform(), _shape(logits))
    if form == GPU:
        if noise is not None and depth is None:
            depth = jnp.broadcast_to(jnp.arange(nodes, dtype=jnp.int32), heat.shape)
        facts = pallas_gpu.verify(_shape(logits), logits, heat, local, noise, depth)
        return _numbered(facts, offset)
    alone = nodes == 1 or form == XLA  # one row of noise a node
    if depth is not None and alone:
        assert noise is not None
        noise = jnp.take_along_axis(noise, depth[..., None], 1)
        depth = None
    if form == XLA:
        facts = reference.verify(logits, heat, local, noise)
    else:
        arrays = _turn(nodes == 1, (logits, heat, local, noise, depth))
        rows = 0 if noise is None else arrays[3].shape[1]
        shape = _shape(
            arrays[0], tokens=tokens.shape[2], noises=rows, shared=depth is not None
        )
        interpret = form == INTERPRET
        vmem = vmem or block_traffic.vmem_here(interpret)
        cut = plan(shape, vmem)
        facts = pallas_tpu.verify(cut, *arrays, vmem=vmem, interpret=interpret)
        facts = Facts(*_turn(nodes == 1, facts))
    return _numbered(facts, offset)


def _numbered(facts: Facts, offset: ArrayLike) -> Facts:
    return facts._replace(best=facts.best + offset, drawn=facts.drawn + offset)


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
    """Draw from norm((p - q)+) at each node; see `Rest`.

    p_logits, q_logits  [B, N, V]: the laws p and q
    p_lse, q_lse        float32[B, N]: their log-sum-exp over the whole vocabulary
    noise               float32[B, N, V]: fresh Gumbel noise of each node
    offset              the first token, where the logits are part of a vocabulary
    """
    form, _ = choose(kernel, block_traffic.platform(), _shape(p_logits))
    arrays = (p_logits, q_logits, p_lse, q_lse, noise)
    if form == XLA:
        rest = reference.residual(*arrays)
    elif form == GPU:
        rest = pallas_gpu.residual(_shape(p_logits), *arrays)
    else:
        turned = p_logits.shape[1] == 1
        arrays = _turn(turned, arrays)
        shape = _shape(arrays[0], shared=False)
        interpret = form == INTERPRET
        vmem = vmem or block_traffic.vmem_here(interpret)
        cut = plan_rest(shape, vmem)
        rest = pallas_tpu.residual(cut, *arrays, vmem=vmem, interpret=interpret)
        rest = Rest(*_turn(turned, rest))
    return rest._replace(drawn=rest.drawn + offset, spare=rest.spare + offset)


def thresholds(
    logits: Array,
    k: ArrayLike,
    mass: ArrayLike = 1.0,
    *,
    kernel: str = AUTO,
    vmem: int | None = None,
) -> tuple[Array, Array]:
    """Return the thresholds `first` of top-k and `second` of top-p, float32[B, N].

    `logits >= first` holds for the k best tokens and all ties of the least. Of those,
    `logits >= second` holds for the nucleus of mass `mass`. `k` and `mass` broadcast to
    [B, N] and may be traced; k >= V and mass >= 1 (whose threshold is -inf) exclude
    nothing.
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
    pair = pallas_tpu.thresholds(
        cut, logits, best, share, vmem=vmem, interpret=interpret
    )
    return _turn(turned, pair)


def _shape(logits: Array, **more: Any) -> Shape:
    batch, nodes, vocab = logits.shape
    return Shape(batch, nodes, vocab, logits.dtype, **more)


def _turn(turned: bool, arrays: tuple) -> tuple:
    """Swap batch and nodes if `turned`: rows then fill the tiles of single nodes."""
    if not turned:
        return tuple(arrays)
    return tuple(None if x is None else x.swapaxes(0, 1) for x in arrays)
