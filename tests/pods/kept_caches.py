"""Texts under cache policies on meshes of two virtual devices; run by test_meshes.py.

Usage: kept_caches.py POLICY... Prints one JSON object: {policy: {"texts": {mesh:
texts}, "sent": {mesh: bytes}, "dense": {mesh: bytes}}}: `sent` is the largest
collective of the loop, `dense` that under the dense cache. The mesh "one" is a single
device; "fault ..." are planted faults.
"""

import dataclasses
import json
import sys
from typing import Any

import jax
import numpy as np

import decoding
import models
from decoding import Spec, compose
from decoding.conformance import peaked
from decoding.loops import engines
from kernels import hlo
from models import io
from models.cache_layouts import kept
from tests.pods import meshes

MESHES = {"one": None, "data": (2, 1, 1), "tensor": (1, 1, 2)}
CHUNK, SIZE = 16, 512
DRAFTER = Spec("drafters/prompt_lookup")
PROMPTS = [list(prompt) for prompt in (*peaked.PROMPTS, *peaked.PROMPTS[::-1])]


def run(policy: Spec, shape: Any) -> dict[str, Any]:
    """Decode with drafts under a policy."""
    lm = models.Loaded(peaked.functions(), peaked.model().params)
    there = io.placed(lm, meshes.plan_of(shape))
    with engines.apart():
        parts = compose.compose(decoding.Method(DRAFTER, policy=policy), there)
        program = dataclasses.replace(parts.program, chunk=CHUNK)
        parts = dataclasses.replace(parts, program=program)
        engine, params = engines.engine(parts), compose.params(there)
        limits = [len(prompt) + peaked.NEW for prompt in PROMPTS]
        keys = engines.request_keys(0, len(PROMPTS), 1)
        state = engine.start(params, parts, PROMPTS, limits, keys, SIZE)
        state = engine.advance(params, state)
        rows = zip(np.asarray(state.tokens), np.asarray(state.length), strict=True)
        sent = [x.bytes for x in hlo.collectives(engine.text("advance"))]
        return {
            "texts": [row[:end].tolist() for row, end in rows],
            "sent": max(sent, default=0),
        }


def of_other_rows(once: Any) -> Any:
    """Planted: rows evict when their neighbours are due."""
    return lambda change, layer, due: once(change, layer, due[::-1])


def main(names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        part = Spec(f"caches/{name}")
        part = Spec(part.name, **part.card.examples)
        # Heads of unequal budgets share a pool, which no mesh cuts.
        shapes = [m for m in MESHES if (name, m) != ("ada_kv", "tensor")]
        runs = {mesh: run(part, MESHES[mesh]) for mesh in shapes}
        if name == "h2o":
            sound, kept.once = kept.once, of_other_rows(kept.once)
            runs["fault rows"] = run(part, MESHES["data"])
            kept.once = sound
        whole = Spec("caches/dense")
        found[name] = {
            "texts": {mesh: x["texts"] for mesh, x in runs.items()},
            "sent": {mesh: x["sent"] for mesh, x in runs.items()},
            "dense": {mesh: run(whole, MESHES[mesh])["sent"] for mesh in shapes},
        }
    return found


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is the cost
    print(json.dumps(main(sys.argv[1:])))
