"""A feed-forward of experts: a router sends every token to a few of many MLPs.

With z = x W the router's logits, float32[E], of a token's state, k = `active` and b the
choice bias (0 without one),

    s = softmax(z) or sigmoid(z)
    i_1 .. i_k = the k greatest of s + b, where groups are limited, in the best ones
    w_j = s[i_j],  over their sum if `normalised`,  times `scale`
    y = sum_j w_j MLP_{i_j}(x) + MLP_shared(x)

Shazeer et al., *Outrageously Large Neural Networks*, 2017, arXiv 1701.06538. The best
of equal scores is the expert of the lowest number. A group's score is the greatest of
its experts' (softmax: DeepSeek-V2, arXiv 2405.04434) or the sum of its two greatest
(sigmoid: DeepSeek-V3, arXiv 2412.19437).
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from kernels import block_traffic
from models.base import BALANCE
from models.distributed import sharding
from models.transformer import mxfp4
from models.transformer.config import Config, Experts
from models.transformer.modules import MLP, activated

OWN = ("experts_", "coded_")  # first letters of params of which each expert has one
UP = "expert - - mlp"  # the axes of [E, D, 2, F]; the width is fetched whole
FORMS = ("gathered", "ragged", "every")


def route(
    experts: Experts, logits: Array, bias: Array | None = None
) -> tuple[Array, Array]:
    """Choose the experts of every token.

    Args:
        experts: the router's rules.
        logits: float32[..., E].
        bias: float32[E], added to scores where experts are chosen.

    Returns:
        int32[..., k], best first, and their weights float32[..., k].
    """
    is_softmax = experts.router == "softmax"
    scores = jax.nn.softmax(logits, -1) if is_softmax else jax.nn.sigmoid(logits)
    choice = scores if bias is None else scores + bias
    if experts.groups > 1:
        parts = choice.reshape(*choice.shape[:-1], experts.groups, -1)
        best = lax.top_k(parts, 1 if is_softmax else 2)[0].sum(-1)
        kept = lax.top_k(best, experts.kept_groups)[1]
        open_ = (kept[..., None] == jnp.arange(experts.groups)).any(-2)
        choice = jnp.where(open_[..., None], parts, -jnp.inf).reshape(choice.shape)
    chosen = lax.top_k(choice, experts.active)[1]
    weights = jnp.take_along_axis(scores, chosen, -1)
    if experts.normalised:
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
    return chosen, weights * experts.scale


def form(experts: Experts, tokens: int) -> str:
    """Return how `tokens` tokens meet their experts; all forms compute the same.

    Few tokens read the weights of their own experts alone. Where more come, rows are
    sorted by expert (`lax.ragged_dot`); CPUs, whose compiler multiplies all rows by all
    experts there, do so without the sorting.
    """
    if tokens * experts.active <= experts.count:
        return "gathered"
    return "every" if block_traffic.platform() == "cpu" else "ragged"


class ExpertMLP(nn.Module):
    """The experts of one layer, and those that every token visits."""

    config: Config
    experts: Experts

    def setup(self) -> None:
        c, e = self.config, self.experts
        normal = nn.initializers.normal
        init, down = normal(c.d_model**-0.5), normal((2 * c.n_layers * e.width) ** -0.5)
        zeros = nn.initializers.zeros
        self.router = self.param("router", init, (c.d_model, e.count))
        if e.router_bias:
            self.router_bias = self.param("router_bias", zeros, (e.count,))
        if e.choice_bias:
            self.choice_bias = self.param("choice_bias", zeros, (e.count,))
        if e.shared:
            self.shared = MLP(c, e.shared)
        name = "coded" if e.stored else "experts"
        if e.bias:
            up, down_ = (e.count, 2, e.width), (e.count, c.d_model)
            self.up_bias = self.param(f"{name}_up_bias", zeros, up)
            self.down_bias = self.param(f"{name}_down_bias", zeros, down_)
        if e.stored:
            named = mxfp4.shapes(c, e).items()
            self.coded = {n: self.param(n, zeros, s, jnp.uint8) for n, s in named}
            return
        wide = (e.count, c.d_model, 2, e.width)
        self.experts_up = self.param("experts_up", init, wide)
        self.experts_down = self.param(
            "experts_down", down, (e.count, e.width, c.d_model)
        )

    def scores(self, x: Array) -> Array:
        """Return the router's logits float32[..., E] of states x [..., D]."""
        wide = x.astype(jnp.float32) @ self.router.astype(jnp.float32)
        return wide + self.router_bias if self.experts.router_bias else wide

    def routed(self, x: Array) -> Array:
        """Return the experts int32[..., k] of states x [..., D]."""
        return self._route(self.scores(x))[0]

    def _route(self, scores: Array) -> tuple[Array, Array]:
        bias = self.choice_bias if self.experts.choice_bias else None
        return route(self.experts, scores, bias)

    def __call__(self, x: Array) -> Array:
        e = self.experts
        rows = x.reshape(-1, x.shape[-1])
        scores = self.scores(rows)
        chosen, weights = self._route(scores)
        self.sow(BALANCE, "loss", balance(e, scores, chosen))
        biases = (self.up_bias, self.down_bias) if e.bias else None
        nodes = x.shape[:-1] if x.ndim == 3 else (1, len(rows))
        given = [part.reshape(*nodes, -1) for part in (rows, chosen, weights)]
        about = (self.config, e, given[0], given[1], given[2])
        if e.stored:
            y = mxfp4.mixed(*about, self.coded, biases)
        else:
            y = shared_out(*about, self.experts_up, self.experts_down, biases)
        y = y.reshape(x.shape)
        return y + self.shared(x) if e.shared else y


def shared_out(
    config: Config,
    experts: Experts,
    x: Array,
    chosen: Array,
    weights: Array,
    up: Array,
    down: Array,
    biases: tuple[Array, Array] | None = None,
) -> Array:
    """Return `mixed` [B, N, D] of x [B, N, D]; every device multiplies by what it has.

    That is a part of each expert or, with `rules="expert=tensor"`, some experts. All
    devices of a copy see all of its tokens, and their results are summed once. Left to
    itself the compiler would gather the weights.

    Args:
        config: for the activation.
        experts: the rules.
        x: [B, N, D].
        chosen: int32[B, N, k].
        weights: float32[B, N, k].
        up: [E, D, 2, F].
        down: [E, F, D].
        biases: of both, [E, 2, F] and [E, D].
    """
    flat = lambda x: x.reshape(-1, x.shape[-1])
    names = sharding.cutting(up.shape, UP)

    def run(x, chosen, weights, ids, up, down, up_bias):
        local = chosen - ids[0]
        own = (local >= 0) & (local < len(ids))
        local, share = jnp.clip(local, 0, len(ids) - 1), jnp.where(own, weights, 0.0)
        how = form(experts, x.shape[0] * x.shape[1])
        # Those that are elsewhere would be gathered in vain.
        how = "ragged" if how == "gathered" and len(ids) < experts.count else how
        parts = (flat(x), flat(local), flat(share))
        y = mixed(config, how, *parts, up, down, up_bias).reshape(x.shape)
        return lax.psum(y, names) if names else y

    ids = jnp.arange(experts.count, dtype=jnp.int32)
    up_bias, bias_axes = None, None
    if biases is not None:
        up_bias, bias_axes = biases[0], "expert - mlp"
    arrays = (x, chosen, weights, ids, up, down, up_bias)
    rows = ("batch - -",) * 3
    y = sharding.by_shard(run, arrays, (*rows, "expert", UP, "expert mlp -", bias_axes))
    if biases is not None:  # once, not by every part of an expert
        y = y + jnp.einsum("bnkd,bnk->bnd", biases[1][chosen], weights).astype(y.dtype)
    return y


def mixed(
    config: Config,
    form: str,
    x: Array,
    chosen: Array,
    weights: Array,
    up: Array,
    down: Array,
    up_bias: Array | None = None,
) -> Array:
    """Return the weighted sum [T, D] of the chosen experts' MLPs of x [T, D].

    Without the bias of what they return.

    Args:
        config: for the activation.
        form: one of `FORMS`.
        x: [T, D].
        chosen: int32[T, k].
        weights: float32[T, k].
        up: [E, D, 2, F].
        down: [E, F, D].
        up_bias: [E, 2, F].
    """
    outputs = {"gathered": _gathered, "ragged": _ragged, "every": _every}[form]
    y: Any = outputs(config, x, chosen, up, down, up_bias)
    return jnp.einsum("tkd,tk->td", y, weights.astype(y.dtype))


def _gathered(config, x, chosen, up, down, bias):  # -> [T, k, D]
    h = jnp.einsum("td,tkdcf->tkcf", x, up[chosen])
    h = h if bias is None else h + bias[chosen]
    return jnp.einsum("tkf,tkfd->tkd", activated(config, h), down[chosen])


def _ragged(config, x, chosen, up, down, bias):
    count, copies = len(up), chosen.shape[1]
    flat = chosen.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    sizes = jnp.bincount(flat, length=count).astype(jnp.int32)
    rows, of = x[order // copies], flat[order]
    h = jnp.stack([lax.ragged_dot(rows, up[:, :, c], sizes) for c in range(2)], 1)
    h = h if bias is None else h + bias[of]
    y = lax.ragged_dot(activated(config, h), down, sizes)
    y = jnp.zeros_like(y).at[order].set(y, unique_indices=True)
    return y.reshape(len(x), copies, -1)


def _every(config, x, chosen, up, down, bias):
    h = jnp.einsum("td,edcf->tecf", x, up)
    h = h if bias is None else h + bias
    y = jnp.einsum("tef,efd->ted", activated(config, h), down)
    return jnp.take_along_axis(y, chosen[..., None], 1)


def balance(experts: Experts, scores: Array, chosen: Array) -> Array:
    """Compute E sum_e f_e p_e, float32[]: 1 where all experts get as many tokens.

    f_e is expert e's share of the choices, p_e its mean probability. Fedus et al.,
    *Switch Transformers*, 2021, arXiv 2101.03961, section 2.2.

    Args:
        experts: the router's rules.
        scores: float32[T, E], of T tokens.
        chosen: int32[T, k].
    """
    share = jnp.bincount(chosen.reshape(-1), length=experts.count) / chosen.size
    return experts.count * (share * jax.nn.softmax(scores, -1).mean(0)).sum()


def expected(experts: Experts, tokens: float) -> float:
    """Return E (1 - (1 - k / E)^n), the experts that n independent tokens meet.

    Tokens of a text are alike, and meet fewer.
    """
    return experts.count * (1 - (1 - experts.active / experts.count) ** tokens)


def read_bytes(
    config: Config, params: Any, tokens: float, size: Callable[[Any], int]
) -> int:
    """Count the bytes of weights that one call of `tokens` tokens reads.

    Of a layer's experts those that independent tokens are expected to meet; of a table
    of embeddings beside a separate head, none.

    Args:
        config: the model's; of a model that is no transformer all params are read.
        params: a tree of arrays or shapes.
        tokens: of all rows.
        size: the bytes of an array or a shape, of one device perhaps.
    """
    total = sum(map(size, jax.tree.leaves(params)))
    if not config.tied:
        total -= size(params["embedding"]["tokens"])
    for i in range(config.n_layers):
        shape = getattr(config, "layer", lambda i: None)(i)
        if shape is None or shape.experts is None:
            continue
        mlp = params[f"layer_{i}"]["mlp"]
        own = sum(size(x) for name, x in mlp.items() if name.startswith(OWN))
        total -= own * (1 - expected(shape.experts, tokens) / shape.experts.count)
    return round(total)
