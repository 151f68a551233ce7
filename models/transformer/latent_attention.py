"""Multi-head latent attention: all heads' keys and values from one latent of a token.

DeepSeek-AI, *DeepSeek-V2*, 2024, arXiv 2405.04434, section 2.1. With c = norm(x W) of
`rank` numbers, a head's key is [c U, rope(x R)] and its value c V; rope(x R), of
`turned` numbers, is the same for all heads. Since q (c U) = (q U^T) c, a cache needs
[rope(x R), c] alone, one key of `turned + rank` numbers, whose last `rank` are the
value: the *absorbed* form, one KV head. Whole texts make every head's keys and values,
which is less work where many queries meet few keys: the *expanded* form.

Rotated numbers are first in a key, where every other model has them.
"""

from dataclasses import replace

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from models.distributed import sharding
from models.transformer.config import Config, Latent
from models.transformer.modules import Norm, product, rotate

EPS = 1e-6  # of the latents' norms, whatever the other norms have


class LatentAttention(nn.Module):
    """The projections of one layer's attention; callers attend between them."""

    config: Config
    latent: Latent

    def setup(self) -> None:
        c, a = self.config, self.latent
        normal, own = nn.initializers.normal, replace(c, norm="rms", norm_eps=EPS)
        source = a.query_rank or c.d_model
        width = c.n_heads * a.value
        if a.query_rank:
            inner = (c.d_model, a.query_rank)
            self.query_in = self.param("query_in", normal(c.d_model**-0.5), inner)
            self.query_norm = Norm(own, a.query_rank)
        queries = (source, c.n_heads, a.plain + a.turned)
        self.query_heads = self.param("query_heads", normal(source**-0.5), queries)
        joint = (c.d_model, a.rank + a.turned)
        self.latent_in = self.param("latent_in", normal(c.d_model**-0.5), joint)
        self.latent_norm = Norm(own, a.rank)
        wide = (c.n_heads, a.rank, a.plain + a.value)  # U and V, side by side
        self.bases = self.param("bases", normal(a.rank**-0.5), wide)
        out = normal((2 * c.n_layers * width) ** -0.5)
        self.out = self.param("out", out, (width, c.d_model))

    def project(self, x: Array, rotation: tuple[Array, Array] | None) -> tuple:
        """Project x [B, N, D] to q `[B, N, 1, H, t + r]`, and k `[B, N, 1, t + r]`.

        The absorbed form; q is scaled. The value is k's last r numbers: k is returned
        in its place, too, for caches that hold both.
        """
        plain, turned = self._queries(x, rotation)
        keys = self.bases[..., : self.latent.plain]
        inner = jnp.einsum("bnhd,hrd->bnhr", plain, keys)
        q = jnp.concatenate([turned, inner.astype(turned.dtype)], -1)
        k = jnp.concatenate(self._latents(x, rotation), -1)[:, :, None]
        return q[:, :, None] * self.config.attention_scale, k, k

    def merge(self, out: Array) -> Array:
        """Project heads [B, N, H w], w of t + r or r, back to the model's width."""
        rank = self.latent.rank
        out = out.reshape(*out.shape[:2], self.config.n_heads, -1)[..., -rank:]
        values = self.bases[..., self.latent.plain :]
        heads = jnp.einsum("bnhr,hrd->bnhd", out, values)
        return self.merge_expanded(heads.reshape(*out.shape[:2], -1))

    def expand(self, x: Array, rotation: tuple[Array, Array] | None) -> tuple:
        """Project x [B, T, D] to all heads' q `[B, T, H, 1, d]`, k and v."""
        plain, turned = self._queries(x, rotation)
        q = jnp.concatenate([turned, plain], -1)[..., None, :]
        shared, c = self._latents(x, rotation)
        both = jnp.einsum("bnr,hrd->bnhd", c, self.bases)
        own, v = both[..., : self.latent.plain], both[..., self.latent.plain :]
        alike = jnp.broadcast_to(shared[:, :, None], (*own.shape[:3], shared.shape[-1]))
        k = jnp.concatenate([alike, own], -1)
        return q * self.config.attention_scale, k, v

    def merge_expanded(self, out: Array) -> Array:
        """Project the values [B, T, H v] of all heads back to the model's width."""
        return product(out, self.out)

    def _queries(self, x: Array, rotation: tuple[Array, Array] | None) -> tuple:
        """Return the parts [B, N, H, ..] of queries, not rotated and rotated."""
        if self.latent.query_rank:
            x = self.query_norm(product(x, self.query_in))
        q = sharding.constrain(product(x, self.query_heads), "* * heads -")
        plain, turned = q[..., : self.latent.plain], q[..., self.latent.plain :]
        if rotation is not None:
            cos, sin = rotation
            turned = rotate(turned, cos[:, :, None], sin[:, :, None])
        return plain, turned

    def _latents(self, x: Array, rotation: tuple[Array, Array] | None) -> list[Array]:
        """Return the rotated part of every head's key [B, N, t], and c [B, N, r]."""
        both = product(x, self.latent_in)
        c, turned = both[..., : self.latent.rank], both[..., self.latent.rank :]
        if rotation is not None:
            turned = rotate(turned, *rotation)
        return [turned, self.latent_norm(c)]
