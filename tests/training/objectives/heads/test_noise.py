"""What training adds by chance: EAGLE's noise on features, Hydra++'s dropout."""

import jax.numpy as jnp
import numpy as np

from training.objectives.heads import eagle, hydra
from training.teacher import outputs

SHAPE = (8, 64, 32)


def batch(row: int = 0) -> dict:
    return {"row": jnp.arange(row, row + SHAPE[0], dtype=jnp.int32)}


def uniform(drawn, width: float) -> bool:
    """Whether numbers are of U(-width / 2, width / 2), as far as moments show.

    n = 4,096 or more: the mean to 5 of its deviations, the variance to 5 % (3 of its
    own or more); and no two rows or places are alike.
    """
    x = np.asarray(drawn, np.float64) / width
    rows = [row.tobytes() for row in x.reshape(-1, x.shape[-1])]
    return bool(
        np.abs(x).max() <= 0.5
        and np.abs(x).max() > 0.49
        and np.abs(x.mean()) < 5 * (12 * x.size) ** -0.5
        and np.abs(12 * x.var() - 1) < 0.05
        and len(set(rows)) == len(rows)
    )


def test_the_noise_of_features():
    """Centred, noise 512 / T wide, other in every place; the batch and seed decide."""
    for length in (64, 32):
        hidden = jnp.ones((SHAPE[0], length, SHAPE[2]))
        drawn = eagle.noisy(hidden, batch(), 0.2, 3) - hidden
        width = 0.2 * 512 / length
        assert uniform(drawn, width)
        assert not uniform(drawn, 0.2)  # planted: 512 / T forgotten
        assert not uniform(drawn + width / 2, width)  # planted: U[0, 1)
        same = jnp.broadcast_to(drawn[:1], drawn.shape)
        assert not uniform(same, width)  # planted: one draw for all rows
    again = eagle.noisy(hidden, batch(), 0.2, 3) - hidden
    np.testing.assert_array_equal(again, drawn)
    for other in ((batch(8), 0.2, 3), (batch(), 0.2, 4)):
        assert (np.asarray(eagle.noisy(hidden, *other) - hidden) != drawn).mean() > 0.99
    np.testing.assert_array_equal(eagle.noisy(hidden, batch(), 0.0, 3), hidden)


def test_the_noise_of_packed_conversations():
    """Each by its own length. Planted: the window's, for all of them."""
    hidden = jnp.ones(SHAPE)
    segments = jnp.broadcast_to(jnp.arange(SHAPE[1]) >= 16, SHAPE[:2]).astype(int)
    drawn = eagle.noisy(hidden, {**batch(), "segments": segments}, 0.2, 3) - hidden
    for part, length in ((drawn[:, :16], 16), (drawn[:, 16:], 48)):
        assert uniform(part, 0.2 * 512 / length)
        assert not uniform(part, 0.2 * 512 / SHAPE[1])


def kept(dropped, rate: float) -> bool:
    """Whether a share `rate` of ones is 0, to 5 deviations, the rest 1 / (1 - rate)."""
    x = np.asarray(dropped)
    share, error = (x == 0).mean(), (rate * (1 - rate) / x.size) ** 0.5
    rest = np.allclose(x[x != 0], 1 / (1 - rate))
    return bool(rest and np.abs(share - rate) < 5 * error)


def test_the_masks_of_dropout():
    """The mean stays; every block has a mask of its own, which the batch decides."""
    ones, rate = jnp.ones(SHAPE), 0.2
    places = outputs.numbered(SHAPE[:2])

    def masks(row: int, seed: int) -> list:
        drop = hydra.dropped(rate, seed, batch(row))
        return [np.asarray(drop(0, places, block, ones)) for block in range(2)]

    first, second = masks(0, 3)
    assert kept(first, rate) and kept(second, rate)
    assert not kept(first * (1 - rate), rate)  # planted: what is kept as it was
    assert not kept(first, 1 - rate)  # planted: the share that stays for that dropped
    both = 2 * rate * (1 - rate)  # the share of places in which two masks differ
    for other in (second, masks(8, 3)[0], masks(0, 4)[0], np.roll(first, 1, 1)):
        assert np.abs((first != other).mean() - both) < 0.02
    for again, mask in zip(masks(0, 3), (first, second)):
        np.testing.assert_array_equal(again, mask)
    # Planted: one number for all positions, which all get one mask.
    same = hydra.dropped(rate, 3, batch())(0, 0 * places, 0, ones)
    assert (np.roll(same, 1, 1) == same).all()
