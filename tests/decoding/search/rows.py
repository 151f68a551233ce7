"""Independent samples of the toy model, and searches over them."""

import collections
import functools

from scipy import stats

from decoding import Method, Spec
from decoding.conformance import kit

LM = kit.model(0, ending=-1.0)  # texts end after some ten tokens
N, NEW, HEAT = 6, 40, 0.9
DRAFTERS = {
    "plain": {},
    "tree": {"drafter": kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE)},
    "model": {
        "drafter": kit.spec("drafters/model"),
        "topology": kit.spec("topologies/chain"),
    },
}


@functools.cache
def samples(n: int = N):
    """The texts of plain decoding."""
    return kit.generate(Method(), HEAT, lm=LM, n=n, max_new_tokens=NEW)


def searched(search: Spec, drafter: str = "plain", n: int = 1, **fields):
    """The output of a search over rows under a drafter."""
    method = Method(search=search, **DRAFTERS[drafter])
    return kit.generate(method, HEAT, lm=LM, n=n, max_new_tokens=NEW, **fields)


def p_value(found: collections.Counter, law: dict[tuple, float]) -> float:
    """Chi-squared over the texts that are expected five times or more, and the rest."""
    count = found.total()
    often = [text for text in law if law[text] * count >= 5]
    seen = [found[text] for text in often]
    wanted = [law[text] * count for text in often]
    seen, wanted = [*seen, count - sum(seen)], [*wanted, count - sum(wanted)]
    if wanted[-1] < 5:
        seen[-2:], wanted[-2:] = [sum(seen[-2:])], [sum(wanted[-2:])]
    return float(stats.chisquare(seen, wanted).pvalue)
