"""Keyformer: H2O's sums, of softened weights."""

import numpy as np
import pytest

from decoding import Spec
from decoding.cache_eviction import hashed
from models.errors import MethodError
from tests.decoding.caches import oracle

pytestmark = [pytest.mark.kv, pytest.mark.long]

ARGUMENTS = {"budget": 12, "every": 8, "prompt_every": 16}
SPEC = Spec("caches/keyformer", **ARGUMENTS, recent=0.5, tau_end=20.0, tau_delta=2.0)
BARE = Spec("caches/keyformer", **ARGUMENTS, recent=0.5, noise=0.0, tau_end=1.0)


class Softened(oracle.Heads):
    """Heads whose `score` is Keyformer's."""

    tau = staticmethod(lambda t: 1.0)
    noise = 1.0

    def column(self, g, t):
        seen = [j for j in self.kept[g] if j <= t]
        s = self.q[t, g] @ self.k[seen, g].T
        head = np.arange(len(s))[:, None]
        z = np.asarray(hashed.gumbel(0, 0, g, head, t, np.asarray(seen)[None]))
        s = (s + self.noise * z) / self.tau(t)
        p = np.exp(s - s.max(-1, keepdims=True))
        return seen, (p / p.sum(-1, keepdims=True)).sum(0)


def value(heads, g, t, length):
    return np.inf if t >= length - 6 else heads.score[t, g]


def differs(monkeypatch, spec, delta, noise=1.0, end=20.0):
    """Prompts on which the policy and NumPy disagree; tau rises by `delta`."""
    found = 0
    for prompt, text, kept in oracle.follow(spec):
        first = len(prompt) - 1
        rise = lambda t, first=first: min(1 + delta * max(t - first, 0), end)
        fields = {"tau": staticmethod(rise), "noise": noise}
        heads = type("Own", (Softened,), fields)
        monkeypatch.setattr(oracle, "Heads", heads)
        found += oracle.simulate(prompt, text, value, **ARGUMENTS) != kept
    return found


def test_it_sums_softened_weights(monkeypatch):
    """Three prompts; planted: a temperature that does not rise, and no noise."""
    assert differs(monkeypatch, SPEC, 2.0) == 0
    assert differs(monkeypatch, SPEC, 0.0) > 0
    assert differs(monkeypatch, SPEC, 2.0, noise=0.0) > 0


def test_without_noise_and_heat_it_is_h2o():
    h2o = oracle.follow(Spec("caches/h2o", **ARGUMENTS))
    assert oracle.follow(BARE) == h2o
    assert oracle.follow(SPEC) != h2o


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"recent": -1.0}, "recent=-1.0"),
        ({"tau_init": 0.0}, "tau_init=0.0"),
        ({"tau_end": 0.5}, "use numbers above 0 that rise"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("caches/keyformer", **arguments).build({})
