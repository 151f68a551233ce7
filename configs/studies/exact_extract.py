"""Does the most probable span of a passage answer better than greedy decoding?

exact-extract (arXiv 2108.05857): zero-shot it answers far better than greedy decoding;
with a few training examples greedy decoding comes close. Here `tiny` finishes lines of
held-out code whose rest stands in the text before them.

python -m experiments.run --config=configs/studies/exact_extract.py
    --workdir=runs/exact_extract

Hardware: a CPU, about three minutes. Expected: greedy's spans are never more probable
than the best; a model trained on such text is extractive most of the time; times grow
with the passage.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `exact_extract`."""
    c = ml_collections.ConfigDict()
    c.stage = "exact_extract"
    c.model = "tiny"
    c.seed = 0  # of the cuts
    c.cases = 120  # lines to finish
    c.per_file = 3  # of them, at most
    c.passages = (32, 64, 128)  # tokens before the cut that are the passage
    c.longest = 6  # tokens of a span
    c.repeats = 5  # of the times
    c.whole = 64  # longest passage whose spans of any length are timed
    return c
