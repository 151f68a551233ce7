"""The exceptions of the project: each message names the bad value and the remedy."""

import difflib
from collections.abc import Iterable, Mapping


class DecodaxError(Exception):
    """Base of every error that decodax raises on purpose."""


class ConfigError(DecodaxError, ValueError):
    """A model, experiment or training configuration that cannot be used."""


class CheckpointError(DecodaxError, ValueError):
    """Weights, tokenizers or training states on disk that cannot be used."""


class PromptError(DecodaxError, ValueError):
    """A prompt or decoding request that cannot be served."""


class MethodError(DecodaxError, ValueError):
    """An unknown method, a wrong argument, or parts that cannot be combined."""


class ConstraintError(DecodaxError, ValueError):
    """A constraint that does not compile or that no token sequence satisfies."""


class DataError(DecodaxError, ValueError):
    """Training or evaluation data that cannot be used."""


class TrainingError(DecodaxError, RuntimeError):
    """A training run that cannot continue; the last good checkpoint is named."""


def hint(
    word: object, words: Iterable[str], meaning: Mapping[str, str] | None = None
) -> str:
    """Return " (did you mean 'x'?)" for the nearest of `words`, or "".

    x is the word, or what it stands for in `meaning`.
    """
    close = difflib.get_close_matches(str(word), list(words), 1)
    if not close:
        return ""
    meant = meaning[close[0]] if meaning else close[0]
    return f" (did you mean {meant!r}?)"
