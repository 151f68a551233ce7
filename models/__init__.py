"""Language models: loading, saving, and the block interface that decoding calls."""

from models.io import Loaded, load, save

__all__ = ["Loaded", "load", "save"]
