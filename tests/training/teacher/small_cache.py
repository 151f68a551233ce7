"""A stream of a few batches, and a request for a cache of it."""

import numpy as np

from models.heads import eagle3 as layer
from tests.decoding.drafters import agreement
from training.data import text_corpus
from training.teacher import sources

STEPS, BATCH, WINDOW, AT_ONCE = 4, 4, 12, 2
FLOAT = sources.Settings(dtype="float32", shard_rows=3)


def stream(seed: int = 0, epochs: int = 1, recut: bool = True) -> text_corpus.Stream:
    """`STEPS` batches of three documents, or of one that is read several times."""
    rng = np.random.default_rng(seed)
    size = STEPS * BATCH * WINDOW // epochs - 8
    count = 3 if epochs == 1 else 1
    documents = [rng.integers(1, agreement.VOCAB, size) for _ in range(count)]
    masks = [np.arange(len(d) + 1) % 5 > 0 for d in documents]
    stages = (text_corpus.Stage(STEPS, BATCH, WINDOW),)
    text = text_corpus.Corpus(documents, 0, masks)
    return text_corpus.Stream(text, stages, seed, numbered=True, recut=recut)


def lesson(folder, settings=FLOAT, text=None, lm=None, taps=None, **more):
    lm = lm or agreement.target()
    taps = layer.taps(lm.config) if taps is None else taps
    rows = text_corpus.DataIterator(text or stream())
    return sources.TeacherRequest(
        lm, rows, taps, settings, folder, None, AT_ONCE, **more
    )
