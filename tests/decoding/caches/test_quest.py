"""Quest: the pages of the largest upper bounds, and the last one, are read."""

import numpy as np
import pytest

from decoding import Spec
from models.errors import MethodError
from tests.decoding.caches import reading

pytestmark = pytest.mark.kv

PAGE, K = 4, 12
SPEC = Spec("caches/quest", budget=K, page=PAGE, full=1)


def bounds(q, k):
    """Return the bound of each whole page of k [n, d], of queries q [R, d]."""
    pages = k[: len(k) // PAGE * PAGE].reshape(-1, PAGE, k.shape[-1])
    low, high = pages.min(1), pages.max(1)
    each = np.maximum(q[:, None] * low, q[:, None] * high).sum(-1)
    return each.max(0)


def means(q, k):
    """Planted: products with the pages' mean keys."""
    pages = k[: len(k) // PAGE * PAGE].reshape(-1, PAGE, k.shape[-1])
    return (q @ pages.mean(1).T).max(0)


def reads(texts, g, t, value=bounds, newest=1, query=None):
    start = max((t // PAGE + 1 - newest) * PAGE, 0)
    q = texts.q[1][t if query is None else query, g]
    found = value(q, texts.k[1][:start, g])
    pages = reading.best(found, K // PAGE - newest)
    slots = [p * PAGE + i for p in pages for i in range(PAGE)]
    return [*slots, *range(start, t + 1)]


def test_it_reads_the_pages_of_the_largest_bounds():
    assert reading.gap(SPEC, reads) < reading.CLOSE
    planted = lambda *at: reads(*at, value=means)
    assert reading.gap(SPEC, planted) > 10 * reading.CLOSE


def test_two_newest_pages():
    spec = Spec("caches/quest", **SPEC.arguments, newest=2)
    two = lambda *at: reads(*at, newest=2)
    assert reading.gap(spec, two) < reading.CLOSE
    assert reading.gap(spec, reads) > 10 * reading.CLOSE


@pytest.mark.long
def test_a_list_serves_eight_tokens():
    def select(texts, g, n):
        start = (n // PAGE) * PAGE
        q = texts.q[1][n - 1, g]
        pages = reading.best(bounds(q, texts.k[1][:start, g]), K // PAGE - 1)
        return [p * PAGE + i for p in pages for i in range(PAGE)], start

    spec = Spec("caches/quest", **SPEC.arguments, refresh=8)
    assert reading.gap(spec, reading.listed(select, 8)) < reading.CLOSE
    assert reading.gap(spec, reading.listed(select, 4)) > 10 * reading.CLOSE


def test_no_key_exceeds_its_pages_bound():
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 8)), rng.normal(size=(16, 8))
    largest = (q @ k.T).max(0).reshape(-1, PAGE).max(1)
    assert (bounds(q, k) >= largest).all()
    assert not (means(q, k) >= largest).any()  # planted


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"page": 1}, "page=1, full=2, newest=1: use at least 2, 0 and 1"),
        ({"newest": 0}, "newest=0: use"),
        ({"refresh": 0}, "refresh=0: use at least 1"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("caches/quest", **arguments).build({})
