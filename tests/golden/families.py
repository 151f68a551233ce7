"""What loads of each family equals transformers' own, as a table.

    python -m tests.golden.families

The golden models are small, random, and as transformers wrote them
(`make_golden.py`): logits of 20 tokens of two rows in one call, of the same tokens in
ragged chunks over a cache, and two greedy texts of 24 tokens. `phi3_long` passes its
original context in them: transformers then takes the long factors of LongRoPE, we take
them by the size of the cache, from the beginning.
"""

import dataclasses
import functools
import pathlib

import numpy as np

import decoding
import models
from models import checkpoints, transformer
from tests.models import blocks

GOLDEN = pathlib.Path(__file__).parent
PROMPT, NEW, SIZE = 8, 24, 24


@functools.cache
def loaded(name: str) -> models.Loaded:
    return models.load(GOLDEN / "models" / name)


@functools.cache
def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "models" / f"{name}.npz", allow_pickle=False) as found:
        return dict(found)


def names() -> list[str]:
    return sorted(path.stem for path in (GOLDEN / "models").glob("*.npz"))


def distance(name: str) -> float:
    """The largest difference of the logits of one call."""
    lm, want = loaded(name), arrays(name)
    found = blocks.whole(lm.model, lm.params, want["tokens"], SIZE)
    return float(np.abs(np.asarray(found) - want["logits"]).max())


def greedy(name: str, batch: int = 2) -> tuple[list[list[int]], list[list[int]]]:
    """The greedy texts of `decoding.generate`, past every EOS, and transformers'."""
    lm = loaded(name)
    with np.load(GOLDEN / "greedy.npz", allow_pickle=False) as found:
        whole = found[name]
    config = dataclasses.replace(lm.config, eos=())
    endless = models.Loaded(transformer.transformer(config), lm.params)
    prompts = whole[:batch, :PROMPT].tolist()
    out = decoding.generate(endless, prompts, max_new_tokens=NEW, temperature=0.0)
    return out.tokens, whole[:batch, PROMPT:].tolist()


def parts(name: str) -> str:
    """What differs among the layers of a model, in words."""
    c = loaded(name).config
    layers = [c.layer(i) for i in range(c.n_layers)]
    found = []
    if any(x.experts for x in layers):
        e = next(x.experts for x in layers if x.experts)
        found.append(f"{e.count} experts, {e.active} of a token")
        found += ["shared experts"] * bool(e.shared)
        found += ["dense layers too"] * any(not x.experts for x in layers)
    found += ["latent attention"] * bool(c.latent) + ["sinks"] * c.sinks
    found += ["windows"] * any(x.window for x in layers)
    found += ["layers without a rope"] * any(x.rope < 0 for x in layers)
    sizes = {(x.n_kv_heads, x.head_dim) for x in layers}
    found += ["layers of two shapes"] * (len(sizes) > 1)
    return ", ".join(found) or "alike layers"


def main() -> None:
    print(
        "| family | golden model | layers | logits, largest difference | tokens equal |"
    )
    print("| --- | --- | --- | --- | --- |")
    known = {m.FAMILY.model_type for m in checkpoints.AUTOREGRESSIVE}
    for name in names():
        ours, theirs = greedy(name)
        same = sum(a == b for x, y in zip(ours, theirs) for a, b in zip(x, y))
        family = loaded(name).family
        assert family in known
        print(
            f"| {family} | {name} | {parts(name)} | {distance(name):.1e} "
            f"| {same} of {2 * NEW} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
