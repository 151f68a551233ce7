"""Double Sparsity: label channels find the tokens; all of them find the exact ones."""

import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.caches import double_sparsity
from decoding.conformance import peaked
from models.errors import MethodError
from tests.decoding.caches import reading

pytestmark = pytest.mark.kv

K = 12
CHANNELS = (((0, 1, 2, 3),) * 2, ((1, 3, 5, 7), (0, 1, 4, 5)))
FIELDS = {"budget": K, "full": 1, "label_bits": 0}
SPEC = Spec("caches/double_sparsity", **FIELDS, group=2, channels=CHANNELS)
EXACT = Spec("caches/double_sparsity", **FIELDS, group=1)


def products(texts, g, query, count, channels):
    at = list(channels[1][g])
    q, k = texts.q[1][query, g][:, at], texts.k[1][:count, g][:, at]
    return (q @ k.T).max(0)


def reader(channels):
    def reads(texts, g, t):
        found = products(texts, g, t, t + 1, channels)
        found[t] = np.inf
        return reading.best(found, K)

    return reads


def test_label_channels_find_the_tokens():
    """Planted: the other head's channels."""
    assert reading.gap(SPEC, reader(CHANNELS)) < reading.CLOSE
    swapped = (CHANNELS[0], CHANNELS[1][::-1])
    assert reading.gap(SPEC, reader(swapped)) > 10 * reading.CLOSE


def test_all_channels_find_the_best_tokens():
    """group=1 is the exact choice; planted: half of the channels."""
    whole = ((range(8),) * 2,) * 2
    assert reading.gap(EXACT, reader(whole)) < reading.CLOSE
    assert reading.gap(EXACT, reader(CHANNELS)) > 10 * reading.CLOSE


def test_a_list_serves_eight_tokens():
    def select(texts, g, n):
        return reading.best(products(texts, g, n - 1, n, CHANNELS), K), n

    spec = Spec("caches/double_sparsity", **SPEC.arguments, refresh=8)
    assert reading.gap(spec, reading.listed(select, 8)) < reading.CLOSE
    assert reading.gap(spec, reading.listed(select, 4)) > 10 * reading.CLOSE


def test_codes_are_near():
    """Within half a step of 15; planted: the halves of a byte exchanged."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 2, 8)), jnp.float32)
    coded = {n: v.swapaxes(1, 2) for n, v in double_sparsity._coded(x).items()}
    near = double_sparsity._decoded(coded).swapaxes(1, 2)
    step = (x.max(-1) - x.min(-1))[..., None] / 15
    assert (abs(near - x) <= 0.5001 * step).all()
    halves = jnp.concatenate(jnp.split(near, 2, -1)[::-1], -1)
    assert not (abs(halves - x) <= 0.5001 * step).all()


@pytest.mark.long
def test_labels_of_four_bits_are_smaller():
    """A slot's 4 codes, and two floats, of a layer; planted: floats for codes."""

    def held(**changes):
        spec = Spec(SPEC.name, **{**SPEC.arguments, **changes})
        method = Method(policy=spec)
        out = decoding.generate(peaked.model(), peaked.PROMPTS, method, 2)
        return out.stats.kv_bytes

    whole, four, two = held(), held(label_bits=4), held(group=4)
    numbers = 2 * (4 - 2) * 4  # of 2 KV heads: 2 float32 of a slot, 2 channels' numbers
    slots = (whole - two - numbers) / numbers
    assert four - two == slots * 2 * (2 + 2 * 4 - 2 * 4) + numbers
    assert four - two != slots * 2 * (4 * 4 + 2 * 4 - 2 * 4) + numbers


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"group": 3}, "group=3, full=2, label_bits=4: use a divisor"),
        ({"label_bits": 2}, "label_bits=2: use"),
        ({"group": 8, "channels": CHANNELS}, "1 label channels of 4 bits"),
        ({"group": 4}, "2 of 8 channels and none named"),
        ({"group": 2, "channels": CHANNELS[:1]}, "of each of 2 layers and 2 KV heads"),
        ({"channels": "none.json"}, "does not exist: write it"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec(SPEC.name, **arguments).build({"model": peaked.functions()})
