"""LoopServe: the input tokens that the last queries attended to, and the output."""

import numpy as np
import pytest

from decoding import Spec
from models.errors import MethodError
from tests.decoding.caches import reading

pytestmark = pytest.mark.kv

K, QUERIES = 12, 4
SPEC = Spec("caches/loopserve", budget=K, queries=QUERIES, full=1, refresh=8)


def chooser(queries, whole=False):
    def select(texts, g, n):
        end = n if whole else texts.prompt - 1
        sums = np.zeros(n)
        for t in range(max(n - queries, 0), n):
            sums[: t + 1] += reading.weights(
                texts.q[1][t, g], texts.k[1][: t + 1, g]
            ).sum(0)
        return reading.best(sums[:end], K), end

    return reading.listed(select, 8)


def test_it_reads_what_the_last_queries_attended_to():
    """Planted: the last query alone; generated tokens compete with the input's."""
    assert reading.gap(SPEC, chooser(QUERIES)) < reading.CLOSE
    assert reading.gap(SPEC, chooser(1)) > 10 * reading.CLOSE
    assert reading.gap(SPEC, chooser(QUERIES, whole=True)) > 10 * reading.CLOSE


def test_one_choice_is_that_of_the_prompts_end():
    """Planted: a choice every 8 tokens."""
    one = Spec("caches/loopserve", **{**SPEC.arguments, "refresh": 1000})
    assert reading.gap(one, chooser(QUERIES)) > 10 * reading.CLOSE


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"refresh": 1}, "refresh=1: use at least 1, 0, 2"),
        ({"queries": 0}, "queries=0, full=0"),
        ({"budget": 0}, "budget=0: use slots"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("caches/loopserve", **arguments).build({})
