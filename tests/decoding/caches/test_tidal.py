"""TidalDecode: the second layer reads what the first one's weights select."""

import itertools

import numpy as np
import pytest

from decoding import Method, Spec
from decoding.conformance import kept_caches, kit, peaked
from models.errors import MethodError
from tests.decoding.caches import reading

pytestmark = pytest.mark.kv

K = 12
SPEC = Spec("caches/tidal", budget=K, select=(0,))


def scores(texts, g, query, count, layer=0):
    q, k = texts.q[layer][query, g], texts.k[layer][:count, g]
    return reading.weights(q, k).max(0)


def reads(texts, g, t, layer=0):
    found = scores(texts, g, t, t + 1, layer)
    found[t] = np.inf
    return reading.best(found, K)


def own(texts, g, t):
    """Planted: the second layer selects by its own weights."""
    return reads(texts, g, t, layer=1)


def oldest(texts, g, t):
    """Planted: the newest token is one of many."""
    return reading.best(scores(texts, g, t, t + 1), K)


def select(texts, g, n):
    return reading.best(scores(texts, g, n - 1, n), K), n


def test_it_reads_what_the_first_layer_selects():
    assert reading.gap(SPEC, reads) < reading.CLOSE
    assert reading.gap(SPEC, own) > 10 * reading.CLOSE


def test_the_newest_token_is_read():
    assert reading.gap(SPEC, oldest) > 10 * reading.CLOSE


def test_a_list_serves_eight_tokens():
    spec = Spec("caches/tidal", **SPEC.arguments, refresh=8)
    assert reading.gap(spec, reading.listed(select, 8)) < reading.CLOSE
    assert reading.gap(spec, reading.listed(select, 4)) > 10 * reading.CLOSE


@pytest.mark.long
def test_lists_are_equal_up_to_the_next_selection():
    """Of every round; planted: a list that a layer renews by itself."""
    spec = Spec("caches/tidal", **SPEC.arguments, refresh=8)
    run = kit.Run(Method(policy=spec), lm=peaked.model())
    state, lists = kept_caches.start(run), []
    for _ in range(peaked.NEW):
        cache = state.caches["target"]
        first, second = (x.extra for x in cache.layers)
        for name in ("index", "chosen", "since"):
            assert np.array_equal(first[name], second[name])
        lists.append((int(cache.length[-1]), np.asarray(first["index"][-1])))
        state = run.advance(state, 1)
    renewed = {
        b for (_, x), (b, y) in itertools.pairwise(lists) if not np.array_equal(x, y)
    }
    assert renewed and all(n % 8 == 0 for n in renewed)


def test_layers_of_larger_models():
    """The paper's third layer, and its correction layer of 32."""
    model = type("Model", (), {"config": type("C", (), {"n_layers": 32})})
    policy = Spec("caches/tidal").build({"model": model})
    assert policy.make is not None and policy.room is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"select": ()}, "name layers of the model's 2"),
        ({"select": (2,)}, "name layers of the model's 2"),
        ({"select": (0,), "refresh": 0}, "refresh=0: use at least 1"),
        ({"select": (0,), "budget": 0}, "budget=0: use slots"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("caches/tidal", **arguments).build({"model": peaked.functions()})
