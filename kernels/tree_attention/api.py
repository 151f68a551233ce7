"""Tree attention: the entry, and the choice among its forms.

`choose` returns the form of a call and the reason. Only it depends on the platform.
"""

from jax import Array

from kernels import block_traffic, dispatch, int4_packing
from kernels.dispatch import AUTO, GPU, INTERPRET, PALLAS, TPU, XLA, Choice
from kernels.tree_attention import layout, pallas_gpu, pallas_tpu, xla


def choose(
    kernel: str, platform: str, shape: pallas_tpu.Shape, words: int = 1
) -> Choice:
    """Choose the form of a call on `platform`.

    Args:
        kernel: "auto", "pallas" or "xla".
        platform: as of `block_traffic.platform`.
        shape: the static facts of the call.
        words: 32-bit words of ancestor bits per node.
    """
    against = pallas_gpu.reason_against(shape)
    choice = dispatch.choose(kernel, platform, against, measured=True)
    if choice.form != XLA and 32 * words > layout.MOST_NODES:
        why = f"a tree of {32 * words}: the kernels' masks hold {layout.MOST_NODES}"
        return Choice(XLA, why)
    return choice


def runs_kernel(kernel: str) -> bool:
    """Return whether calls on this machine use a Pallas form, if shapes permit."""
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
    bias: Array | None = None,
    kernel: str = AUTO,
    vmem: int | None = None,
) -> tuple[Array, Array]:
    """Compute attention of the nodes of a block over a cache: `(out, lse)`.

    q            [B, N, H, d]; query head h reads KV head h // (H / G)
    k, v         [B, G, S, d], the cache; int8 and fp8 are widened in the kernel; uint8:
                 [B, G, S / 2, d], two 4-bit slots a byte (`kernels.int4_packing`)
    lengths      int32[B]: slots below hold committed tokens, seen by every node
    ancestors    uint32[B, N, W]: bit j: the node sees slot lengths + j; the block's
                 keys are there, written before the call
    positions    int32[B, N] and `key_positions` int32[B, S]: required with `window`
    window       in tokens; 0: none
    softcap      c: scores become c tanh(score / c), after `scale`; 0: none
    k_scale      float32[B, G, S], and `v_scale`: factors of the stored values
    bias         float32[B, G, S], added to scores after `softcap`; -inf hides a slot
    kernel       "auto", "pallas" or "xla"
    vmem         bytes of vector memory for the plan (default: this chip's)

    Values may have another width e, [B, G, S, e], in the XLA form, which is taken then.

    `out` [B, N, H, e] in q's dtype; `lse` float32[B, N, H], -inf for a node without a
    visible slot, whose output is 0.
    """
    if window and (positions is None or key_positions is None):
        raise ValueError(f"window={window}: give positions and key_positions, too")
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
        biased=bias is not None,
    )
    platform = block_traffic.platform()
    form, _ = choose(kernel, platform, shape, ancestors.shape[2])
    form = form if v.shape[-1] == dim else XLA
    arguments = (q, k, v, lengths, ancestors, positions, key_positions, k_scale)
    if form == XLA:
        return xla.tree_attention(
            *arguments,
            v_scale,
            window=window,
            softcap=softcap,
            scale=scale,
            stretch=xla.stretch_of(platform, shape),
            bias=bias,
        )
    if form == GPU:
        return pallas_gpu.tree_attention(shape, *arguments[:-1])
    interpret = form == INTERPRET
    vmem = vmem or block_traffic.vmem_here(interpret)
    plan = pallas_tpu.plan(shape, vmem, block_traffic.cores_here(interpret))
    return pallas_tpu.tree_attention(
        plan, *arguments, v_scale, bias=bias, vmem=vmem, interpret=interpret
    )
