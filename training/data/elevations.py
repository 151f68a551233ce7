"""Profiles of land: real numbers that come with an installed library.

matplotlib, which decodax requires, ships the heights of a piece of Tennessee (the
Jacksboro fault, 344 profiles of 403 points, whole metres). A profile is a series of
real-valued tokens. Heights are divided by the deviation of a step, and uniform noise of
a metre's width is added to each: the data are rounded, and a density would grow without
bound on a grid.
"""

from typing import NamedTuple

import numpy as np

from models.errors import DataError

FILE = "jacksboro_fault_dem.npz"
GAP = 8  # profiles between the two parts: neighbours are alike


class Profiles(NamedTuple):
    """Heights in units of `scale` metres, float32[rows, points]."""

    train: np.ndarray
    held: np.ndarray
    scale: float


def load(held: int = 64) -> Profiles:
    """Read the profiles; the last `held` are held out.

    Raises:
        DataError: matplotlib lacks the file, or `held` leaves nothing to train on.
    """
    from matplotlib import cbook

    try:
        with np.load(cbook.get_sample_data(FILE, asfileobj=False)) as data:
            heights = np.asarray(data["elevation"], np.float64)
    except (OSError, KeyError) as error:
        raise DataError(
            f"matplotlib's sample data have no {FILE} ({error}): install matplotlib "
            "with its sample data"
        ) from error
    last = len(heights) - held - GAP
    if held < 1 or last < 1:
        raise DataError(f"held={held}: use 1 to {len(heights) - GAP - 1} profiles")
    train = heights[:last]
    scale = float(np.diff(train, axis=1).std())
    rounded = lambda x: (x / scale).astype(np.float32)
    return Profiles(rounded(train), rounded(heights[-held:]), scale)


class Stream:
    """Batches of windows and next tokens; a function of seed and step.

    A batch has `window` float32[B, W, 1], `next` float32[B, 1] and `noise`
    float32[B, K, 2, 1], see `training/objectives/gaussian_series.py`.
    """

    def __init__(
        self, profiles: Profiles, window: int, steps: int, batch: int, seed: int
    ):
        self.profiles, self.window, self.steps = profiles, window, steps
        self.rows, self.seed, self.step = batch, seed, 0

    def __next__(self) -> dict[str, np.ndarray]:
        self.step += 1
        return self.batch(self.profiles.train, self.step)

    def state(self) -> dict[str, int]:
        return {"step": self.step}

    def restore(self, state: dict[str, int]) -> None:
        self.step = int(state["step"])

    def batch(self, heights: np.ndarray, step: int) -> dict[str, np.ndarray]:
        """Draw the batch of a step from profiles."""
        rng = np.random.default_rng([self.seed, step])
        rows = rng.integers(len(heights), size=self.rows)
        first = rng.integers(heights.shape[1] - self.window, size=self.rows)
        at = first[:, None] + np.arange(self.window + 1)
        text = heights[rows[:, None], at]
        text = text + (rng.random(text.shape) - 0.5) / self.profiles.scale
        noise = rng.normal(size=(self.rows, self.steps, 2, 1))
        text = text.astype(np.float32)[..., None]
        return {
            "window": text[:, :-1],
            "next": text[:, -1],
            "noise": noise.astype(np.float32),
        }
