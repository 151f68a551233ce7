"""Tree attention: the entry, and which form of it runs where.

`choose` says which form a call takes and why; nothing else looks at the platform.
"""

from jax import Array

from kernels import block_traffic, dispatch, int4_packing
from kernels.dispatch import AUTO, GPU, INTERPRET, PALLAS, TPU, XLA, Choice
from kernels.tree_attention import layout, pallas_gpu, pallas_tpu, xla


def choose(
    kernel: str, platform: str, shape: pallas_tpu.Shape, words: int = 1
) -> Choice:
    """The form of a call on `platform`, with `words` of ancestor bits a node."""
    found = dispatch.choose(kernel, platform, pallas_gpu.reason_against(shape))
    if found.form != XLA and 32 * words > layout.MOST_NODES:
        why = f"a tree of {32 * words}: the kernels' masks hold {layout.MOST_NODES}"
        return Choice(XLA, why)
    return found


def runs_kernel(kernel: str) -> bool:
    """Whether calls on this machine take a Pallas form, their shapes permitting."""
    if kernel == AUTO:
        return block_traffic.platform() == TPU
    return kernel == PALLAS


def tree_attention(
    q: Array,
    k: Array,
    v: Array,
    lengths: Array,
    ancestors: Array,
    *,
    positions: Array | None = None,
    key_positions: Array | None = None,
    window: int = 0,
    softcap: float = 0.0,
    scale: float = 1.0,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    kernel: str = AUTO,
    vmem: int | None = None,
) -> tuple[Array, Array]:
    """Attention of the nodes of a block over a cache: `(out, lse)`.

    q            [B, N, H, d]; query head h reads KV head h // (H / G)
    k, v         [B, G, S, d], the cache; int8 and fp8 are widened in the kernel; uint8:
                 [B, G, S / 2, d], two 4-bit slots a byte (`kernels.int4_packing`)
    lengths      int32[B]: slots below hold committed tokens, seen by every node
    ancestors    uint32[B, N, W]: bit j: the node sees slot lengths + j; the keys of a
                 block lie there, where the model has just written them
    positions    int32[B, N] and `key_positions` int32[B, S]: needed by `window`
    softcap      c: scores become c tanh(score / c), after `scale`
    k_scale      float32[B, G, S], and `v_scale`: factors of the stored values
    vmem         bytes of vector memory to plan for (default: this chip's)

    `out` [B, N, H, d] in q's dtype; `lse` float32[B, N, H], -inf for a node that sees
    nothing, whose output is 0.
    """
    if window and (positions is None or key_positions is None):
        raise ValueError(f"window={window}: give positions and key_positions")
    if (k_scale is None) != (v_scale is None):
        raise ValueError("give both k_scale and v_scale, or neither")
    batch, nodes, heads, dim = q.shape
    shape = pallas_tpu.Shape(
        batch,
        k.shape[1],
        k.shape[2] * int4_packing.slots(k.dtype),
        dim,
        nodes,
        heads // k.shape[1],
        q.dtype,
        k.dtype,
        k_scale is not None,
        window,
        softcap,
        scale,
    )
    form, _ = choose(kernel, block_traffic.platform(), shape, ancestors.shape[2])
    arguments = (q, k, v, lengths, ancestors, positions, key_positions, k_scale)
    if form == XLA:
        return xla.tree_attention(
            *arguments, v_scale, window=window, softcap=softcap, scale=scale
        )
    if form == GPU:
        return pallas_gpu.tree_attention(shape, *arguments[:-1])
    interpret = form == INTERPRET
    vmem = vmem or block_traffic.vmem_here(interpret)
    plan = pallas_tpu.plan(shape, vmem)
    return pallas_tpu.tree_attention(
        plan, *arguments, v_scale, vmem=vmem, interpret=interpret
    )
