"""The small target and texts, for every test of a training."""

from tests.training.small_trainings import corpus, small  # noqa: F401
