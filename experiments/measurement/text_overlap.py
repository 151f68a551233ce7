"""Overlap of texts: ROUGE-1 with a reference, and distinct n-grams of a set.

Lin, *ROUGE: A Package for Automatic Evaluation of Summaries*, 2004; Li, Galley,
Brockett, Gao, Dolan, *A Diversity-Promoting Objective Function for Neural Conversation
Models*, 2016, arXiv 1510.03055. Words are runs of letters and digits in lower case,
unstemmed.
"""

import re
from collections import Counter
from collections.abc import Sequence

WORD = re.compile(r"[a-z0-9]+")


def words(text: str) -> list[str]:
    """Split a text into its words."""
    return WORD.findall(text.lower())


def rouge_1(text: str, reference: str) -> float:
    """Return the F1 of the words in common, each as often as in both, in [0, 1]."""
    own, wanted = Counter(words(text)), Counter(words(reference))
    shared = (own & wanted).total()
    return 2 * shared / max(own.total() + wanted.total(), 1)


def distinct(texts: Sequence[str], size: int) -> float:
    """Return the share of different n-grams of `size` words among all of the texts."""
    grams: list[tuple[str, ...]] = []
    for text in texts:
        found = words(text)
        grams += zip(*(found[i:] for i in range(size)))
    return len(set(grams)) / max(len(grams), 1)
