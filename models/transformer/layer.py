"""One layer: attention and a feed-forward, dense or of experts."""

from typing import Any

import flax.linen as nn
from jax import Array

from models.cache_layouts import latent
from models.transformer import sequence_attention
from models.transformer.config import Config, LayerShape
from models.transformer.experts import ExpertMLP
from models.transformer.latent_attention import LatentAttention
from models.transformer.modules import MLP, Attention, Norm, turned


class Layer(nn.Module):
    """One layer; `merge` and `feed_forward` return terms to add to the residual.

    `fed` adds the latter, and is the layer's output.

    `ahead`: how many tokens behind itself a token of a whole sequence may see.
    """

    config: Config
    shape: LayerShape | None = None  # None: that of layers that are alike
    ahead: int | None = 0

    def setup(self) -> None:
        c, shape = self.config, self.shape or self.config.layer(0)
        a = c.latent
        self.attention: Any = LatentAttention(c, a) if a else Attention(c, shape)
        experts = shape.experts
        self.mlp = ExpertMLP(c, experts) if experts else MLP(c, shape.d_ff)
        if c.layer_scalar:
            self.scalar = self.param("scalar", nn.initializers.ones, (1,))
        if c.pre_norms:
            self.attention_norm = Norm(c, c.d_model)
            self.mlp_norm = Norm(c, c.d_model)
        if c.post_norms:
            self.post_attention_norm = Norm(c, c.d_model)
            self.post_mlp_norm = Norm(c, c.d_model)

    def project(self, x: Array, rotation: tuple[Array, Array] | None) -> tuple:
        x = self.attention_norm(x) if self.config.pre_norms else x
        return self.attention.project(x, rotation)

    def merge(self, out: Array) -> Array:
        return self._after(self.attention.merge(out))

    def _after(self, y: Array) -> Array:
        return self.post_attention_norm(y) if self.config.post_norms else y

    def feed_forward_input(self, x: Array) -> Array:
        """Return what the feed-forward reads of the state `x` after attention."""
        return self.mlp_norm(x) if self.config.pre_norms else x

    def routed(self, x: Array) -> Array:
        """Return the experts int32[B, N, k] that the state `x` is sent to."""
        mlp: Any = self.mlp
        return mlp.routed(self.feed_forward_input(x))

    def feed_forward(self, x: Array) -> Array:
        y = self.mlp(self.feed_forward_input(x))
        return self.post_mlp_norm(y) if self.config.post_norms else y

    def fed(self, x: Array) -> Array:
        """Return the layer's output of the state `x` after attention."""
        x = x + self.feed_forward(x)
        return x * self.scalar.astype(x.dtype) if self.config.layer_scalar else x

    def attended(self, x: Array, mask: Array, rotation: Any, bias: Any) -> Array:
        """Return the state after attention over the whole sequence."""
        if self.config.latent:
            source = self.attention_norm(x) if self.config.pre_norms else x
            q, k, v = self.attention.expand(source, rotation)
            given = (q, k, v, mask, bias, self.ahead)
            out = sequence_attention.attend(self.config, *given)
            return x + self._after(self.attention.merge_expanded(out))
        q, k, v = self.project(x, rotation)
        if self.config.kv_rank:
            k, v = (part.swapaxes(1, 2) for part in (k, v))
            k, v = latent.expand(k, v, self.attention.key_basis)
            k, v = turned(k, rotation).swapaxes(1, 2), v.swapaxes(1, 2)
        sinks = self.attention.sinks if self.config.sinks else None
        about = (q, k, v, mask, bias, self.ahead, sinks)
        out = sequence_attention.attend(self.config, *about)
        return x + self.merge(out)

    def __call__(self, x: Array, mask: Array, rotation: Any, bias: Any) -> Array:
        x = self.attended(x, mask, rotation, bias)
        return self.fed(x)
