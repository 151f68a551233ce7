"""The judge of classes, lame prompts, bodies of functions, and USCD's laws."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import uscd
from experiments.studies import sampler_streams

PROMPT = '''def add(x):
    """ Add one.
    >>> add(1)
    2

    More text.
    >>> add(2)
    3
    """
'''


def test_a_lame_prompt_has_no_examples():
    wanted = 'def add(x):\n    """ Add one.\n\n    More text.\n    """\n'
    assert sampler_streams.lame(PROMPT) == wanted
    assert sampler_streams.lame(wanted) == wanted


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("    return x + 1\n", True),
        ("    return x + 1\n\ndef other(y):\n    ret", True),
        ("    if x:\n        return 2\n    return (", True),  # the last line is cut
        ("    return (x\n    y = 2\n", False),
        ("    return x +\n\ndef other(y):\n", False),
        ("    # later\nx = 2\n", False),  # no statement
        ("", False),
    ],
)
def test_bodies_that_parse(text, good):
    assert sampler_streams.parses(PROMPT, text) == good
    assert sampler_streams.parses(PROMPT.rstrip(), "\n" + text) == good


def test_the_judge_tells_two_laws_of_tokens_apart():
    """200 tokens of each text; planted: a judge of one class read twice."""
    rng = np.random.default_rng(0)
    draw = lambda low, n: [rng.integers(low, low + 8, 200) for _ in range(n)]
    first, second = draw(0, 10), draw(4, 10)
    judge = sampler_streams.Judge(first, second)
    assert all(judge.odds(text) > 0 for text in draw(0, 5))
    assert all(judge.odds(text) < 0 for text in draw(4, 5))
    blind = sampler_streams.Judge(first, first)
    assert all(blind.odds(text) == 0 for text in draw(0, 5))


def test_laws_are_those_of_the_transform():
    """At two nodes, by hand: log(p - 0.7 q) where it is positive."""
    p = np.asarray([[0.3, 0.3, 0.2, 0.2], [0.97, 0.01, 0.01, 0.01]])
    q = np.asarray([[0.6, 0.2, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]])
    logs = [jnp.log(jnp.asarray(x, jnp.float32)) for x in (p, q)]
    found = np.exp(sampler_streams.laws(uscd.transform(), *logs, "lame"))
    left = np.asarray([0.0, 0.16, 0.13, 0.13])
    np.testing.assert_allclose(found[0], left / left.sum(), atol=1e-5)
    np.testing.assert_allclose(found[1], p[1], atol=1e-5)  # certain: as it is
    lost = np.exp(sampler_streams.laws(uscd.transform(), *logs, "other"))
    assert abs(lost[0] - found[0]).max() > 0.05  # planted: a stream it does not read


def test_slopes():
    rising = np.arange(50) * 0.02
    assert sampler_streams.slope(rising, 50) == pytest.approx(2.0)
    assert sampler_streams.slope(np.append(rising, [99.0]), 50) == pytest.approx(2.0)
    assert sampler_streams.slope(rising, 1) is None
