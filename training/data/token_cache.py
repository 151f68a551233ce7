"""Raw texts as tokens, kept on disk under a hash of tokenizer and texts."""

import hashlib

import numpy as np
import tokenizers

from models import storage
from training import progress_lines
from training.data import train_bpe


def encoded(
    tokenizer: tokenizers.Tokenizer, texts: list[str], folder: storage.Path
) -> list[np.ndarray]:
    """Tokenise texts, or read their tokens from `folder`.

    Returns int32[n] for each text.
    """
    digest = hashlib.sha256(tokenizer.to_str().encode())
    for text in texts:
        digest.update(text.encode() + b"\0")
    path = folder / f"tokens-{digest.hexdigest()[:16]}.npz"
    if path.exists():
        with storage.local_copy(path) as copy, np.load(copy) as arrays:
            return np.split(arrays["flat"], arrays["ends"][:-1])
    encoding = train_bpe.encode(tokenizer, texts)
    documents = list(progress_lines.counted(encoding, "tokenising texts", len(texts)))
    ends = np.cumsum([len(d) for d in documents])
    with storage.new_file(path) as part, part.open("wb") as file:
        np.savez(file, flat=np.concatenate(documents), ends=ends)
    return documents
