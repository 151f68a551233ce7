"""Independent samples of the toy model, and searches over them."""

import functools

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
