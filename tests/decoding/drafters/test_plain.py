"""Plain decoding: the root alone, one token a call."""

from decoding import Method
from decoding.conformance import kit as conformance
from decoding.drafters import plain
from tests.decoding.drafters import kit


def test_the_tree_is_the_root():
    assert kit.drafts(plain.drafter(), [[4], [1, 2, 3]]) == [[], []]


def test_one_token_a_call():
    out = conformance.generate(Method())
    assert out.stats.tokens_per_call == 1.0
    assert out.stats.target_calls.tolist() == [len(t) for t in out.tokens]
    # Planted: a drafter that drafts would need fewer calls.
    drafted = conformance.generate(conformance.cases()["oracle-chain"])
    assert drafted.stats.tokens_per_call > 1.0
    assert {depth for row in out.origin for depth in row} == {0}
