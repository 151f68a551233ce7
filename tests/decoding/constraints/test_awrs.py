"""AWRS: weights against the masses they estimate, and SMC against an enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.conformance import estimators, kit
from decoding.constraints import awrs
from decoding.constraints.awrs import Order
from models.errors import MethodError
from tests.decoding.search import test_smc as language

DRAWS, SIZE = 200_000, 6
# A law of six tokens and which of them may follow.
LAWS = {
    "even": ([1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1]),
    "one dominant, allowed": ([20, 1, 1, 2, 1, 1], [1, 0, 1, 0, 0, 1]),
    "one dominant, forbidden": ([20, 1, 1, 2, 1, 1], [0, 1, 0, 1, 1, 0]),
    "one allowed": ([5, 4, 3, 2, 1, 1], [0, 0, 0, 1, 0, 0]),
}


def law(name: str) -> tuple[np.ndarray, np.ndarray]:
    weights, allowed = LAWS[name]
    return np.array(weights) / sum(weights), np.array(allowed, bool)


def orders(p: np.ndarray, count: int, seed: int = 0) -> Order:
    """Orders of all tokens; a p of 0 is no candidate."""
    with np.errstate(divide="ignore"):
        logp = np.log(p)
    keys = logp + np.random.default_rng(seed).gumbel(size=(count, len(p)))
    ids = np.argsort(-keys, 1)
    return Order(ids, logp[ids], np.full(count, -np.inf))


def drawn(order: Order, allowed, scheme: str, accepts: int = 2, live=None):
    live = np.ones(len(order.ids), bool) if live is None else live
    ask = lambda rows, tokens: allowed[tokens]
    return awrs.draw(order, ask, scheme, accepts, [1, 2], live)


def strays(p, allowed, token, weight) -> float:
    """The most standard errors by which E[w 1{x}] strays from p(x) 1[x may follow]."""
    found = []
    for x in range(len(p)):
        share = weight * (token == x)
        wanted, error = p[x] * allowed[x], share.std() / len(share) ** 0.5
        # A weight without variance is exact.
        found.append(abs(share.mean() - wanted) / max(error, 1e-9))
    return max(found)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("scheme", [*awrs.SCHEMES, "geometric 4"])
def test_weights_are_right_on_average(scheme, name):
    """200,000 draws, 4 standard errors."""
    scheme, _, accepts = scheme.partition(" ")
    p, allowed = law(name)
    found = drawn(orders(p, DRAWS), allowed, scheme, int(accepts or 2))
    assert not found.is_short.any()
    assert strays(p, allowed, found.token, np.exp(found.log_weight)) < 4


@pytest.mark.parametrize("name", list(LAWS)[:3])
def test_fault_no_second_loop(name):
    """Planted: the mass that remains where the first token is accepted."""
    p, allowed = law(name)
    order = orders(p, DRAWS)
    first = np.argmax(allowed[order.ids], 1)
    mass = np.exp(order.logp)[:, ::-1].cumsum(1)[:, ::-1]
    every = np.arange(DRAWS)
    token, weight = order.ids[every, first], mass[every, first]
    assert strays(p, allowed, token, weight) > 10


def test_one_allowed_token_has_no_variance():
    """Under the recursive scheme. Planted: under the others."""
    p, allowed = law("one allowed")
    spread = {
        scheme: np.exp(drawn(orders(p, 20_000), allowed, scheme).log_weight).std()
        for scheme in awrs.SCHEMES
    }
    assert spread.pop(awrs.RECURSIVE) < 1e-9 and min(spread.values()) > 0.01


@pytest.mark.parametrize("scheme", awrs.SCHEMES)
def test_a_cut_order_goes_on_where_it_was(scheme):
    """Two of six tokens, then all: bit for bit. Planted: the cut one as the whole."""
    p, allowed = law("one dominant, forbidden")
    order = orders(p, 2000)
    whole = drawn(order, allowed, scheme)
    tail = np.log(np.exp(order.logp[:, 2:]).sum(1))
    cut = drawn(Order(order.ids[:, :2], order.logp[:, :2], tail), allowed, scheme)
    assert 100 < cut.is_short.sum() < 2000
    rest = drawn(order, allowed, scheme, live=cut.is_short)
    joined = np.where(cut.is_short, rest.log_weight, cut.log_weight)
    np.testing.assert_allclose(joined, whole.log_weight, rtol=1e-12, atol=1e-12)
    token = np.where(cut.is_short, rest.token, cut.token)
    assert (token == whole.token).all()
    none = np.full(len(tail), -np.inf)
    wrong = drawn(Order(order.ids[:, :2], order.logp[:, :2], none), allowed, scheme)
    assert not np.allclose(wrong.log_weight, whole.log_weight)


@pytest.mark.parametrize("scheme", awrs.SCHEMES)
def test_pruning_changes_no_average(scheme):
    """Tokens left out keep their mass. Planted: the others' masses normalised."""
    p, allowed = law("one dominant, forbidden")
    pruned = np.where(np.arange(SIZE) == 0, 0.0, p)
    found = drawn(orders(pruned, DRAWS), allowed, scheme)
    assert strays(p, allowed, found.token, np.exp(found.log_weight)) < 4
    found = drawn(orders(pruned / pruned.sum(), DRAWS), allowed, scheme)
    assert strays(p, allowed, found.token, np.exp(found.log_weight)) > 10


@pytest.mark.parametrize("scheme", awrs.SCHEMES)
def test_nothing_may_follow(scheme):
    p, _ = law("even")
    found = drawn(orders(p, 100), np.zeros(SIZE, bool), scheme)
    assert (found.log_weight == -np.inf).all() and not found.is_short.any()


def searched(particles: int, runs=language.RUNS, **arguments):
    """Searches behind one prompt, a seed each, by an oracle in place of the mask."""
    oracle = {"regex": language.PATTERN}
    proposal = Spec("constraints/awrs", oracle=oracle, **arguments)
    search = Spec("search/smc", particles=particles, proposal=proposal)
    return decoding.generate(
        language.LM,
        [language.PROMPT] * runs,
        Method(search=search),
        temperature=language.HEAT,
        max_new_tokens=language.NEW,
        n=particles,
        seed=[*range(runs)],
    )


@pytest.fixture(scope="module")
def usual():
    return searched(4)


@pytest.mark.long
def test_smc_estimates_are_unbiased(usual):
    """Z within 3 standard errors, g by Hotelling's test at level 1e-3; 512 runs."""
    assert language.strays(usual, language.total()) < 3
    assert language.p_value(usual, language.target()) > 1e-3
    # Planted: weights that are all 1, of the law under the mask.
    texts, weights = language.texts_of(usual)
    assert abs(np.ones_like(weights).mean() - language.total()) > 0.5
    assert weights.std() > 0 and all(len(row) == 4 for row in texts)


@pytest.mark.long
def test_short_orders_give_the_same_search(usual):
    """Two tokens shipped, then whole rows. Planted: other seeds."""
    few = searched(4, runs=64, shipped=2)
    assert few.tokens == usual.tokens[:64]
    np.testing.assert_allclose(few.scores, usual.scores[:64], rtol=1e-4, atol=1e-4)
    assert few.tokens != usual.tokens[64:128]


@pytest.mark.long
def test_one_particle_is_importance_sampling():
    """Its texts are those of masked decoding, and their weights estimate Z."""
    out = searched(1)
    masked = language.searched(1)
    assert out.tokens == masked.tokens
    assert language.strays(out, language.total()) < 3
    assert not np.allclose(out.scores, masked.scores)  # planted: the exact masses


@pytest.mark.long
@pytest.mark.parametrize("scheme", [awrs.TWO_LOOP, awrs.GEOMETRIC])
def test_the_contract_holds_for_other_schemes(scheme):
    estimators.check(Spec("constraints/awrs", scheme=scheme))


def test_fault_an_oracle_of_another_text():
    """Planted: the answers of the text before, which the device never shows."""
    texts = set()

    def oracle(text, token):
        texts.add(text)
        return token == text[0]

    part = awrs.estimator(oracle)
    logits = jnp.zeros((estimators.BATCH, kit.VOCAB))
    key = jax.random.key(0)
    noise = jax.random.gumbel(key, logits.shape)
    token, _ = part.propose(key, estimators.paths(), logits, noise)
    assert texts == {estimators.TEXT}
    assert (
        set(np.asarray(token).tolist()) == {estimators.TEXT[0]} != {estimators.TEXT[1]}
    )


REFUSED = [
    ({"scheme": "three_loop"}, "scheme='three_loop': use one of"),
    ({"accepts": 1}, "accepts=1, shipped=64: use at least 2"),
    ({"shipped": 1}, "accepts=2, shipped=1: use at least 2"),
    ({"accepts": 3}, "accepts=3 with scheme='recursive': use 'geometric'"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_refuses(arguments, words):
    with pytest.raises(MethodError, match=words):
        awrs.estimator(lambda text, token: True, **arguments)


def test_refuses_a_proposal_that_is_none():
    mask = Spec("constraints/regex", pattern="a")
    search = Method(search=Spec("search/smc", proposal=mask))
    with pytest.raises(MethodError, match="give a Spec of constraints/awrs"):
        decoding.generate(language.LM, [[1]], search, temperature=1.0)


def test_refuses_an_estimator_among_the_transforms():
    method = Method(transforms=(kit.spec("constraints/awrs"),))
    with pytest.raises(MethodError, match="is no transform: give it to a search"):
        decoding.generate(language.LM, [[1]], method, temperature=1.0)
