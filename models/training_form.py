"""The stacked form of params, for `lax.scan` over the layers of deep models."""

import jax
import jax.numpy as jnp


def stack_layers(params: dict) -> dict:
    """`{"embedding", "layer_0", ...}` -> `{"embedding", "stacked"}`, axis L first."""
    count = sum(name.startswith("layer_") for name in params)
    trees = [params[f"layer_{i}"] for i in range(count)]
    rest = {k: v for k, v in params.items() if not k.startswith("layer_")}
    return {**rest, "stacked": jax.tree.map(lambda *x: jnp.stack(x), *trees)}


def unstack_layers(params: dict) -> dict:
    """The inverse of `stack_layers`."""
    stacked = params["stacked"]
    count = jax.tree.leaves(stacked)[0].shape[0]
    rest = {k: v for k, v in params.items() if k != "stacked"}
    for i in range(count):
        rest[f"layer_{i}"] = jax.tree.map(lambda x, i=i: x[i], stacked)
    return rest
