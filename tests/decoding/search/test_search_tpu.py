"""A search's round by the TPU compiler: no cache is copied, in any layout of it."""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("libtpu", reason="the extra `tpu` is not installed")

from decoding import Method, Spec, base, compose
from decoding.loops import engines, search
from kernels import aot, block_traffic
from models import transformer
from models.cache_layouts import kv_cache, paged, quantized

pytestmark = [pytest.mark.tpu_aot, pytest.mark.long]

SCRATCH, SIZE, NEW = 256, 1024, 64
LAYOUTS = {
    "dense": kv_cache.dense,
    "paged": paged.pages(64),
    "int8": quantized.int8(256),
}
MADE = re.compile(
    r"= \(?\w+\[([\d,]+)\]\S* "
    r"(copy|copy-start|transpose|concatenate|pad|gather|dynamic-slice|fusion)\("
)
MODEL = Spec("drafters/lane_model", m=3, depth=2)


def copies(layout, monkeypatch, drafter=None, alter=lambda state: state) -> list[str]:
    """The instructions of 32 rounds that make an array as large as a layer's.

    Writes into it are none: the compiler's scatters work in place, as the kernel does.
    """
    config = transformer.Config(
        vocab_size=1024,
        d_model=256,
        n_layers=2,
        n_heads=32,
        n_kv_heads=8,
        head_dim=128,
        d_ff=512,
        max_positions=8192,
        ropes=(transformer.rope(128, 10000.0),),
    )
    model = transformer.transformer(config, jnp.bfloat16, cache=LAYOUTS[layout])
    half = lambda x: x.astype(jnp.bfloat16)
    lm = types.SimpleNamespace(
        model=model,
        params=jax.tree.map(half, model.init(jax.random.key(0))),
        tokenizer=None,
        config=config,
    )
    method = Method(search=Spec("search/beam", width=4), drafter=drafter)
    beside = {"draft": lm} if "draft" in method.needs else {}
    parts = compose.compose(method, lm, drafts=beside)
    params = compose.params(lm, beside)
    engine = engines.Engine(parts.program)
    prompts = [[1, 2, 3], list(range(1, SIZE - NEW - 1))]
    limits = [len(p) + NEW for p in prompts]
    keys = engines.request_keys(0, len(prompts), 1)
    rows = engine.start(
        *(params, parts, prompts, limits, keys, SIZE), scratch=SCRATCH, whole=True
    )
    own = (parts.program.select.init(params, SIZE), base.State())
    state = engine.plant(own, rows, NEW, SCRATCH)
    sizes = {x.size for x in jax.tree.leaves(rows.caches) if x.ndim >= 4}

    def run(params, state):
        more = lambda state: ~state.rows.done.all() & (state.round < search.EVERY)
        step = lambda state: alter(search.round_(parts.program, params, state))
        return jax.lax.while_loop(more, step, state)

    with monkeypatch.context() as patch:
        budget = block_traffic.budget("v5e")
        patch.setattr(block_traffic, "platform", lambda: "tpu")
        patch.setattr(block_traffic, "vmem_here", lambda interpret: budget)
        patch.setattr(block_traffic, "cores_here", lambda interpret: 1)
        text = aot.compile_for("v5e", run, params, state, donate=(1,)).as_text()
    assert text.count("tree_attention") >= 2
    return [
        line.strip()
        for line in text.splitlines()
        if (match := MADE.search(line))
        and "scatter" not in line.split(" = ")[0]
        and np.prod([int(n) for n in match[1].split(",")]) in sizes
    ]


@pytest.mark.parametrize(
    ("layout", "drafter"), [*((name, None) for name in LAYOUTS), ("paged", MODEL)]
)
def test_no_round_copies_a_cache(layout, drafter, monkeypatch):
    assert copies(layout, monkeypatch, drafter) == []


def test_fault_rows_are_gathered(monkeypatch):
    """Planted: the caches' rows are reordered in every round."""

    def gathered(state):
        order = state.round % 2 ^ jnp.arange(2)
        caches = {n: c.gather(order) for n, c in state.rows.caches.items()}
        return state.replace(rows=state.rows.replace(caches=caches))

    assert copies("dense", monkeypatch, alter=gathered)
