"""Overlap of texts: ROUGE-1 and BLEU with a reference, distinct n-grams of a set.

Lin, *ROUGE: A Package for Automatic Evaluation of Summaries*, 2004; Li, Galley,
Brockett, Gao, Dolan, *A Diversity-Promoting Objective Function for Neural Conversation
Models*, 2016, arXiv 1510.03055; Papineni, Roukos, Ward, Zhu, *BLEU: a Method for
Automatic Evaluation of Machine Translation*, 2002. Words are runs of letters and digits
in lower case, unstemmed; BLEU's are cased, and punctuation counts.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

WORD = re.compile(r"[a-z0-9]+")
PIECE = re.compile(r"\d+(?:[.,]\d+)*|[^\W_]+|[^\s\w]|_")  # a word, number or mark


def words(text: str) -> list[str]:
    """Split a text into its words."""
    return WORD.findall(text.lower())


def rouge_1(text: str, reference: str) -> float:
    """Return the F1 of the words in common, each as often as in both, in [0, 1]."""
    own, wanted = Counter(words(text)), Counter(words(reference))
    shared = (own & wanted).total()
    return 2 * shared / max(own.total() + wanted.total(), 1)


def bleu(text: str, reference: str, size: int = 4) -> float:
    """Return BLEU of one sentence against one reference, without smoothing.

    The geometric mean of the shares of n-grams, n = 1..`size`, that the reference has
    too, each as often at most; short texts are multiplied by exp(1 - r / c) of the
    lengths. A text without a common n-gram of some n has 0.
    """
    own, wanted = PIECE.findall(text), PIECE.findall(reference)
    logs = 0.0
    for n in range(1, size + 1):
        grams, known = (
            Counter(zip(*(found[i:] for i in range(n)))) for found in (own, wanted)
        )
        shared = (grams & known).total()
        if not shared:
            return 0.0
        logs += math.log(shared / grams.total()) / size
    return math.exp(logs + min(0.0, 1 - len(wanted) / len(own)))


def distinct(texts: Sequence[str], size: int) -> float:
    """Return the share of different n-grams of `size` words among all of the texts."""
    grams: list[tuple[str, ...]] = []
    for text in texts:
        found = words(text)
        grams += zip(*(found[i:] for i in range(size)))
    return len(set(grams)) / max(len(grams), 1)
