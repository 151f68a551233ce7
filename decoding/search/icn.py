"""In-context navigation (ICN): ask again for something else than what was written.

Peng, An, Shang, *Correlation and Navigation in the Vocabulary Key Representation Space
of Language Models*, 2025, arXiv 2410.02284, section 4. Tokens whose output embeddings
are like the best one's rank high whether they fit or not. So other answers are not
drawn from one law: the texts so far go into the prompt, which moves the query away.

    y_r = decode(x, "other than", E_r);    E_{r+1} = E_r + y_r if it is new,    E_1 = {}

r = 1 .. R -> rounds; the words in between -> words, between. Texts are the same if they
are but for case and white space. They come in the order in which they were written,
those that repeat another last; with a `pattern` by the votes for their answers, as in
`search/vote` (self-consistency).

Deviations: every text is written behind its whole prompt. The official code takes the
first token from there and writes the rest behind the first prompt. The words are ours;
a numbered list of quoted answers is the paper's form.
Cost: R calls of `generate`, one after the other, on prompts that grow.
"""

from collections.abc import Sequence
from typing import Any

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses.procedure import Generate, Procedure, collected, extended
from decoding.hypotheses.rank import Sample
from decoding.search import vote
from decoding.serving.output import Output
from models.errors import MethodError

CARD = Card(
    paper="In-context navigation, arXiv 2410.02284",
    guarantee=base.LOSSY,
    family="prompts",
    kind="procedure",
    needs=("tokenizer",),
    examples={"rounds": 3, "words": "b{explored}", "between": "c"},
    sources=("peng2025correlation",),
)

PLACE = "{explored}"


def procedure(
    tokenizer: Any,
    rounds: int = 4,
    words: str = "\n\nSomething other than {explored}:\n",
    between: str = ", ",
    pattern: str | None = None,
) -> Procedure:
    """Write `rounds` texts, each of which is asked to be another.

    Args:
        tokenizer: the target's.
        rounds: R, texts a prompt.
        words: follow the prompt from the second text on; `{explored}` stands for the
            texts so far.
        between: stands between these.
        pattern: a regex whose last match is a text's answer. None: texts are not
            ranked.
    """
    if rounds < 1:
        raise MethodError(f"rounds={rounds}: use at least 1")
    if PLACE not in words:
        raise MethodError(f"words={words!r} has no place for the texts: add {PLACE}")
    ranking = None if pattern is None else vote.rank(rounds, pattern)

    def run(generate: Generate, prompts: Sequence[Any]) -> Output:
        explored: list[dict[str, tuple[int, str]]] = [{} for _ in prompts]
        outputs = []
        for call in range(rounds):
            asked = [navigated(*pair) for pair in zip(prompts, explored)]
            outputs.append(generate(asked))
            for known, text in zip(explored, outputs[-1].texts or []):
                if shown := text.strip():
                    known.setdefault(normal(shown), (call, shown))
        orders = []
        for i, known in enumerate(explored):
            if ranking is not None:
                found = [_sample(output, i) for output in outputs]
                orders.append(ranking.order(found))
                continue
            new = [call for call, _ in known.values()]
            order = [*new, *sorted({*range(rounds)} - {*new})]
            orders.append([(call, 0.0 - at) for at, call in enumerate(order)])
        return collected(outputs, orders)

    def navigated(prompt: Any, known: dict[str, tuple[int, str]]) -> Any:
        if not known:
            return prompt
        listed = between.join(text for _, text in known.values())
        return extended(tokenizer, prompt, words.replace(PLACE, listed))

    return Procedure(rounds, run)


def normal(text: str) -> str:
    """Return a text without its case and with single spaces."""
    return " ".join(text.casefold().split())


def _sample(output: Output, i: int) -> Sample:
    assert output.texts is not None
    ended = output.finish_reason[i] != "length"
    return Sample(output.tokens[i], output.texts[i], output.logprobs[i], ended, i)
