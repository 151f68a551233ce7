"""Drafts inside a search: the same texts and scores, bit for bit, in fewer rounds."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import decoding
from decoding import Method, Spec, base, tree
from decoding.conformance import kit
from decoding.loops import drafting, engines, leaves
from models.errors import MethodError
from tests.decoding.search import test_search_layouts as layouts

LM = kit.model(0, 0.0)
OTHER = kit.model(1, 0.0)
LOOKUP = Spec("drafters/prompt_lookup", k=3)
RECYCLED = Spec("drafters/token_recycling", choices=kit.SMALL_TREE)
MODEL = Spec("drafters/lane_model", m=3, depth=2)
NEW = 24


BEAMS = Spec("search/beam", width=3)


def found(drafter=None, search=BEAMS, draft=OTHER, **fields):
    transforms = fields.pop("transforms", ())
    method = Method(search=search, drafter=drafter, transforms=transforms)
    fields = {"n": 2, "prompts": kit.PROMPTS, "max_new_tokens": NEW, "lm": LM, **fields}
    return kit.generate(method, fields.pop("temperature", 0.0), draft=draft, **fields)


def alike(a, b) -> bool:
    return (a.tokens, a.scores, a.logprobs) == (b.tokens, b.scores, b.logprobs)


BUSY = {  # a state at every node, two ends, ragged limits
    "transforms": (Spec("transforms/frequency_penalty", penalty=0.4),),
    "stop_token_ids": [5],
    "max_new_tokens": [NEW, 9, 17, NEW],
}


RARE = [pytest.param(d, marks=pytest.mark.long) for d in (LOOKUP, RECYCLED)]


@pytest.mark.parametrize("drafter", [*RARE, MODEL], ids=lambda d: d.name)
def test_drafts_change_nothing(drafter, monkeypatch):
    """Planted: a level counts although the leaf of one lane was not drafted."""
    fields = (
        {**BUSY} if LM.tokenizer else {k: v for k, v in BUSY.items() if k != "stop"}
    )
    plain = found(**fields)
    assert alike(found(drafter, **fields), plain)
    sound = leaves._on_drafts

    def careless(*arguments):
        state, at, trail, _ = sound(*arguments)
        return state, at, trail, (state.lanes >= 0).any(1)

    monkeypatch.setattr(leaves, "_on_drafts", careless)
    with engines.apart():
        assert not alike(found(drafter, **BUSY), plain)


@pytest.mark.long
@pytest.mark.parametrize("width", [pytest.param(1, marks=pytest.mark.long), 3])
def test_own_texts_as_drafts(width):
    """m levels of drafts that hold every leaf: one round for m + 1 tokens.

    Planted: with another draft model rounds are lost.
    """
    search = Spec("search/beam", width=width, early_stopping=True)
    lm = kit.model(3)  # its texts do not end
    fields = {"search": search, "lm": lm, "n": 1, "max_new_tokens": 22}
    drafter = Spec("drafters/lane_model", m=6, depth=3)
    plain, out = found(**fields), found(drafter, draft=lm, **fields)
    assert alike(out, plain)
    assert out.stats.levels.tolist() == plain.stats.levels.tolist() == [22] * 4
    assert out.stats.rounds == -(-22 // 4)
    assert out.stats.draft_calls == 4 * 4 * out.stats.rounds
    assert found(drafter, draft=OTHER, **fields).stats.rounds > out.stats.rounds


def reader(count: int) -> base.Drafter:
    """Draft what follows a lane's last two tokens, by the target's own table.

    Its memory is how many tokens differ between the text and what it was told.
    """

    def init(ctx):
        return base.State((ctx.tokens, ctx.length), jnp.int32(0))

    def draft(keys, ctx, state):
        at = jnp.maximum(ctx.length - 2, 0)[:, None]
        before = jnp.take_along_axis(ctx.tokens, at, 1)[:, 0]
        before = jnp.where(ctx.length > 1, before, kit.VOCAB)  # the filler
        law = ctx.params["target"]["table"].sum(0)
        best = lax.top_k(law[ctx.root, before], count)[1]
        tokens = jnp.concatenate([ctx.root[:, None], best], 1)
        parents = jnp.zeros_like(tokens).at[:, 0].set(-1)
        kind = jnp.full_like(tokens, base.CANDIDATE)
        return base.TokenTree(tokens, parents, kind, depth=1), state, None

    def observe(ctx, state, outcome):
        if outcome.is_prompt:
            return state
        text, length = state.row
        tokens, size = tree.committed(outcome.tree, outcome.verdict)
        index = jnp.arange(tokens.shape[1])
        there = (index < size[:, None]) & outcome.active[:, None]
        at = jnp.where(there, length[:, None] + index, text.shape[1])
        put = jax.vmap(lambda x, at, new: x.at[at].set(new, mode="drop"))
        text, length = put(text, at, tokens), length + there.sum(1)
        inside = jnp.arange(text.shape[1]) < ctx.length[:, None]
        inside &= outcome.active[:, None]
        wrong = (inside & (text != ctx.tokens)).sum()
        return base.State((text, length), state.shared + wrong)

    return base.Drafter(init, draft, observe, count + 1, 1, reads_text=True)


def test_a_drafter_reads_the_texts_of_its_lanes(monkeypatch):
    """The best tokens behind every lane hold all leaves: one round for two tokens.

    Planted: its rows stay where they are when lanes are reordered.
    """
    fields = {"lm": kit.model(3), "max_new_tokens": 22}
    out = found(reader(3), **fields)
    assert alike(out, found(**fields))
    assert out.memory == 0 and out.stats.rounds == 11
    sound = drafting.followed

    def unmoved(trail, *arguments):
        return replace(sound(trail, *arguments), lane=trail.lane)

    monkeypatch.setattr(drafting, "followed", unmoved)
    with engines.apart():
        assert found(reader(3), **fields).stats.rounds > 11


@pytest.mark.long
def test_what_a_drafter_remembers_serves_the_next_call():
    """Planted: without `memory` the second call takes as many rounds as the first."""
    fields = {"search": Spec("search/beam", width=1), "lm": kit.model(3), "n": 1}
    first = found(RECYCLED, **fields)
    again = found(RECYCLED, memory=first.memory, **fields)
    assert alike(first, again)
    assert again.stats.rounds < first.stats.rounds
    assert found(RECYCLED, **fields).stats.rounds == first.stats.rounds


@pytest.mark.long
def test_a_search_that_reads_its_prompt_takes_drafts():
    search = Spec("search/contrastive_search", k=3)
    plain, out = (found(d, search, n=1) for d in (None, RECYCLED))
    assert alike(plain, out)
    assert found(RECYCLED, search, n=1, memory=out.memory).memory is not None


@pytest.mark.long
@pytest.mark.parametrize("name", ["int8", "paged"])
def test_drafts_in_layouts(name):
    """Three settlings and reused slots; as many slots as the drafts need at once."""
    model = layouts.target(name)
    method = Method(search=Spec("search/beam", width=3))
    fields = {"max_new_tokens": layouts.NEW, "n": 3}
    plain = decoding.generate(model, layouts.PROMPTS, method, **fields)
    drafted = replace(method, drafter=LOOKUP)
    out = decoding.generate(model, layouts.PROMPTS, drafted, **fields)
    assert out.tokens == plain.tokens
    np.testing.assert_allclose(out.scores, plain.scores, rtol=1e-5)
    assert out.stats.rounds <= plain.stats.rounds


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Method(MODEL), "add such a search"),
        (Method(MODEL, search=Spec("search/vote", samples=2)), "add such a search"),
        (
            Method(Spec("drafters/model"), search=Spec("search/beam")),
            "use drafters/lane_model",
        ),
        (
            Method(Spec("drafters/lookahead"), search=Spec("search/beam")),
            "use drafters/lane_model",
        ),
        (Method(LOOKUP, search=Spec("search/superposed")), "leave the drafter out"),
        (Method(Spec("drafters/lane_model", m=0), search=Spec("search/beam")), "m=0"),
    ],
    ids=lambda x: x if type(x) is str else "",
)
def test_what_does_not_fit_is_refused(method, words):
    if "topology" in method.needs:
        method = replace(method, topology=Spec("topologies/chain"))
    with pytest.raises(MethodError, match=words):
        kit.generate(method)


def test_a_stream_has_the_draft_model_s_name():
    streams = {"draft": base.Stream(OTHER.model, "draft")}
    with pytest.raises(MethodError, match="give it another name"):
        found(MODEL, streams=streams)
