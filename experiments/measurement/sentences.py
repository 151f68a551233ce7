"""A finite language under a law that is known in full, to hold samplers to.

Seventeen words, the last of which ends a sentence: determiners, nouns, verbs, adverbs
and nine words of no class. The law of the next word is a function of the whole prefix,
drawn by its hash. So every mass behind a prefix can be summed.
"""

import functools
import itertools
import re
from collections.abc import Sequence

import numpy as np

from decoding.automata.mass_trie import MassTrie

WORDS, END = 17, 16
CLASSES = {"d": (0, 1), "n": (2, 3, 4), "v": (5, 6), "a": (7, 8)}
LONGEST = 4  # words of a sentence, without END
# Form, deviation of the logits, and what is added to those of allowed words.
USUAL = ("d?nv", 1.0, 2.0)

Text = tuple[int, ...]
Drawn = tuple[Text, list[float], list[float]]  # words, log p and log Z of each


class Sentences:
    """The sentences whose classes match a form, and a law of the next word."""

    def __init__(self, form: str, spread: float, preference: float, seed: int = 7):
        """List the sentences.

        Args:
            form: a regex over the classes d, n, v and a.
            spread: deviation of the logits.
            preference: added to the logits of words that the form allows.
            seed: of the law.
        """
        classes = ("".join(c) for k in range(1, LONGEST + 1) for c in _words("dnva", k))
        forms = [c for c in classes if re.fullmatch(form, c)]
        words = (itertools.product(*(CLASSES[c] for c in named)) for named in forms)
        self.texts: list[Text] = [(*text, END) for of_form in words for text in of_form]
        following: dict[Text, set[int]] = {}
        for text in self.texts:
            for i, word in enumerate(text):
                following.setdefault(text[:i], set()).add(word)
        self.allowed = {u: np.array(sorted(v)) for u, v in following.items()}
        self._numbers = (spread, preference, seed)
        self.law = functools.cache(self._law)
        self.future = functools.cache(self._future)

    def _law(self, prefix: Text) -> np.ndarray:
        """Return log p of the next word, float64[17]."""
        spread, preference, seed = self._numbers
        logits = np.random.default_rng([seed, *prefix]).normal(size=WORDS) * spread
        logits[self.allowed[prefix]] += preference
        return logits - np.log(np.exp(logits).sum())

    def mass(self, prefix: Text) -> float:
        """Return log Z of a prefix."""
        return float(np.log(np.exp(self.law(prefix)[self.allowed[prefix]]).sum()))

    def _future(self, prefix: Text) -> float:
        """Return the probability that a text which begins so is a sentence."""
        if prefix[-1:] == (END,):
            return 1.0
        law = self.law(prefix)
        return sum(
            np.exp(law[w]) * self.future((*prefix, int(w)))
            for w in self.allowed[prefix]
        )

    def conditional(self) -> np.ndarray:
        """Return p(. | a sentence), by text."""
        logs = [
            sum(self.law(text[:i])[word] for i, word in enumerate(text))
            for text in self.texts
        ]
        return np.exp(logs) / self.future(())

    def _weights(self, trie: MassTrie, prefix: Text) -> np.ndarray:
        """Return ASAp's law of the allowed words, float64[A]."""
        children = trie.children[trie.node(0, prefix)]
        allowed = self.allowed[prefix]
        bound = [trie.bound[children.get(int(word), 0)] for word in allowed]
        weights = np.exp(self.law(prefix)[allowed] + bound)
        return weights / weights.sum()

    def next_law(self, trie: MassTrie) -> np.ndarray:
        """Return the law of ASAp's next text, by text."""
        steps = {
            prefix: dict(
                zip(self.allowed[prefix].tolist(), self._weights(trie, prefix))
            )
            for prefix in self.allowed
        }
        return np.array(
            [np.prod([steps[t[:i]][w] for i, w in enumerate(t)]) for t in self.texts]
        )

    def draw(self, trie: MassTrie, rng: np.random.Generator) -> Drawn:
        """Draw ASAp's next text."""
        text: Text = ()
        logprobs, masses = [], []
        while text[-1:] != (END,):
            word = int(rng.choice(self.allowed[text], p=self._weights(trie, text)))
            logprobs.append(float(self.law(text)[word]))
            masses.append(self.mass(text))
            text = (*text, word)
        return text, logprobs, masses

    def distance(self, trie: MassTrie) -> float:
        """Return the total variation of the next text from the conditional law."""
        return float(np.abs(self.next_law(trie) - self.conditional()).sum() / 2)


def _words(letters: str, size: int) -> Sequence[tuple[str, ...]]:
    return list(itertools.product(letters, repeat=size))
