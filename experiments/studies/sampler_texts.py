"""What the study `samplers` is made of: prompts, texts, their figures, and pairs.

A seed draws prompts of its own and noise of its own. All arms of a part decode the same
prompts under the same seeds, so a difference of two arms is taken prompt by prompt.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import decoding
import models
from decoding import base
from decoding.loops import stats
from decoding.serving import scoring
from models import storage, transformer
from training.data import documents, file_groups

Figures = dict[str, list[float | None]]  # a figure of every text; None: it has none
Arms = dict[str, Figures]


class Direction(NamedTuple):
    """A claim: `figure` is greater in the arm `more` than in the arm `less`."""

    claim: str
    figure: str
    more: str
    less: str


class Column(NamedTuple):
    """A column of a part's table."""

    figure: str
    head: str
    form: str = ".3f"


class Part(NamedTuple):
    """A claim of a paper, and how it is measured.

    Attributes:
        title: heading of its table.
        models: fields of the config that name its models.
        data: folders that it reads beneath `config.data`.
        measure: study -> {"arms": Arms, ...}, as JSON holds it.
        columns: of its table, a line an arm.
        directions: config -> its claims.
        notes: measurements -> sentences below the table.
    """

    title: str
    models: tuple[str, ...]
    data: tuple[str, ...]
    measure: Callable[["Study"], dict[str, Any]]
    columns: Sequence[Column]
    directions: Callable[[Any], Sequence[Direction]]
    notes: Callable[[dict[str, Any]], list[str]]


class Text(NamedTuple):
    """A generated text."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]  # under the target's raw law
    nodes: float  # that the target ran, a token
    best: list[int] | None  # the raw law's most probable token in each place


class Study:
    """The config, the run's folder, and the models and texts that parts share."""

    def __init__(self, config: Any, folder: storage.Path, lm: Any = None):
        self.config, self.folder = config, folder
        self._read: dict[tuple, list[str]] = {}
        self.model: Callable[[str], Any] = functools.cache(
            lambda field: lm or models.load(config[field])
        )

    @property
    def count(self) -> int:
        """Number of texts of an arm."""
        return self.config.seeds * self.config.prompts

    def noise(self, row: int) -> int:
        """Return the seed of text `row`."""
        number = row // self.config.prompts
        return 1000 * (self.config.seed + number) + row % self.config.prompts

    def documents(self, part: Mapping[str, Any], split: str) -> list[str]:
        """Read the documents of a part of a training recipe's data; "": all of them.

        Those of the training split are shuffled, so that some of them stand for all.
        """
        c = self.config
        read = file_groups.Part(**{**part, "fields": tuple(part.get("fields", ()))})
        if (read, split) in self._read:
            return self._read[read, split]
        if split:
            texts = file_groups.texts(c.data, [read], split, c.held)
            texts = [text.removeprefix(read.before) for text in texts]
        else:
            texts = [text for text in file_groups.documents(c.data, read) if text]
        if split == "train":
            np.random.default_rng(c.seed).shuffle(texts)
        self._read[read, split] = texts
        return texts

    def encoded(
        self, part: Mapping[str, Any], split: str, most: int | None = None
    ) -> Iterator[np.ndarray]:
        """Yield the first `most` documents as tokens of the text model, int32[n]."""
        encode = self.model("text_model").tokenizer.encode
        for text in self.documents(part, split)[:most]:
            yield np.asarray(encode(text), np.int32)

    def novels(self, size: int, split: str = "validation") -> list[list[int]]:
        """Draw passages of `size` tokens of chapters, `prompts` for every seed."""
        most = self.count if split == "train" else None
        return self.passages([*self.encoded(self.config.novels, split, most)], size)

    def passages(self, texts: Sequence[np.ndarray], size: int) -> list[list[int]]:
        """Draw passages of `size` tokens, `prompts` for every seed."""
        c = self.config
        return [
            passage.tolist()
            for number in range(c.seeds)
            for passage in documents.random_passages(
                texts, c.prompts, size, c.seed + number
            )
        ]

    def generate(
        self,
        lm: Any,
        prompts: Sequence[list[int]],
        new: int,
        streams: base.Streams | None = None,
        **settings: Any,
    ) -> list[Text]:
        """Decode all prompts in batches of one shape, one text each."""
        size = min(self.config.batch, len(prompts))
        texts: list[Text] = []
        for first in range(0, len(prompts), size):
            rows = [min(first + i, len(prompts) - 1) for i in range(size)]
            out = decoding.generate(
                lm,
                [prompts[row] for row in rows],
                max_new_tokens=new,
                seed=[self.noise(row) for row in rows],
                streams=_of_rows(streams, rows),
                width="paper",
                **settings,
            )
            nodes = out.stats.nodes_run
            nodes = out.stats.target_calls if nodes is None else nodes
            best = out.top_logprobs or [None] * size
            for i in range(min(size, len(prompts) - first)):
                tokens = out.tokens[i]
                texts.append(
                    Text(
                        prompts[rows[i]],
                        tokens,
                        out.logprobs[i],
                        float(nodes[i]) / max(len(tokens), 1),
                        best[i] and [place[0][0] for place in best[i]],
                    )
                )
        return texts


def _of_rows(streams: base.Streams | None, rows: Sequence[int]) -> Any:
    """Return the streams with the prompts of the chosen rows."""
    chosen = {}
    for name, stream in (streams or {}).items():
        if isinstance(stream, base.Stream) and stream.prompts is not None:
            stream = stream._replace(prompts=[stream.prompts[row] for row in rows])
        chosen[name] = stream
    return chosen


def figures(texts: Sequence[Text], *names: str) -> Figures:
    """Compute the named figures of every text."""
    return {name: [FIGURES[name](text) for text in texts] for name in names}


def bits(text: Text) -> float | None:
    """Return the mean surprise of a token under the raw law, in bits."""
    return _surprise(text.logprobs) if text.logprobs else None


def late(text: Text) -> float | None:
    """Return the mean surprise of the second half."""
    half = text.logprobs[len(text.logprobs) // 2 :]
    return _surprise(half) if half else None


def drift(text: Text) -> float | None:
    """Return the distance of the second half's mean surprise from the first's."""
    half = len(text.logprobs) // 2
    if not half:
        return None
    return abs(_surprise(text.logprobs[half:]) - _surprise(text.logprobs[:half]))


def _surprise(logprobs: Sequence[float]) -> float:
    return float(-np.mean(logprobs)) / math.log(2)


def repeated(text: Text, n: int = 4) -> float | None:
    """Return the share of n-grams that the text has had before."""
    grams = _grams(text.tokens, n)
    return 1 - len(set(grams)) / len(grams) if grams else None


def distinct(text: Text, n: int = 2) -> float | None:
    """Return different n-grams ÷ n-grams."""
    grams = _grams(text.tokens, n)
    return len(set(grams)) / len(grams) if grams else None


def suffix(text: Text) -> float | None:
    """Return the mean length of the longest suffix that prompt or text had before."""
    tokens = np.asarray([*text.prompt, *text.tokens])
    lengths, means = np.zeros(len(tokens), int), []
    for i in range(1, len(tokens)):
        # lengths[j]: of the common suffix of the tokens up to j and up to i, j < i.
        same = tokens[:i] == tokens[i]
        lengths[:i] = np.where(same, np.append(0, lengths[: i - 1]) + 1, 0)
        means.append(lengths[:i].max())
    own = means[len(text.prompt) - 1 :]
    return float(np.mean(own)) if own else None


def _grams(tokens: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]


def _top(text: Text) -> float | None:
    if not text.tokens or text.best is None:
        return None
    return float(np.mean(np.asarray(text.tokens) == np.asarray(text.best)))


FIGURES: dict[str, Callable[[Text], float | None]] = {
    "bits": bits,
    "late": late,
    "drift": drift,
    "repeated": repeated,
    "distinct": distinct,
    "suffix": suffix,
    "loops": lambda text: stats.loop_share(text.tokens),
    "nodes": lambda text: text.nodes,
    "top": _top,
    "total": lambda text: float(np.sum(text.logprobs)),
}


def nats(lm: Any, texts: Sequence[Text], size: int, rows: int) -> list[float | None]:
    """Return the mean loss of each text, by passes of the target over them.

    Args:
        lm: the model.
        texts: their log-probabilities are not read.
        size: tokens of a pass: those of the longest prompt and text, or more.
        rows: texts of a pass.
    """
    losses: list[float | None] = []
    for first in range(0, len(texts), rows):
        part = texts[first : first + rows]
        tokens = np.zeros((rows, size), np.int32)
        length = np.ones(rows, np.int32)
        for i, text in enumerate(part):
            length[i] = len(text.prompt) + len(text.tokens)
            tokens[i, : length[i]] = [*text.prompt, *text.tokens]
        scores = scoring.score(
            lm.model, lm.params, jnp.asarray(tokens), jnp.asarray(length), 0
        )
        for i, text in enumerate(part):
            given = scores.logprobs[i, len(text.prompt) : length[i]]
            losses.append(-float(given.mean()) if len(given) else None)
    return losses


@functools.cache
def forward(config: Any, taps: tuple = ()) -> Callable[..., Any]:
    """Compile a pass (params, tokens int32[B, T]) -> `ModelOutput`."""
    return jax.jit(
        lambda params, tokens: transformer.forward(config, params, tokens, taps=taps)
    )


def gap(arms: Arms, direction: Direction) -> tuple[float, float, int]:
    """Return (mean of the paired differences, 95 % margin, number of pairs)."""
    more = arms[direction.more][direction.figure]
    less = arms[direction.less][direction.figure]
    pairs = [a - b for a, b in zip(more, less) if a is not None and b is not None]
    if not pairs:
        return 0.0, math.inf, 0
    if len(pairs) == 1:
        return pairs[0], math.inf, 1
    margin = 1.96 * float(np.std(pairs, ddof=1)) / math.sqrt(len(pairs))
    return float(np.mean(pairs)), margin, len(pairs)


def holds(mean: float, margin: float) -> str:
    """Judge a difference by its interval."""
    return "yes" if mean > margin else "no" if mean < -margin else "even"


def of_directions(
    found: Mapping[str, Any], parts: Mapping[str, Part], config: Any
) -> dict[str, Any]:
    """Make the table of all claims, a line each."""
    lines = []
    for name, part in found.items():
        for direction in parts[name].directions(config):
            mean, margin, pairs = gap(part["arms"], direction)
            lines.append(
                [
                    *(name, direction.claim, direction.figure),
                    f"{direction.more} − {direction.less}",
                    f"{mean:+.3f} ± {margin:.3f}",
                    *(str(pairs), holds(mean, margin)),
                ]
            )
    return {
        "title": "Directions",
        "heads": ["part", "claim", "figure", "arms", "difference", "pairs", "holds"],
        "lines": lines,
        "notes": [
            "Differences of two arms on the same prompts and seeds, ± 95 % over "
            "prompts; even: the interval holds 0. Prompts of one document are counted "
            "as independent. In the tables below ± is 95 % over an arm's texts, which "
            "holds what prompts differ by too."
        ],
    }


def of_part(part: Part, measured: dict[str, Any]) -> dict[str, Any]:
    """Make the table of a part, a line an arm."""
    lines = []
    for name, arm in measured["arms"].items():
        cells = []
        for column in part.columns:
            values = [x for x in arm.get(column.figure, ()) if x is not None]
            if not values:
                cells.append("–")
                continue
            error = 1.96 * np.std(values) / math.sqrt(len(values))
            mean = f"{np.mean(values):{column.form}}"
            cells.append(f"{mean} ± {error:{column.form}}")
        lines.append([name, *cells])
    return {
        "title": part.title,
        "heads": ["arm", *(column.head for column in part.columns)],
        "lines": lines,
        "notes": part.notes(measured),
    }
