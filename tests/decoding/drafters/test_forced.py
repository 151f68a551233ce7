"""Jump-forward: plain decoding's texts, fewer calls, and what inner drafters miss."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

import decoding
from decoding import Method, Spec, tree
from decoding.conformance import kit
from decoding.drafters import forced, rasd
from decoding.loops import engines
from decoding.tree_building import replaced_drafts
from models.errors import MethodError

# Over the toy's letters a to g: a letter is free, then five are forced.
FORCED = {"gbnf": 'root ::= ("a" "bcdef" | "b" "acegb" | "c" root "dd")+ "g"'}
GRAMMARS = [FORCED, {"regex": "(abcdefa|ce)*d"}, None, FORCED]
PROMPTS = [[1], [2, 3, 4], [5], [1, 2, 3, 1, 2]]
INNER = {
    "plain": (None, None),
    "a chain of the text": ("drafters/prompt_lookup", None),
    "a tree": ("drafters/token_recycling", None),
    "a drafted chain": ("drafters/model", "topologies/chain"),
    "a drafted tree": ("drafters/model", "topologies/eagle2"),
    "a head": ("drafters/eagle3", "topologies/eagle2"),
}


def method(inner, topology, tokens=8, verifier=None):
    part = {} if inner is None else {"inner": kit.spec(inner)}
    grown = None if topology is None else kit.spec(topology)
    drafter = Spec("drafters/forced", tokens=tokens, **part)
    return Method(drafter, verifier=verifier, topology=grown)


def call(method, temperature=0.8, **fields):
    drafts = {"draft": kit.DRAFT} if method and "draft" in method.needs else {}
    if method and "heads" in method.needs:
        drafts["heads"] = kit.heads("drafters/eagle3")
    fields = {"max_new_tokens": 24, "width": "paper", "constraint": GRAMMARS} | fields
    return decoding.generate(
        kit.model(0, -2.0),
        PROMPTS,
        method,
        temperature=temperature,
        seed=list(range(len(PROMPTS))),
        drafts=drafts,
        **fields,
    )


@pytest.fixture(scope="module")
def plain():
    return call(None)


SOON = ("plain",)  # the others with `-m long`
CASES = [
    pytest.param(name, marks=() if name in SOON else pytest.mark.long) for name in INNER
]


@pytest.mark.parametrize("name", CASES)
def test_texts_are_plain_ones(name, plain):
    out = call(method(*INNER[name]))
    assert out.guarantee == "LAW"
    assert out.tokens == plain.tokens
    calls, before = out.stats.target_calls, plain.stats.target_calls
    assert (calls[[0, 1, 3]] < before[[0, 1, 3]]).all()


def test_a_draft_model_reads_the_text_that_it_did_not_draft(monkeypatch):
    """With the target as its own draft model, greedily, every draft is right.

    Planted: a context without a depth, in which a drafter has missed nothing.
    """
    lm, drafter = kit.model(0, -2.0), method("drafters/model", "topologies/chain")
    grammar = {"regex": "([abc]{6}defde)*"}  # six letters are free, then five forced

    def wasted() -> float:
        monkeypatch.setattr(engines, "_ENGINES", {})
        fields = {"drafts": {"draft": lm}, "max_new_tokens": 33, "width": "paper"}
        out = decoding.generate(
            lm, PROMPTS, drafter, temperature=0.0, constraint=grammar, **fields
        )
        assert min(out.forced) > 9
        return out.stats.wasted

    assert wasted() == 0.0
    monkeypatch.setattr(replaced_drafts, "behind", lambda inner, ctx: ctx)
    assert wasted() > 0.1


@pytest.mark.long
def test_fewer_calls_than_the_inner_drafter():
    inner = Method(kit.spec("drafters/token_recycling"))
    alone, beside = call(inner), call(method("drafters/token_recycling", None))
    assert beside.tokens == alone.tokens
    assert beside.stats.target_calls.sum() < alone.stats.target_calls.sum()


def test_a_path_comes_first():
    """Of root 9 with children 1, 2, behind 2 a 4: the path 2, 3, which was joined.

    Planted: as they were joined, parents come first, too, but not the path.
    """
    row = lambda *values: jnp.array([values], jnp.int32)
    nodes = tree.chain(row(9)[0], row(1, 2, 4), row(3)[0])
    nodes = replace(nodes, parents=row(-1, 0, 0, 2), linear=False)
    found = forced._beside(nodes, row(9)[0], row(2, 3), row(2)[0], 6, 3)
    assert found.tokens[0, :5].tolist() == [9, 2, 3, 1, 4]
    assert found.parents[0, :5].tolist() == [-1, 0, 1, 0, 1]
    joined = rasd.join(nodes, row(2, 3)[:, None], row(2))
    assert joined.tokens[0, :3].tolist() == [9, 1, 2]
    without = forced._beside(nodes, row(9)[0], row(2, 3), row(0)[0], 6, 3)
    assert without.tokens[0, :4].tolist() == [9, 1, 2, 4]


@pytest.mark.long
def test_forced_text_comes_first(plain, monkeypatch):
    """In a block of three nodes it is not cut off, though the drafter has more.

    Planted: as the last sibling it is.
    """
    drafter = method("drafters/token_recycling", None)
    calls = lambda: call(drafter, width=3).stats.target_calls.sum()
    alone = call(Method(kit.spec("drafters/token_recycling")), width=3)
    narrow = call(drafter, width=3)
    assert narrow.tokens == plain.tokens
    ahead = narrow.stats.target_calls.sum()
    assert ahead < alone.stats.target_calls.sum()
    monkeypatch.setattr(engines, "_ENGINES", {})
    last = lambda tokens, *_: jnp.arange(tokens.shape[0])
    monkeypatch.setattr(forced, "_path_first", last)
    assert ahead < calls()


def test_jump_forward_is_the_same(plain):
    out = call(None, jump_forward=True)
    assert out.tokens == plain.tokens
    assert out.forced == plain.forced
    assert out.forced[2] == 0 and min(out.forced[0], out.forced[3]) > 3


def test_fault_forced_text_that_is_not_verified(plain, monkeypatch):
    """Planted: forced tokens of another state: the text stays, the calls do not."""
    real = forced.tree.chain
    wrong = lambda root, values, count, **more: real(root, values + 1, count, **more)
    monkeypatch.setattr(forced.tree, "chain", wrong)
    out = call(method(None, None, tokens=5))
    assert out.tokens == plain.tokens
    assert out.stats.target_calls[0] == plain.stats.target_calls[0]


@pytest.mark.long
def test_without_a_grammar_it_is_the_inner_drafter():
    inner = Method(kit.spec("drafters/prompt_lookup"))
    alone = call(inner, constraint=None)
    out = call(method("drafters/prompt_lookup", None), constraint=None)
    assert out.tokens == alone.tokens
    assert out.stats.target_calls.tolist() == alone.stats.target_calls.tolist()


def test_canonical_tokens_are_certain():
    """Under `canonical` a forced token has probability 1; with letters nothing else
    changes."""
    grammar = {**FORCED, "canonical": True}
    out, free = call(None, constraint=grammar), call(None, constraint=FORCED)
    assert out.tokens == free.tokens and out.forced == free.forced


def test_in_a_config():
    config = {"drafter": {"name": "drafters/forced", "inner": "drafters/prompt_lookup"}}
    built = Method.from_config(config)
    assert built.drafter.inner["inner"] == Spec("drafters/prompt_lookup")
    assert Method.from_config(built.to_config()) == built
    tree = {"name": "drafters/model"}
    config = {"drafter": {"name": "drafters/forced", "inner": tree}}
    assert Method.from_config(config).needs == {"draft", "topology"}


def test_refused():
    with pytest.raises(MethodError, match="tokens=0: draft at least 1"):
        forced.drafter(tokens=0)
    with pytest.raises(MethodError, match="must see verified"):
        call(method("drafters/oracle", "topologies/chain"))
    with pytest.raises(MethodError, match="names no part"):
        Spec("drafters/forced", inner=3).build({})
    with pytest.raises(MethodError, match="jump_forward=True with search/beam"):
        call(Method(search=Spec("search/beam", beams=2)), 0.0, jump_forward=True)
