"""The prompt's vote against whole sequences, and what its text then takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec, base
from decoding.conformance import exits, kit, peaked
from models import transformer
from models.errors import ConfigError, MethodError
from models.predictors import layer_router

NAME = "exits/first"
DEPTH, WIDTH = peaked.LAYERS, peaked.config().d_model
ROUTERS = kit.exit_params(NAME, DEPTH, WIDTH)
METHOD = Method(exit=Spec(NAME))


def votes(prompt) -> np.ndarray:
    """Compute float64[L], the mean vote of all tokens of a prompt but the last."""
    lm, tokens = peaked.model(), np.asarray([prompt])
    out = transformer.forward(lm.config, lm.params, tokens, taps=tuple(range(DEPTH)))
    mean = []
    for i in range(DEPTH):
        h = np.asarray(out.hidden[i][0, :-1], np.float64)
        odds = h @ np.asarray(ROUTERS["weight"][i]) + float(ROUTERS["bias"][i])
        mean.append((1 / (1 + np.exp(-odds))).mean())
    return np.array(mean)


def generate(routers, prompts=peaked.PROMPTS, **fields):
    return decoding.generate(
        peaked.model(), prompts, METHOD, peaked.NEW, drafts={"exits": routers}, **fields
    )


@pytest.fixture(scope="module")
def plain():
    return exits.of_peaked(METHOD)


@pytest.mark.parametrize("chunk", [0, 4])
def test_votes_are_those_of_the_whole_prompt(plain, chunk):
    """Whatever the chunks. A prompt of one token has none. Planted: padding votes."""
    state = exits.peaked_start(exits.of_peaked(METHOD).alter(chunk=chunk))
    row = state.exit.row
    for i, prompt in enumerate(peaked.PROMPTS):
        assert row.voters[i] == len(prompt) - 1
        if len(prompt) > 1:
            mean = np.asarray(row.votes[i]) / (len(prompt) - 1)
            np.testing.assert_allclose(mean, votes(prompt), atol=1e-5)
            padded = np.asarray(row.votes[i]) / 128
            assert np.abs(padded - votes(prompt)).max() > 1e-2


def test_a_row_takes_the_layers_of_its_vote():
    """Each row's text is that of routers that always keep its set; rows differ."""
    together, sets = generate(ROUTERS), []
    for i, prompt in enumerate(peaked.PROMPTS):
        every = set(range(DEPTH))
        keep = every
        if len(prompt) > 1:
            assert np.abs(votes(prompt) - 0.5).min() > 1e-4  # no vote is a tie
            keep = set(np.flatnonzero(votes(prompt) >= 0.5).tolist())
        sets.append(frozenset(keep))
        alone = generate(layer_router.fixed(DEPTH, WIDTH, keep))
        assert alone.tokens[i] == together.tokens[i]
        assert alone.stats.compile_seconds == 0
    assert len({*sets}) > 1
    # The prompt's last token takes all layers.
    due = [DEPTH + (peaked.NEW - 1) * len(keep) for keep in sets]
    mean = sum(due) / (len(due) * peaked.NEW)
    assert together.stats.layer_evals == pytest.approx(mean)
    assert together.guarantee == base.under(base.ARGMAX, "first")


def test_sure_routers_are_the_model():
    """All kept: the model's own bits. None kept: another text, by the same program."""
    dense = decoding.generate(peaked.model(), peaked.PROMPTS, Method(), peaked.NEW)
    whole = generate(layer_router.fixed(DEPTH, WIDTH, range(DEPTH)))
    assert (whole.tokens, whole.logprobs) == (dense.tokens, dense.logprobs)
    assert generate(layer_router.fixed(DEPTH, WIDTH, [])).tokens != dense.tokens


def test_fault_a_vote_that_goes_on():
    """Planted: the text's tokens vote, too; above all after a prompt of one token."""
    run = exits.of_peaked(METHOD)
    policy = run.parts.program.exit

    def observe(ctx, state, outcome):
        return policy.observe(ctx, state, outcome.replace(is_prompt=True))

    run.alter(exit=policy._replace(observe=observe))
    with pytest.raises(AssertionError, match="a round changes a place's layers"):
        exits.layers_depend_on_the_place(Spec(NAME), run)


@pytest.mark.long
def test_fault_all_nodes_take_the_layers_of_the_root(plain):
    """Planted: the prompt's last token takes all layers, and so would its drafts."""
    run = exits.at_the_root(exits.of_peaked(exits.tree(Spec(NAME))))
    with pytest.raises(AssertionError, match="a draft changes the text"):
        exits.drafts_keep_the_text(Spec(NAME), run, plain, exits.peaked_texts)


def test_wrong_arguments():
    build = lambda routers, **arguments: Spec(NAME, **arguments).build(
        {"model": peaked.functions(), "exits": routers}
    )
    with pytest.raises(MethodError, match=r"threshold=1\.5"):
        build(ROUTERS, threshold=1.5)
    with pytest.raises(ConfigError, match="routers for 3"):
        build(layer_router.init(3, WIDTH))
    with pytest.raises(ConfigError, match="layer routers have the params"):
        build(kit.exit_params("exits/specee"))
    with pytest.raises(ConfigError, match=r"layers=\[5\]"):
        layer_router.fixed(DEPTH, WIDTH, [5])
    fresh = layer_router.init(DEPTH, WIDTH)
    share = jax.nn.sigmoid(layer_router.log_odds(fresh, 0, jnp.ones(WIDTH)))
    assert float(share) == pytest.approx(0.881, abs=1e-3)
