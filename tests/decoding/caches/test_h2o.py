"""H2O: what it keeps is what NumPy keeps, from the attention of every query."""

import numpy as np
import pytest

from decoding import Spec
from models.errors import MethodError
from tests.decoding.caches import oracle

pytestmark = pytest.mark.kv

SPEC = Spec("caches/h2o", budget=12, every=8, prompt_every=16)
RULE = {"budget": 12, "every": 8, "prompt_every": 16}


def value(heads, g, t, length):
    return np.inf if t >= length - 6 else heads.score[t, g]


def last_query_only(heads, g, t, length):
    seen, sums = heads.column(g, length - 1)
    return np.inf if t >= length - 6 else sums[seen.index(t)]


def test_it_keeps_the_heavy_hitters_and_the_newest():
    """Three prompts, evictions in the prompt, at its end and while decoding.

    Planted: what the last query saw, in place of the sum.
    """
    assert oracle.differs(SPEC, value, **RULE) == 0
    assert oracle.differs(SPEC, last_query_only, **RULE) == 3


@pytest.mark.long
def test_normalised_scores():
    def mean(heads, g, t, length):
        return np.inf if t >= length - 6 else heads.score[t, g] / (length - t)

    spec = Spec("caches/h2o", **SPEC.arguments, normalised=True)
    assert oracle.differs(spec, mean, **RULE) == 0
    assert oracle.differs(spec, value, **RULE) > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"recent": 1.5}, "recent=1.5: use a share"),
        ({"budget": 0}, "budget=0: use slots"),
        ({"budget": 1.5}, r"a share of the prompt, a float in \(0, 1\]"),
        ({"budget": "all"}, "use an int"),
        ({"every": 0}, "every=0: use at least 1"),
        ({"layers": "cone"}, "layers='cone': use 'uniform'"),
        ({"layers": (1, 0)}, "use positive numbers"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("caches/h2o", **arguments).build({})
