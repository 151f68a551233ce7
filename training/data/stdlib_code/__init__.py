"""The `stdlib_code` data set; TFDS wants each builder in a package folder."""

from training.data.stdlib_code.stdlib_code import CONFIGS, WHOLE, StdlibCode

__all__ = ["CONFIGS", "WHOLE", "StdlibCode"]
