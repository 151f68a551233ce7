"""Answers by their bounds, by enumeration on the masked toy; choices by hand."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest

import models
from models import transformer
from models.errors import DataError
from models.synthetic import toy_masked
from tests.training.objectives.language_models import test_masked_diffusion as shapes
from training.evaluation import diffusion_bound, multiple_choice
from training.evaluation.multiple_choice import Likelihood, Question

MASK = 4
PAIRS = [((2, 0), (3, 1, 2)), ((1,), (0, 3)), ((3, 3, 1), (2,))]
LM, PARAMS = toy_masked.model(MASK + 1, seed=1)
KNOWN: dict[tuple, np.ndarray] = {}


def law(noised, clean, behind, block=0):
    """The toy's law of each position, which sees nothing behind the text."""

    def one(row, text, size):
        key = (*row[:size], *text[:size], block)
        if key not in KNOWN:
            out = np.full((size, MASK + 1), -np.inf, np.float32)
            sees = lambda p: min((p // block + 1) * block, size) if block else size
            for i in range(size):
                # Clean text before the block, the noised block, nothing behind.
                begin = i // block * block if block else 0
                tokens = [*text[:begin], *row[begin:size]]
                found = toy_masked.Reference(LM.config, PARAMS)
                out[i] = found.run(tokens, range(size), sees)[i]
            out[:, MASK] = -np.inf
            KNOWN[key] = out
        return np.pad(KNOWN[key], [(0, len(row) - size), (0, 0)])

    rows = zip(noised.tolist(), clean.tolist(), (behind == 0).sum(1).tolist())
    return np.stack([one(*row) for row in rows])


def nats(pair, masked, block=0):
    """-log p of each token of a text with these masked."""
    text = np.asarray([*pair[0], *pair[1]])
    noised = np.where(masked, MASK, text)[None]
    logits = law(noised, text[None], np.zeros_like(noised), block)[0]
    top = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    return top - logits[np.arange(len(text)), text]


def over_orders(pair, places, block=0):
    """The mean over all orders of the sum of -log p of each token in its turn."""
    total = 0.0
    for order in itertools.permutations(places):
        masked = np.zeros(len(pair[0]) + len(pair[1]), bool)
        masked[list(places)] = True
        for place in order:
            total += nats(pair, masked, block)[place]
            masked[place] = False
    return total / math.factorial(len(places))


def wanted(pair, block=0):
    """The bound of an answer, the sum of those of its blocks."""
    places = np.arange(len(pair[0]), len(pair[0]) + len(pair[1]))
    groups = places // block if block else 0 * places
    parts = [places[groups == group].tolist() for group in np.unique(groups)]
    return sum(over_orders(pair, part, block) for part in parts)


@pytest.mark.parametrize(
    ("block", "exact"), [(0, [False, False, True]), (2, [False, True, True])]
)
def test_bounds_are_the_mean_over_all_orders(block, exact):
    """4,000 draws of deviation 3 at most, 5 standard errors; one of a sure answer.

    Planted: a question that is masked with its answer.
    """
    of = lambda *about: law(*about, block)
    about = {"block": block, "draws": 4000, "batch": 4000}
    found = multiple_choice.bounds(of, PAIRS, MASK, **about)
    for pair, value in zip(PAIRS, found):
        close = 5 * value.error + 1e-5
        assert value.nats == pytest.approx(wanted(pair, block), abs=close)
        assert value.tokens == len(pair[1]) and value.error < 0.06
    assert [value.error == 0 for value in found] == exact
    whole = over_orders(PAIRS[0], range(5), block)
    assert abs(whole - found[0].nats) > 0.5


@pytest.mark.parametrize("block", [0, 2])
def test_fault_the_mean_over_masked_tokens(block, monkeypatch):
    """Planted: their sum is divided by k, and not by the rate k / G."""
    mean = lambda masked, groups: masked / masked.sum(1, keepdims=True)
    monkeypatch.setattr(diffusion_bound, "weights", mean)
    of = lambda *about: law(*about, block)
    found = multiple_choice.bounds(of, PAIRS[:1], MASK, block, draws=512, batch=512)
    assert abs(found[0].nats - wanted(PAIRS[0], block)) > 0.5


@pytest.mark.long
def test_the_standard_error():
    """60 estimates of 24 draws stray by no more than it says, and by more than half.

    Planted: the deviation of one draw.
    """
    of = lambda seed: multiple_choice.bounds(
        law, PAIRS[:1], MASK, draws=24, batch=24, seed=seed
    )[0]
    found = [of(seed) for seed in range(60)]
    strays = np.std([value.nats for value in found], ddof=1)
    says = np.mean([value.error for value in found])
    assert 0.5 * says < strays < 1.25 * says
    assert strays < 0.5 * says * 24**0.5


def test_draws_depend_on_seed_and_index_alone():
    """Other batches give the same; planted: another seed."""
    about = {"draws": 10, "seed": 3}
    found = multiple_choice.bounds(law, PAIRS, MASK, **about, batch=7)
    alone = multiple_choice.bounds(law, PAIRS[:1], MASK, **about, batch=4)
    assert found[0] == pytest.approx(alone[0])
    other = multiple_choice.bounds(law, PAIRS[:1], MASK, draws=10, seed=4)
    assert found[0].nats != pytest.approx(other[0].nats)


def loaded(config):
    model = transformer.transformer(config)
    params = jax.tree.map(lambda x: 3 * x, model.init(jax.random.key(0)))
    return models.Loaded(model, params)


@pytest.mark.parametrize(
    ("config", "block"),
    [
        (shapes.SHIFTED, 0),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((shapes.SHAPE, 0), (shapes.SHAPE, 4), (shapes.SHIFTED, 4))
        ),
    ],
)
def test_nothing_is_seen_behind_a_text(config, block):
    """Planted: without the third argument a bidirectional model sees it."""
    of = diffusion_bound.law(loaded(config), block)
    rng = np.random.default_rng(0)
    clean = rng.integers(0, 10, (2, 7)).astype(np.int32)
    masked = rng.random(clean.shape) < 0.5
    noised = np.where(masked, config.mask_token, clean).astype(np.int32)
    pad = lambda x, value: np.pad(x, [(0, 0), (0, 9)], constant_values=value)
    behind = pad(np.zeros_like(clean), 1)
    whole = np.asarray(of(noised, clean))
    long = np.asarray(of(pad(noised, 5), pad(clean, 5), behind))[:, :7]
    np.testing.assert_allclose(whole[:, 1:], long[:, 1:], atol=1e-5)
    blind = np.asarray(of(pad(noised, 5), pad(clean, 5)))[:, :7]
    assert np.allclose(whole[:, 1:], blind[:, 1:], atol=1e-5) == (block > 0)


PROMPTED = [Question((1, 2, 3), ((4, 5), (6, 7, 8), (9,)), 1)] * 2


@pytest.mark.long
def test_an_autoregressive_model_is_exact():
    """Planted: the law of the token before."""
    lm = loaded(dataclasses.replace(shapes.SHAPE, mask_token=None))
    found = multiple_choice.answered(lm, PROMPTED, batch=2)
    for answer, value in zip(PROMPTED[0].answers, found[0]):
        text = np.asarray([[*PROMPTED[0].prompt, *answer]])
        law = jax.nn.log_softmax(
            transformer.forward(lm.config, lm.params, text).logits[0]
        )
        at = np.arange(len(PROMPTED[0].prompt), text.shape[1])
        nats = -law[at - 1, text[0, at]].sum()
        assert value.nats == pytest.approx(float(nats), abs=1e-4)
        assert value.nats != pytest.approx(float(-law[at, text[0, at]].sum()), abs=0.1)
        assert (value.error, value.tokens) == (0.0, len(answer))
    assert found[0] == found[1]


def test_a_diffusion_model_is_scored_under_its_attention():
    """Planted: the other one."""
    lm = loaded(shapes.SHAPE)
    about = {"draws": 4, "batch": 8}
    first = multiple_choice.answered(lm, PROMPTED, **about)
    named = multiple_choice.answered(lm, PROMPTED, visibility="bidirectional", **about)
    other = multiple_choice.answered(lm, PROMPTED, visibility="block_causal", **about)
    assert first == named and [len(row) for row in first] == [3, 3]
    assert first[0][0].nats != pytest.approx(other[0][0].nats, abs=1e-3)
    assert first[0][2].error == 0 < first[0][1].error
    with pytest.raises(DataError, match="visibility='causal'"):
        multiple_choice.answered(lm, PROMPTED, visibility="causal")


def test_accuracy_by_hand():
    """The second choice is right by nats a token alone, the third by neither.

    Planted: the most nats.
    """
    questions = [Question((1,), ((2,), (3, 4)), 1)] * 3
    one = [Likelihood(2.0, 0.1, 1), Likelihood(1.0, 0.1, 2)]
    two = [Likelihood(2.0, 0.5, 1), Likelihood(3.0, 0.5, 2)]
    three = [Likelihood(1.0, 0.0, 1), Likelihood(3.0, 0.0, 2)]
    found = multiple_choice.accuracy(questions, [one, two, three])
    assert found.total == pytest.approx(1 / 3) and found.questions == 3
    assert found.per_token == pytest.approx(2 / 3) and found.chance == 0.5
    assert found.clear == pytest.approx(2 / 3)  # 1 of 2's lead is 1.4 errors
    assert found.error == pytest.approx((2 / 9 / 2) ** 0.5)
    most = [[x._replace(nats=-x.nats) for x in row] for row in (one, two, three)]
    assert multiple_choice.accuracy(questions, most).total == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        (Question((1,), ((2,),), 0), "has 1 answers"),
        (Question((1,), ((2,), (3,)), 2), "number 2 is right"),
        (Question((), ((2,), (3,)), 0), "a question of 0 tokens"),
        (Question((1,), ((2,), ()), 0), "an answer of 0"),
    ],
)
def test_what_has_no_choice_is_refused(question, words):
    with pytest.raises(DataError, match=words):
        multiple_choice.answered(loaded(shapes.SHAPE), [question])


def test_counts_are_one_or_more():
    for about in ({"draws": 0}, {"batch": 0}):
        with pytest.raises(DataError, match="at least 1 of each"):
            multiple_choice.bounds(law, PAIRS, MASK, **about)
