"""Random draft heads of every kind, for the toy or another target."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.heads import chimera, eagle, eagle3, hydra, medusa, p_eagle, ppd

# Heads on a block, and how small the toy's are; all but Domino's grow trees of a table.
BLOCKS: dict[str, dict[str, int]] = {
    "dflash": {},
    "dflash2": {"rank": 4, "candidates": 5, "convolution": 4},
    "domino": {"rank": 4, "width": 4},
    "dspark": {"rank": 4},
    "treeflash": {},
}


def heads(name: str, lm: Any) -> Any:
    """Make heads for the target `lm`: fresh ones plus noise of deviation 0.3."""
    key, config = jax.random.key(7), lm.config
    rows = jax.random.normal(key, (config.vocab_size, config.d_model))
    draft_tokens = np.arange(1, config.vocab_size - 1)  # EAGLE-3's draft vocabulary
    # Heads whose `init` takes more than a key and a config, or has another module.
    makers: dict[str, Callable] = {
        "drafters/medusa": lambda: medusa.init(key, config, rows, 3),
        "drafters/hydra": lambda: hydra.init(key, config, rows, 3, True, True),
        "drafters/eagle3": lambda: eagle3.init(key, config, rows, draft_tokens),
        "drafters/p_eagle": lambda: p_eagle.init(key, config, rows, draft_tokens, 1, 3),
        "drafters/chimera": lambda: chimera.init(key, config, rows, 3),
        "drafters/lud": lambda: ppd.init(key, lm.model, lm.params),
        "drafters/ppd": lambda: ppd.init(key, lm.model, lm.params),
        "exits/specee": lambda: eagle.init(key, config),
        **{
            f"drafters/{name}": functools.partial(
                importlib.import_module(f"models.heads.{name}").init,
                *(key, config),
                layers=1,
                block=4,
                **{name: min(n, config.vocab_size) for name, n in fields.items()},
            )
            for name, fields in BLOCKS.items()
        },
    }

    def default():
        head = importlib.import_module(f"models.heads.{name.split('/')[1]}")
        return head.init(key, config)

    params = jax.tree.map(np.asarray, jax.jit(makers.get(name, default))())
    vocabulary = {"kept": params.pop("kept")} if "kept" in params else {}
    rng = np.random.default_rng(7)
    stir = lambda x: np.float32(x + 0.3 * rng.normal(size=x.shape))
    return jax.tree.map(jnp.asarray, {**jax.tree.map(stir, params), **vocabulary})
