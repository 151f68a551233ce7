"""The grammar whose masks are timed: its vocabulary and its rows."""

import jax
import numpy as np
import pytest

from experiments.studies.kernels import mask_case
from models.errors import ConfigError

pytestmark = pytest.mark.kernels


def test_tokens_by_the_rule():
    """No token twice; 40 end a string. Planted: a stride with a factor of 26."""
    tokens = mask_case.vocabulary(2000, 40)
    assert len(tokens) == 2000 and tokens[-1] == b""
    assert len(set(tokens)) == 2000
    inner = [token.partition(b'"') for token in tokens]
    assert sum(len(a) == mask_case.WORD and b != b"" for a, b, _ in inner) == 40
    assert mask_case.vocabulary(3000, 40)[:1999] == tokens[:-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mask_case, "STRIDE", 26**4)
        assert len(set(mask_case.vocabulary(2000, 40))) < 2000
    with pytest.raises(ConfigError, match="1000 tokens with 40 endings: use at least"):
        mask_case.vocabulary(1000, 40)


def test_a_text_is_spelled_by_the_longest_tokens():
    tokens = [b"a", b"b", b"ab", b"", b"abba"]
    assert mask_case.spelled(tokens, b"abbabab") == [4, 1, 2]


def test_each_row_allows_the_next_token_of_the_text():
    """Planted: the tokens, one place further."""
    case = mask_case.case(2048, 40)
    tokens = mask_case.vocabulary(2048, 40)
    ids = np.array(mask_case.spelled(tokens, mask_case.TEXT.encode()))
    allowed = np.asarray(jax.jit(mask_case.masks)(case.tables, case.rows))
    steps = np.arange(len(ids))
    assert allowed.shape == (len(ids), 2048)
    assert allowed[steps, ids].all()
    assert not allowed[steps[:-1], ids[1:]].all()
    assert 40 <= case.ends <= 60 and case.size == 2048
    # Batches are rows of the text, those of all batches from its beginning to its end.
    batches = case.batches(8, 4)
    states = np.concatenate([np.asarray(batch.state) for batch in batches])
    every = np.asarray(case.rows.state)
    assert len(batches) == 4 and states.shape == (32,)
    assert {every[0], every[-1]} <= set(states) <= set(every)
