"""The `stdlib_code` data set; TFDS wants each builder in a package folder."""

from training.stdlib_code.stdlib_code import StdlibCode

__all__ = ["StdlibCode"]
