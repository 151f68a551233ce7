"""Keyformer: H2O whose scores are softened by Gumbel noise and a temperature.

Adnan, Arunkumar, Jain, Nair, Soloveychik, Kamath, *Keyformer: KV Cache Reduction
through Key Tokens Selection for Efficient Generative Inference*, 2024, arXiv
2403.09054, section 3. With the scores x_ij of query i and the tokens j that it sees,
and noise z_ij,

    f_j += sum over queries of softmax_j((x_ij + z_ij) / tau_i)
    tau_i = tau_init + delta t, at most tau_end, at the t-th generated token;
            tau_init in the prompt

`recent` of the `budget` slots are the newest tokens, the others those of the highest
f_j. The noise never enters the attention's output.

Deviations: those of `h2o`; z is a hash of layer, head, query and token, the same for
all rows, so that a text does not depend on its batch. Scores are neither capped nor
take part with sinks, in models that do. Cost: as `h2o`.
"""

import jax
import jax.numpy as jnp

from decoding import base
from decoding.cache_eviction import budgets, hashed, scored
from decoding.catalogue import Card
from kernels.attention_columns import columns
from models.errors import MethodError

CARD = Card(
    paper="arXiv 2403.09054",
    guarantee=base.LOSSY,
    family="eviction",
    sources=("adnan2024keyformer",),
    examples={"budget": 12, "every": 8, "prompt_every": 16},
)


def policy(
    budget: budgets.Budget = 0.6,
    recent: float = 0.3,
    tau_init: float = 1.0,
    tau_end: float = 2.0,
    tau_delta: float = 0.01,
    noise: float = 1.0,
    seed: int = 0,
    layers: budgets.Layers = budgets.UNIFORM,
    every: int = 32,
    prompt_every: int = 128,
) -> base.CachePolicy:
    """Keep key tokens and the newest.

    Args:
        budget: slots of a KV head, or a share of the prompt.
        recent: share of the budget for the newest tokens.
        tau_init: temperature of the scores in the prompt.
        tau_end: the highest temperature.
        tau_delta: its rise at each generated token.
        noise: factor of the noise; 0 and tau_end=1: H2O.
        seed: of the noise.
        layers: "uniform", "pyramid", or each layer's weight.
        every: tokens between evictions while decoding.
        prompt_every: tokens between those in the prompt.

    Raises:
        MethodError: a number out of range.
    """
    if not 0 <= recent <= 1:
        raise MethodError(f"recent={recent}: use a share of the budget, in [0, 1]")
    if not 0 < tau_init <= tau_end:
        raise MethodError(
            f"tau_init={tau_init}, tau_end={tau_end}: use numbers above 0 that rise"
        )

    def value(layer, about):
        q, tokens = layer.asked(about.length)
        held = layer.tokens(about.length)
        written = jnp.maximum(tokens - (about.prompt - 1)[:, None], 0)
        tau = jnp.minimum(tau_init + tau_delta * written, tau_end)

        def drawn(queries, keys):
            batch, groups, slots = keys.shape
            copies = q.shape[2] // groups
            shape = (batch, groups, queries.shape[1], copies, slots)
            group = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
            head = jax.lax.broadcasted_iota(jnp.int32, shape, 3)
            query = queries[:, None, :, None, None]
            about_slot = (query, keys[:, :, None, None])
            z = hashed.gumbel(seed, about.layer, group, head, *about_slot)
            return noise * z / tau[:, None, :, None, None]

        cooled = q / tau[..., None, None].astype(q.dtype)
        weight = jnp.where(tokens < 0, 0.0, 1.0)
        k = layer.store.read()[0]
        seen = columns(cooled, k, weight, tokens, held, noise=drawn if noise else None)
        score = layer.notes["score"] + seen
        newest = jnp.floor(recent * about.keep).astype(jnp.int32)[:, None, None]
        worth = jnp.where(held >= about.length[:, None, None] - newest, jnp.inf, score)
        return worth, layer.replace(notes={"score": score})

    rule = scored.Rule(value, scored.ALL, {"score": (jnp.float32, ())})
    return scored.policy(
        rule,
        budget,
        layers=layers,
        online=True,
        decode=True,
        every=every,
        prompt_every=prompt_every,
    )
