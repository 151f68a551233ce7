"""For tests of published heads: a small target, tensors by name, layers in numpy."""

import numpy as np

from models import transformer

D, FF, H, G, HD, V, VD, K, L = 16, 44, 4, 2, 4, 37, 13, 3, 2
EPS = 1e-5
TARGET = transformer.Config(
    vocab_size=V,
    d_model=D,
    n_layers=4,
    n_heads=H,
    n_kv_heads=G,
    head_dim=HD,
    d_ff=FF,
    max_positions=64,
    norm_eps=EPS,
    ropes=(transformer.rope(HD, 10000.0),),
)
KEPT = np.asarray([0, 2, 3, 5, 8, 9, 11, 20, 21, 22, 30, 35, 36])


def made(shapes: dict) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    out = {}
    for name, shape in shapes.items():
        x = rng.normal(size=shape).astype(np.float32) * 0.3
        out[name] = x + 1.0 if "norm" in name else x
    return out


def llama(prefix: str, inputs: int = D) -> dict:
    """Names and shapes of a layer without its input norm."""
    return {
        f"{prefix}.self_attn.q_proj.weight": (H * HD, inputs),
        f"{prefix}.self_attn.k_proj.weight": (G * HD, inputs),
        f"{prefix}.self_attn.v_proj.weight": (G * HD, inputs),
        f"{prefix}.self_attn.o_proj.weight": (D, H * HD),
        f"{prefix}.mlp.gate_proj.weight": (FF, D),
        f"{prefix}.mlp.up_proj.weight": (FF, D),
        f"{prefix}.mlp.down_proj.weight": (D, FF),
        f"{prefix}.post_attention_layernorm.weight": (D,),
    }


def silu(x):
    return x / (1 + np.exp(-x))


def rms(x, scale):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * scale


def turned(x, base=10000.0):
    """Rotary embedding of x [T, heads, HD], position t in row t, halves paired."""
    t = np.arange(len(x))[:, None] * base ** (-2 * np.arange(HD // 2) / HD)
    cos, sin = np.cos(t)[:, None], np.sin(t)[:, None]
    a, b = x[..., : HD // 2], x[..., HD // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def layer(w, name, x, residual, base=10000.0):
    """A Llama layer on x [T, in] by the tensors called `name`, position by position."""
    length = len(x)
    q = (x @ w[f"{name}.self_attn.q_proj.weight"].T).reshape(length, H, HD)
    k = (x @ w[f"{name}.self_attn.k_proj.weight"].T).reshape(length, G, HD)
    q, k = turned(q, base), turned(k, base)
    v = (x @ w[f"{name}.self_attn.v_proj.weight"].T).reshape(length, G, HD)
    out = np.zeros((length, H, HD))
    for t in range(length):
        for h in range(H):
            s = k[: t + 1, h // (H // G)] @ q[t, h] / np.sqrt(HD)
            p = np.exp(s - s.max())
            out[t, h] = (p / p.sum()) @ v[: t + 1, h // (H // G)]
    r = residual + out.reshape(length, -1) @ w[f"{name}.self_attn.o_proj.weight"].T
    y = rms(r, w[f"{name}.post_attention_layernorm.weight"])
    gate = silu(y @ w[f"{name}.mlp.gate_proj.weight"].T)
    up = y @ w[f"{name}.mlp.up_proj.weight"].T
    return r + (gate * up) @ w[f"{name}.mlp.down_proj.weight"].T


X, E = np.random.default_rng(1).normal(size=(2, 5, D))
