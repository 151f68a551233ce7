"""The version. setup.py runs this file, so it imports nothing."""

__version__ = "0.1.0"
