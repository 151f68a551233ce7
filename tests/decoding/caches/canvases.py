"""Texts under the cache policies of canvases, beside those of the plain-Python loop."""

from tests.decoding.diffusion import writing


def differs(policy, other, alignment="same", **settings):
    """Check a policy against its oracle; whether another policy has other texts."""
    lm = writing.lm(alignment, eos=(), scale=2.0)
    out, rule = writing.written(lm, policy=policy), writing.single
    assert writing.same(out, writing.expected(lm, rule, policy=policy, **settings))
    return not writing.same(out, writing.expected(lm, rule, policy=other))
