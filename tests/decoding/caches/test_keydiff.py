"""KeyDiff: what it keeps is what NumPy keeps, by the cosine to the mean key."""

import numpy as np
import pytest

from decoding import Spec
from tests.decoding.caches import oracle

pytestmark = [pytest.mark.kv, pytest.mark.long]

ARGUMENTS = {"budget": 12, "every": 8, "prompt_every": 16}
SPEC = Spec("caches/keydiff", **ARGUMENTS)


def unlike_the_mean(heads, g, t, length):
    keys = heads.k[heads.kept[g], g]
    anchor = (keys / np.linalg.norm(keys, axis=-1, keepdims=True)).mean(0)
    key = heads.k[t, g]
    alike = key @ anchor / np.linalg.norm(key) / np.linalg.norm(anchor)
    return np.inf if t == length - 1 else -alike


def like_the_mean(heads, g, t, length):
    found = unlike_the_mean(heads, g, t, length)
    return found if t == length - 1 else -found


def test_it_keeps_keys_unlike_the_mean():
    """Three prompts; planted: the keys most like it."""
    assert oracle.differs(SPEC, unlike_the_mean, **ARGUMENTS) == 0
    assert oracle.differs(SPEC, like_the_mean, **ARGUMENTS) == 3
