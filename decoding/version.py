"""Hold the version; setup.py runs this file, which therefore imports nothing."""

__version__ = "0.1.0"
