"""Sparse reads and speculation: drafts keep the text, and the faults that do not."""

import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec, base, catalogue
from decoding.cache_reading import selected
from decoding.caches import quest
from decoding.conformance import kept_caches, kit, peaked, sparse_reads
from models.base import Visibility, causal_block
from models.cache_layouts import sparse
from models.errors import MethodError

pytestmark = pytest.mark.kv

TIDAL = Spec("caches/tidal", budget=12, select=(0,))
QUEST = Spec("caches/quest", budget=12, page=4, full=0)
LABELS = kit.spec("caches/double_sparsity")
EVERY = 8


def listed(spec: Spec) -> Spec:
    return Spec(spec.name, **spec.arguments, refresh=EVERY)


def plain(spec: Spec, heat: float = 0.0) -> kit.Run:
    return kit.Run(Method(policy=spec), heat, lm=peaked.model())


def long(spec: Spec, heat: float = 0.0, length: int = 5) -> kit.Run:
    """The target as its own draft, in a chain: only the policy cuts a round."""
    chain = Spec("topologies/chain", length=length)
    method = Method(Spec("drafters/oracle"), topology=chain, policy=spec)
    return kit.Run(method, heat, lm=peaked.model())


def tree(spec: Spec, heat: float = 0.0) -> kit.Run:
    method = Method(
        kit.spec("drafters/model"), topology=kit.spec("topologies/static"), policy=spec
    )
    return kit.Run(method, heat, lm=peaked.model(), draft=peaked.model(4))


def altered(run: kit.Run, **fields) -> kit.Run:
    policy = run.parts.program.policy._replace(**fields)
    return run.alter(policy=policy)


texts = kept_caches.texts


@pytest.mark.long
@pytest.mark.parametrize("spec", [TIDAL, listed(TIDAL), QUEST, listed(QUEST)], ids=str)
def test_drafts_keep_sampled_texts(spec):
    """Of a tree at 0.8, and of the target's own drafts, all of which are accepted."""
    wanted = texts(plain(spec, 0.8))
    assert texts(tree(spec, 0.8)) == wanted
    run = long(spec, 0.8)
    state = run.advance(kept_caches.start(run))
    assert kit.texts(state, peaked.PROMPTS) == wanted
    if spec is TIDAL:  # no round is cut, and no draft refused
        calls = np.asarray(state.counters.target_calls)
        assert calls.max() <= -(-peaked.NEW // 6) + 1


@pytest.mark.long
@pytest.mark.parametrize("spec", [listed(TIDAL), QUEST], ids=str)
def test_fault_the_room_is_ignored(spec):
    wanted = texts(plain(spec))
    assert texts(long(spec)) == wanted
    assert texts(altered(long(spec), room=None)) != wanted


@pytest.mark.long
def test_fault_one_selection_a_block():
    """Every node of a block reads what its first one selects, and no round is cut."""

    def of_first(layer, asked):
        one = asked.q[:, :1] * jnp.ones_like(asked.q)
        k = layer.store.read()[0]
        s = jnp.einsum("bngrd,bgsd->bgrns", one, k).max(2)
        return jnp.where(asked.seen[:, None], s, -jnp.inf)

    policy = selected.policy(selected.Rule(of_first), 12, selected.own(0))
    method = catalogue.Built("first", "caches", policy, quest.CARD)
    assert texts(long(method)) != texts(plain(method))


@pytest.mark.long
def test_fault_pages_of_drafts():
    """Bounds of pages that drafts, rejected later, have filled."""
    sound = tree(QUEST)
    sparse_reads.rejected_drafts_leave_no_trace(QUEST, sound, plain(QUEST))
    policy = sound.parts.program.policy

    def retain(state, cache, outcome):
        path = outcome.verdict.path
        nodes = jnp.broadcast_to(1 + jnp.arange(path.shape[1]), path.shape)
        most = jnp.where(outcome.active, path.shape[1], -1)
        many = base.Verdict(nodes, most, outcome.verdict.token)
        later = policy.retain(state, cache, outcome.replace(verdict=many))[0]
        after, state = policy.retain(state, cache, outcome)
        both = tuple(
            x.replace(extra={**x.extra, **{n: y.extra[n] for n in ("low", "high")}})
            for x, y in zip(after.layers, later.layers)
        )
        return after.replace(layers=both), state

    faulty = altered(tree(QUEST), retain=retain)
    with pytest.raises(AssertionError, match="leave a trace"):
        sparse_reads.rejected_drafts_leave_no_trace(QUEST, faulty, plain(QUEST))


@pytest.mark.long
def test_fault_a_list_of_scratch():
    """A list that is renewed every round, by whatever query came last."""
    spec = listed(TIDAL)
    run = long(spec)
    policy = run.parts.program.policy

    def retain(state, cache, outcome):
        cache, state = policy.retain(state, cache, outcome)
        read = any(layer.is_read for layer in cache.layers)
        return policy.finish(state, cache) if read else (cache, state)

    assert texts(altered(run, retain=retain)) != texts(plain(spec))


@pytest.mark.long
def test_questions_behind_a_context():
    """Chunks of a question select by node as decoding does: one text."""
    for spec in (TIDAL, listed(TIDAL), QUEST, listed(QUEST)):
        found = [
            decoding.generate(
                peaked.model(),
                [prompt[9:] for prompt in peaked.PROMPTS[3:]],
                Method(policy=spec),
                8,
                contexts=[prompt[:9] for prompt in peaked.PROMPTS[3:]],
                prefill_chunk=chunk,
            ).tokens
            for chunk in (4, 16)
        ]
        assert found[0] == found[1]


@pytest.mark.long
def test_a_part_of_the_layers_begins_anew():
    """A call of the second layer alone reads the newest slots; planted: the list."""
    run = plain(TIDAL)
    cache = kept_caches.start(run).caches["target"]
    lm = peaked.functions()
    params = run.params["target"]
    ones = jnp.ones_like(cache.length)
    tokens = jnp.full((len(peaked.PROMPTS), 1), 3, jnp.int32)
    block = causal_block(tokens, cache.length, ones, cache.size)
    opened = cache.open(block)
    x = lm.embed(params, block.tokens, block.positions)
    half, first, _ = lm.layers(params, opened, x, block, 0, 1)
    apart, _, _ = lm.layers(params, first, half, block, 1, 2)
    whole, _, _ = lm.layers(params, opened, x, block, 0, 2)
    assert np.abs(apart - whole)[-1].max() > 1e-3
    newest = cache.length[:, None] - 11 + jnp.arange(12)
    mask = (jnp.arange(cache.size) >= newest[:, :1]) | (newest[:, :1] < 0)
    seen = Visibility(
        cache.length,
        block.visibility.ancestors,
        mask[:, None] & jnp.ones((1, 1, 1), bool),
    )
    layers = [x.replace(reader=sparse.Reader(sparse.WHOLE)) for x in first.layers]
    dense = first.replace(layers=tuple(layers))
    alone, _, _ = lm.layers(params, dense, half, block.replace(visibility=seen), 1, 2)
    np.testing.assert_allclose(apart, alone, atol=1e-4)


def test_skipped_layers_pass_the_carry_on():
    """Layers that might be skipped, and are not, change nothing; planted: one is."""
    run = plain(TIDAL)
    cache = kept_caches.start(run).caches["target"]
    ones = jnp.ones_like(cache.length)
    tokens = jnp.full((len(peaked.PROMPTS), 1), 3, jnp.int32)
    block = causal_block(tokens, cache.length, ones, cache.size, logits_at="all")
    lm, params = peaked.functions(), run.params["target"]
    whole, _ = lm(params, cache, block)
    runs = lm(params, cache, block.replace(run=jnp.ones((2, 2), bool)))[0]
    np.testing.assert_allclose(runs.logits, whole.logits, atol=1e-5)
    first = jnp.asarray([[False, True], [True, True]])
    skipped = lm(params, cache, block.replace(run=first))[0]
    assert np.abs(skipped.logits - whole.logits).max() > 1e-3


def test_slots_that_are_read_and_bytes():
    """Read slots of the closed form; the index counts as bytes."""
    out = {}
    for spec in (Spec("caches/dense"), TIDAL, QUEST, LABELS):
        method = Method(policy=spec)
        out[spec.name] = decoding.generate(
            peaked.model(), [peaked.PROMPTS[-1]], method, peaked.NEW
        ).stats
    seen = [len(peaked.PROMPTS[-1]) - 1 + i for i in range(peaked.NEW)]
    tidal = np.mean([(n + 12) / 2 for n in seen])
    assert out["caches/tidal"].keys_read == pytest.approx(tidal, rel=1e-6)
    pages = np.mean([2 * 4 + n % 4 + n / 4 for n in seen])
    assert out["caches/quest"].keys_read == pytest.approx(pages, rel=1e-6)
    dense = out["caches/dense"].kv_bytes
    for name in ("caches/tidal", "caches/quest", "caches/double_sparsity"):
        assert out[name].kv_bytes > dense
    # Half of the channels of the keys, and eight bytes of positions less than nothing.
    labels = out["caches/double_sparsity"].kv_bytes / dense
    assert 1.2 < labels < 1.3


def test_models_and_layouts_that_are_refused():
    with pytest.raises(MethodError, match="name layers of the model's 2"):
        Spec("caches/tidal", select=(5,)).build({"model": peaked.functions()})
    other = peaked.functions()._replace(init_layer=None)
    policy = QUEST.build({})
    sizes = base.Sizes(1, 64, 8, 8, 4, jnp.float32)
    with pytest.raises(MethodError, match="cannot be made one by one"):
        policy.make(other, sizes, jnp.ones((1,), jnp.int32))
