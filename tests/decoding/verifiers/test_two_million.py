"""Every lossless verifier's own acceptance at n = 2 x 10^6, against its closed form.

20 runs of 10^5 rounds each, seeds 0 .. 19, on the worked example of `oracles`; 4
standard errors, so that a sound build fails 6 times in 10^5 a case. An acceptance that
is off by 0.004 does not pass.
"""

import numpy as np
import pytest

from decoding import Spec, base, catalogue
from tests import oracles

RUNS, ROUNDS = 20, 100_000
N = RUNS * ROUNDS
P, Q = oracles.P, oracles.Q

REPLACED, KEPT = oracles.GOLDEN[base.IID], oracles.GOLDEN[base.NO_REPLACE]
LIKELIEST = (P[3], P[3] + P[2])  # of q: tokens 3 and 2
EQUAL = [float((P * (1 - (1 - Q) ** k)).sum()) for k in (1, 2, 3)]  # one of k is drawn
COUPLED = sum(1 / np.maximum(P / x, Q / y).sum() for x, y in zip(P, Q))

DUE = {
    ("rejection", base.IID): (REPLACED[0],),
    ("rejection", base.NO_REPLACE): (KEPT[0],),
    ("rejection", base.POINT): LIKELIEST[:1],
    ("recursive_rejection", base.IID): REPLACED,
    ("recursive_rejection", base.NO_REPLACE): KEPT,
    ("recursive_rejection", base.POINT): LIKELIEST,
    ("spectr", base.IID): tuple(oracles.kseq(P, Q, k)[1] for k in (1, 2, 3)),
    ("sample_then_match", base.IID): tuple(EQUAL),
    ("sample_then_match", base.NO_REPLACE): tuple(EQUAL[:1]),
    ("sample_then_match", base.POINT): LIKELIEST,
    ("gumbel_coupled", base.IID): tuple(EQUAL),
    ("gumbel_coupled", base.NO_REPLACE): tuple(EQUAL[:1]),
    ("gumbel_coupled", base.POINT): LIKELIEST,
    ("gumbel_coupled", base.COUPLED): (COUPLED,),
}
CASES = [(*key, k) for key, due in DUE.items() for k in range(1, len(due) + 1)]


def test_every_lossless_verifier_and_draw_is_here():
    specs = [Spec(name) for name in catalogue.of_kind("verifiers")]
    built = {spec.name.split("/")[1]: spec.build({}) for spec in specs}
    lossless = {n: v for n, v in built.items() if v.guarantee == base.LAW}
    assert set(DUE) == {(n, draw) for n, v in lossless.items() for draw in v.draws}


@pytest.mark.long
@pytest.mark.parametrize(("name", "draw", "k"), CASES)
def test_acceptance_at_two_million(name, draw, k):
    verifier, due = Spec(f"verifiers/{name}").build({}), DUE[name, draw][k - 1]
    accepted = 0
    for seed in range(RUNS):
        _, ranks = oracles.simulate(verifier, draw, k, ROUNDS, seed)
        accepted += int(ranks.sum())
    assert oracles.within(accepted, N, due), (accepted / N, due)
    for off in (-0.004, 0.004):  # planted
        assert not oracles.within(accepted, N, due + off)
