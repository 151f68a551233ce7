"""The drafter `masked_diffusion`, beside whole forwards in plain Python."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec, base
from decoding.conformance import drafters, kit, laws
from decoding.drafters import masked_diffusion, model
from decoding.loops import decode
from decoding.topologies import chain, static
from models.errors import MethodError
from models.synthetic import toy, toy_masked
from tests.decoding.drafters import kit as by_hand

MASK, DEPTH = kit.VOCAB, 4


def method(forwards: int = 1, block: int = 0, length: int = DEPTH) -> Method:
    drafter = Spec("drafters/masked_diffusion", forwards=forwards, block=block)
    return Method(drafter, topology=Spec("topologies/chain", length=length))


def masked(**fields):
    lm, params = toy_masked.model(MASK + 1, **fields)
    return types.SimpleNamespace(model=lm, params=params, tokenizer=None)


def drafted(run: kit.Run, state) -> tuple[list[list[int]], int]:
    """The drafts that follow the texts of a state, and their calls."""
    program = run.parts.program

    def draft(params, state):
        ctx = decode.context(program, params, state)
        return program.drafter.draft(state.key, ctx, state.drafter)[0]

    nodes = jax.jit(draft)(run.params, state)
    return nodes.tokens[:, 1:].tolist(), int(nodes.calls)


def expected(draft, text: list[int], forwards: int, block: int) -> list[int]:
    """The drafts by whole forwards of the canvas: text, drafts and masks."""
    end, size = len(text) + DEPTH, block or draft.model.config.block_size
    shifted = draft.model.config.alignment == "shifted"
    tokens, starts = list(text), [j * DEPTH // forwards for j in range(forwards)]
    sees = lambda p: min((p // size + 1) * size, end)
    for level in range(DEPTH):
        if level in starts:
            canvas = tokens + [MASK] * (end - len(tokens))
            whole = toy_masked.Reference(draft.model.config, draft.params)
            found = whole.run(canvas, range(end), sees)
        law = found[len(text) + level - shifted]
        tokens.append(int(law[: kit.VOCAB].argmax()))
    return tokens[len(text) :]


def texts_of(state) -> list[list[int]]:
    lengths = np.asarray(state.length)
    return [t[:n].tolist() for t, n in zip(np.asarray(state.tokens), lengths)]


@pytest.mark.parametrize(
    ("alignment", "forwards", "block"),
    [
        ("shifted", 2, 3),
        pytest.param("same", 1, 4, marks=pytest.mark.long),
        pytest.param("same", 3, 2, marks=pytest.mark.long),
        pytest.param("shifted", 4, 0, marks=pytest.mark.long),
    ],
)
def test_drafts_are_those_of_whole_forwards(alignment, forwards, block):
    """On ragged texts, after two rounds: keys of earlier rounds are read.

    Planted: keys that a block had while masks stood in it are read, too.
    """
    draft = masked(alignment=alignment)
    run = kit.Run(method(forwards, block), beside={"draft": draft})
    state = run.advance(run.start(), 2)
    wanted = [expected(draft, text, forwards, block) for text in texts_of(state)]
    assert drafted(run, state) == (wanted, forwards)
    size = block or draft.model.config.block_size
    row = state.drafter.row
    stale = state.replace(
        drafter=state.drafter.replace(row=row.replace(clean=row.clean + size))
    )
    assert drafted(run, stale)[0] != wanted


@pytest.mark.parametrize(
    "draw",
    [
        base.COUPLED,
        pytest.param(base.POINT, marks=pytest.mark.long),
        pytest.param(base.IID, marks=pytest.mark.long),
    ],
)
def test_left_to_right_is_a_draft_model_s_chain(draw):
    """In blocks of one a shifted model is autoregressive: the same conditionals.

    Planted: in fewer forwards the laws are marginals, and other drafts follow.
    """
    lm, params = toy_masked.model(kit.VOCAB, alignment="shifted", block_size=1)
    params = {"table": params["table"].at[..., -1].set(-jnp.inf)}  # the mask's
    grown = chain.topology(DEPTH, draw)
    ctx = by_hand.context([[1, 2, 3, 1, 2], [4], [5, 6]])
    noise = lambda at: jax.vmap(
        lambda p: jax.random.gumbel(jax.random.key(p), (kit.VOCAB,))
    )(at)
    ctx = dataclasses.replace(
        ctx, params={"draft": params}, depth=jnp.int32(DEPTH), noise=noise
    )

    @jax.jit
    def nodes(keys, state):
        return drafter.draft(keys, ctx, state)[0]

    drafts = []
    for drafter in (
        model.drafter(lm, grown),
        masked_diffusion.drafter(lm, grown, kit.VOCAB, DEPTH),
        masked_diffusion.drafter(lm, grown, kit.VOCAB, 1),
    ):
        nodes.clear_cache()
        drafts.append(nodes(by_hand.keys(3), drafter.init(ctx)))
    one, same, marginal = drafts
    assert one.tokens.tolist() == same.tokens.tolist() != marginal.tokens.tolist()
    if draw == base.IID:
        assert np.array_equal(one.logits[:, :-1], same.logits[:, :-1])


SEVERAL = dataclasses.replace(method(2, 4, 3), transforms=kit.COMMON)


def test_several_forwards_write_plain_s_text():
    """Greedy and sampled rows of one program; every forward is counted."""
    drafters.greedy_rows_are_plain(SEVERAL)
    stats = kit.generate(SEVERAL, drafters.HEATS).stats
    assert stats.draft_calls == 2 * stats.target_calls.sum()


@pytest.mark.long
@pytest.mark.parametrize("contract", drafters.CONTRACT, ids=lambda c: c.__name__)
def test_several_forwards_keep_every_contract(contract):
    contract(SEVERAL)


@pytest.mark.long
def test_rejection_keeps_the_law():
    """Texts of three tokens by enumeration, n = 24,576, at level 1e-4.

    Planted: the verifier gets the law of another depth.
    """
    heat, prompt, rows = 0.8, [1, 2], 4096
    chosen = dataclasses.replace(method(2, 2, 3), verifier=Spec("verifiers/rejection"))
    run = kit.Run(chosen, heat)
    law = toy.sequence_law(kit.TARGET.params, prompt, 3, lambda x, text: x / heat)

    def chance() -> float:
        counts = np.zeros_like(law)
        for seed in range(6):
            state = run.start([prompt], new=3, n=rows, seed=seed, size=16)
            tokens = np.asarray(run.advance(state).tokens)[:, 2:5]
            np.add.at(counts, tuple(tokens.T), 1)
        return laws.chi_square(counts, law)

    assert chance() > 1e-4
    sound = run.parts.program.drafter

    def other(keys, ctx, state):
        nodes, state, cache = sound.draft(keys, ctx, state)
        return nodes.replace(logits=jnp.roll(nodes.logits, 1, 1)), state, cache

    run.alter(drafter=sound._replace(draft=other))
    assert chance() < 1e-4


def test_what_does_not_fit_is_refused():
    grown, tree = chain.topology(3), static.topology()
    make = masked_diffusion.drafter
    with pytest.raises(MethodError, match="no mask_token"):
        make(kit.DRAFT.model, grown, kit.VOCAB)
    lm = masked().model
    for forwards in (0, 4):
        with pytest.raises(MethodError, match="use 1 to 3"):
            make(lm, grown, kit.VOCAB, forwards)
    with pytest.raises(MethodError, match="use a chain"):
        make(lm, tree, kit.VOCAB, 2)
    with pytest.raises(MethodError, match="give block="):
        make(masked(block_size=0).model, grown, kit.VOCAB)
    refused = [
        (method(), kit.DRAFT, "no mask_token"),
        (method(), types.SimpleNamespace(model=toy_masked.model(6)[0]), "vocabulary"),
        (kit.cases()["model-chain"], kit.masked_draft(), "from left to right"),
    ]
    for wrong, draft, match in refused:
        with pytest.raises(MethodError, match=match):
            decoding.generate(kit.TARGET, [[1]], wrong, drafts={"draft": draft})
