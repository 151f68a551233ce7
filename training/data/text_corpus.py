"""Documents in, batches of fixed windows out: deterministic, seekable, exact to resume.

A stream is a pure function of a step: batch `i` is computed from the corpus, the seed
and `i` alone, by an index into a permutation per epoch. Hence the state of an iterator
is one integer, and every process can compute its own rows of the same global batch. A
longer schedule leaves the batches of a shorter one as they were.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models.errors import DataError
from training.data import copy_augmentation, planted_facts, whole_documents

Batch = dict[str, np.ndarray]


class Corpus:
    """Tokenised documents in one flat array; document `i` is `flat[ends[i-1]:ends[i]]`.

    Each document ends with the separator, so that any window of the concatenation can
    be used. `masks` bool[len(document) + 1] mark the tokens of a document, and the
    separator after it, that may be predicted.
    """

    def __init__(
        self,
        documents: Sequence[np.ndarray],
        separator: int,
        masks: Sequence[np.ndarray] | None = None,
    ):
        if not documents:
            raise DataError("a corpus needs at least one document")
        tail = np.asarray([separator], np.int32)
        self.separator = separator
        self.flat = np.concatenate([x for d in documents for x in (d, tail)])
        self.flat = self.flat.astype(np.int32)
        self.ends = np.cumsum([len(d) + 1 for d in documents])
        digest = hashlib.sha256(self.flat.tobytes())
        self.mask: np.ndarray | None = None
        if masks is not None:
            if [len(m) for m in masks] != [len(d) + 1 for d in documents]:
                raise DataError(
                    "masks and documents disagree in size: a mask needs an entry for "
                    "each token of its document and one for the separator"
                )
            self.mask = np.concatenate(list(masks)).astype(bool)
            if not self.mask.any():
                raise DataError(
                    "the masks are all zero, so that no token may be predicted: check "
                    "roles and chat template with "
                    "python -m training.data.inspect_conversations"
                )
            digest.update(self.mask.tobytes())
        self.digest = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.flat)

    @functools.cached_property
    def begins(self) -> np.ndarray:
        """Mark the first token of each document: bool[len(self)]."""
        marks = np.zeros(len(self.flat), bool)
        marks[np.concatenate([[0], self.ends[:-1]])] = True
        return marks

    def shuffled(
        self, rng: np.random.Generator, flat: np.ndarray | None = None
    ) -> np.ndarray:
        """Concatenate the documents in a random order; or the same parts of `flat`."""
        flat = self.flat if flat is None else flat
        starts = np.concatenate([[0], self.ends[:-1]])
        order = rng.permutation(len(self.ends))
        return np.concatenate([flat[starts[i] : self.ends[i]] for i in order])


@dataclass(frozen=True)
class Stage:
    """`steps` batches of `batch` windows of `window` + 1 tokens."""

    steps: int
    batch: int
    window: int

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "window"):
            if getattr(self, name) < 1:
                raise DataError(f"{name}={getattr(self, name)}: must be at least 1")


@dataclass(frozen=True)
class Stream:
    """Batches of packed windows, stage after stage; `batch(i)` is pure.

    A batch holds

        tokens     int32[rows, window + 1]
        segments   int32[rows, window + 1], where `segments` or `whole` is set: the
                   numbers of a window's documents. They follow the documents' ends,
                   not the separator, which ends every turn of many chat templates
        row        int32[rows], where `numbered` is set: a row's number in the whole
                   stream, for the noise of an objective
        loss_mask  bool[rows, window + 1], where the corpus has masks, or `whole` or
                   `mixture` is set

    Every epoch cuts the text at new places. With `recut` off, later epochs show the
    first epoch's windows in another order, and a cache of those windows suffices. With
    `whole` a window holds whole documents (`training/data/whole_documents.py`), all
    epochs the same ones. With a `mixture` windows hold planted facts or several short
    texts, and `segments` keep these apart.
    """

    corpus: Corpus
    stages: tuple[Stage, ...]
    seed: int = 0
    repeats: copy_augmentation.Repeats | None = None
    segments: bool = False
    numbered: bool = False
    recut: bool = True
    whole: bool = False
    mixture: planted_facts.Mixture | None = None
    _packed: Callable = field(init=False, repr=False, compare=False)
    _epochs: Callable = field(init=False, repr=False, compare=False)
    _marks: Callable = field(init=False, repr=False, compare=False)
    _orders: Callable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        longest = max(stage.window for stage in self.stages)
        if len(self.corpus) <= longest + 1 and not self.whole:
            raise DataError(
                f"the corpus has {len(self.corpus)} tokens, but a window needs "
                f"{longest + 2}: use shorter windows or more text"
            )
        if self.corpus.mask is not None and self.repeats is not None:
            raise DataError(
                "repeats rewrite windows, so that masks no longer fit them: use "
                "repeat_share=0 or text without masks"
            )
        if (self.segments or self.whole) and self.repeats is not None:
            raise DataError(
                "repeats rewrite windows, so that documents end elsewhere: use "
                "repeat_share=0, or segments=False and whole=False"
            )
        if self.mixture and (
            self.segments or self.whole or self.corpus.mask is not None
        ):
            raise DataError(
                "a mixture rewrites windows, so that masks and documents no longer fit "
                "them: use segments=False, whole=False and text without masks"
            )
        cached = functools.lru_cache(maxsize=2)(self._epoch)
        object.__setattr__(self, "_epochs", cached)
        marks = functools.lru_cache(maxsize=4)(self._mark)
        object.__setattr__(self, "_marks", marks)
        orders = functools.lru_cache(maxsize=2)(self._order)
        object.__setattr__(self, "_orders", orders)
        packed = functools.lru_cache(maxsize=2)(self._pack)
        object.__setattr__(self, "_packed", packed)

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    @property
    def fingerprint(self) -> str:
        """Identify the data: resuming requires the same corpus, seed and options."""
        once = "/whole" if self.whole else "" if self.recut else "/cut once"
        mixed = f"/facts={self.mixture.share}" if self.mixture else ""
        return (
            f"{self.corpus.digest}/seed={self.seed}/repeats={self.repeats_share}{once}"
            f"{mixed}"
        )

    @property
    def masked(self) -> bool:
        """Return whether batches hold a loss mask."""
        return bool(self.whole or self.mixture or self.corpus.mask is not None)

    @property
    def repeats_share(self) -> float:
        return self.repeats.share if self.repeats else 0.0

    def locate(self, step: int) -> tuple[int, int]:
        """Return (stage, step within the stage) of a global step."""
        if not 0 <= step < self.steps:
            raise DataError(f"step {step} is outside the stream's {self.steps} steps")
        number = 0
        while step >= self.stages[number].steps:
            step -= self.stages[number].steps
            number += 1
        return number, step

    def batch(self, step: int, process: int = 0, processes: int = 1) -> Batch:
        """Return the rows of batch `step` for `process`: a contiguous slice."""
        number, rows = self._rows(step, process, processes)
        batch = self.windows(self.numbers(step, process, processes), number)
        if self.numbered:
            before = sum(s.steps * s.batch for s in self.stages[:number])
            batch["row"] = np.asarray(rows, np.int32) + np.int32(before)
        return batch

    def numbers(self, step: int, process: int = 0, processes: int = 1) -> list[int]:
        """Return the numbers of the windows in those rows of a batch.

        Equal numbers are equal windows: there are `distinct` of them.
        """
        number, rows = self._rows(step, process, processes)
        if self.recut and not self.whole:
            return list(rows)
        chosen = []
        for row in rows:
            epoch, place = self._place(number, row)
            chosen.append(int(self._orders(number, epoch)[place]) if epoch else row)
        return chosen

    @property
    def distinct(self) -> int:
        """Count the different windows of the first stage."""
        rows = self.stages[0].steps * self.stages[0].batch
        fresh = self.recut and not self.whole
        return rows if fresh else min(rows, self._count(0))

    def windows(self, numbers: Sequence[int], stage: int = 0) -> Batch:
        """Return the windows of these numbers, one a row."""
        if self.whole or self.mixture:
            make = self._whole if self.whole else self._mixed
            rows = [make(stage, i) for i in numbers]
            return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        batch = {"tokens": np.stack([self._window(stage, i) for i in numbers])}
        if self.segments:
            begins = np.stack([self._marked(stage, i, "begins") for i in numbers])
            begins[:, 0] = False
            batch["segments"] = begins.cumsum(1, np.int32)
        if self.corpus.mask is not None:
            masks = [self._marked(stage, i, "mask") for i in numbers]
            batch["loss_mask"] = np.stack(masks)
        return batch

    def _rows(self, step: int, process: int, processes: int) -> tuple[int, range]:
        """Return the stage of a batch, and the rows there that `process` reads."""
        number, local = self.locate(step)
        size = self.stages[number].batch
        if size % processes:
            raise DataError(
                f"batch={size} is no multiple of {processes} processes: use a multiple"
            )
        share = size // processes
        first = local * size + process * share
        return number, range(first, first + share)

    def _order(self, stage: int, epoch: int) -> np.ndarray:
        """Return the order in which a later epoch shows the first epoch's windows."""
        rng = np.random.default_rng([self.seed, stage, epoch])
        return rng.permutation(self._count(stage))

    def _count(self, stage: int) -> int:
        """Count the windows of an epoch."""
        if self.whole:
            return len(self._packed(stage))
        return (len(self.corpus) - 1) // self.stages[stage].window

    def _pack(self, stage: int) -> list[list[int]]:
        """Choose the documents of every window."""
        room, seed = self.stages[stage].window + 1, [self.seed, stage]
        lengths = np.diff(self.corpus.ends, prepend=0).tolist()
        return whole_documents.pack(lengths, room, seed)

    def _whole(self, stage: int, index: int) -> Batch:
        """Return the window `index` of whole documents."""
        corpus, parts = self.corpus, []
        for document in self._packed(stage)[index]:
            start = corpus.ends[document - 1] if document else 0
            place = slice(start, corpus.ends[document])
            tokens = corpus.flat[place]
            learned = np.ones(len(tokens), bool)
            if corpus.mask is not None:
                learned = corpus.mask[place]
            parts.append((tokens, learned))
        room = self.stages[stage].window + 1
        return whole_documents.row(parts, room, corpus.separator)

    def _epoch(self, stage: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the documents in an epoch's order, and its shuffled window starts."""
        rng = np.random.default_rng([self.seed, stage, epoch])
        flat = self.corpus.shuffled(rng)
        window = self.stages[stage].window
        count = (len(flat) - 1) // window
        offset = rng.integers((len(flat) - 1) % window + 1)
        return flat, offset + window * rng.permutation(count)

    def _mark(self, stage: int, epoch: int, name: str) -> np.ndarray:
        """Return the corpus' marks `name`, a bool a token, in the order of `_epoch`."""
        rng = np.random.default_rng([self.seed, stage, epoch])
        return self.corpus.shuffled(rng, getattr(self.corpus, name))

    def _place(self, stage: int, index: int) -> tuple[int, int]:
        """Return the epoch of a window, and its place there."""
        return divmod(index, self._count(stage))

    def _marked(self, stage: int, index: int, name: str) -> np.ndarray:
        epoch, place = self._place(stage, index)
        start = self._epochs(stage, epoch)[1][place]
        window = self.stages[stage].window
        return self._marks(stage, epoch, name)[start : start + window + 1]

    def _plain(self, stage: int, index: int) -> tuple[np.ndarray, np.random.Generator]:
        """Return a window of the text, and the randomness to rewrite it with."""
        window = self.stages[stage].window
        epoch, place = self._place(stage, index)
        flat, starts = self._epochs(stage, epoch)
        tokens = flat[starts[place] : starts[place] + window + 1]
        return tokens, np.random.default_rng([self.seed, stage, epoch, place])

    def _mixed(self, stage: int, index: int) -> Batch:
        """Return a window with facts, or of short texts."""
        tokens, rng = self._plain(stage, index)
        assert self.mixture is not None
        return self.mixture.row(rng, tokens, self.repeats)

    def _window(self, stage: int, index: int) -> np.ndarray:
        tokens, rng = self._plain(stage, index)
        if self.repeats is None:
            return tokens
        if rng.random() >= self.repeats.share:
            return tokens
        return copy_augmentation.repeat(rng, tokens, self.repeats)


class DataIterator:
    """Iterate over a stream; the state is the next step and the stream's name."""

    def __init__(self, stream: Stream, process: int = 0, processes: int = 1):
        self.stream = stream
        self.process = process
        self.processes = processes
        self.step = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self.step >= self.stream.steps:
            raise StopIteration
        batch = self.stream.batch(self.step, self.process, self.processes)
        self.step += 1
        return batch

    def state(self) -> dict[str, Any]:
        """Return the state, JSON-able and the same on every process."""
        return {"step": self.step, "stream": self.stream.fingerprint}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a saved state; raise `DataError` for a state of another stream."""
        if state.get("stream") != self.stream.fingerprint:
            raise DataError(
                f"the state is of stream {state.get('stream')!r}, this one is "
                f"{self.stream.fingerprint!r}: the data, the seed or the share of "
                "repeats changed; use a new workdir"
            )
        self.step = int(state["step"])
