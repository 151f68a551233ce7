"""Where an objective's teacher comes from: the step itself, a cache, or both.

`config.teacher`:

online    the target runs forward in the training step; nothing is written (default)
offline   the target reads every window of the stream once, before training; the step
          then reads the cache, and of the target only its embedding and its head
hybrid    missing windows are computed on demand: their whole shard, which is kept
          (`features.keep="cache"`), or this batch alone (`"delete"`)

Batches and their order are the same in all three, and so are the losses, to the
rounding of `features.dtype`. Bytes a token of context, in bfloat16:

| kept                                                      |             | d = 4096 |
|-----------------------------------------------------------|-------------|----------|
| the last normed state: the head makes every logit of it   | 2 d         |    8,192 |
| EAGLE-3's three states, and the last one                  | 8 d         |   32,768 |
| its three states, and the 64 likeliest tokens (`topk`)    | 6 d + 8 k + 8 | 25,096 |
| the 64 likeliest tokens alone                             | 8 k + 8     |      520 |
| the states of all of 32 layers (PPD, LUD), and the last   | 66 d        |  270,336 |

and 4 for the token, 1 where there is a mask; 10^9 tokens of 8,192 bytes are 8 TB. In
float32 states take twice as much. All logits of a vocabulary of 128,256 would take
513,024 and are never written. With `topk` all other tokens are one outcome, whose mass
is kept: see `Teacher.compared`.

Before anything is written the size is reported and compared with the free disk space.
Each process writes shards of its own and reads its share of the rows. The format is
that of `training/teacher/feature_cache.py`.
"""

import functools
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax import Array, lax
from jax.experimental import multihost_utils

from decoding import vocab
from models.distributed import processes, sharding
from models.errors import ConfigError
from models.heads.formats import native
from training.data import text_corpus
from training.loop import fit
from training.teacher import outputs
from training.teacher.feature_cache import DTYPES, Cache, Layout, gb

ONLINE, OFFLINE, HYBRID = TEACHERS = ("online", "offline", "hybrid")
CACHE, DELETE = KEEP = ("cache", "delete")
FORMAT = 1
PART = 1024  # positions whose logits exist at a time
Say = Callable[[str], None]
Fields = dict[str, np.ndarray]


class Settings(NamedTuple):
    """The recipe's fields `config.features`."""

    directory: str = ""  # empty: `features` in the training's folder
    dtype: str = "bfloat16"  # or float32: of the states
    topk: int = 0  # likeliest tokens whose logits are kept; 0: the last normed state
    taps: tuple = ()  # states to keep beside those that the objective reads
    shard_rows: int = 0  # windows of a shard; 0: as many as fill 256 MiB
    keep: str = CACHE  # or delete: whether hybrid keeps the shards that it computes


def layout(
    config: Any, window: int, masked: bool, taps: Sequence, settings: Settings
) -> Layout:
    """Choose a record's arrays for an objective that reads `taps` of a target.

    A record has `window` + 1 tokens, and their loss mask if `masked`. Raises
    `ConfigError` for settings that do not fit the target's `config`.
    """
    s, size, depth = settings, config.vocab_size, config.n_layers
    if s.dtype not in DTYPES:
        raise ConfigError(f"features.dtype={s.dtype!r}: use one of {tuple(DTYPES)}")
    if s.keep not in KEEP:
        raise ConfigError(f"features.keep={s.keep!r}: use one of {KEEP}")
    if s.shard_rows < 0:
        raise ConfigError(f"features.shard_rows={s.shard_rows}: use 0 or more")
    if not 0 <= s.topk < min(size, 2**24):
        raise ConfigError(
            f"features.topk={s.topk}: use 0 to keep the last normed state, or fewer "
            f"than all {size} tokens"
        )
    if s.topk and outputs.NORM in taps:
        raise ConfigError(
            f"features.topk={s.topk}: this objective reads the target's last normed "
            "state, of which the head makes every logit: use topk=0"
        )
    unknown = [t for t in s.taps if t not in (outputs.NORM, *range(depth + 1))]
    if unknown:
        raise ConfigError(
            f"features.taps names {unknown}: use {outputs.NORM!r} and layers from 0 to "
            f"{depth}"
        )
    union = {*needed(taps, s.topk), *s.taps}
    every = tuple(sorted(union, key=str))
    return Layout(window + 1, config.d_model, masked, every, s.topk, s.dtype)


def needed(taps: Sequence, topk: int) -> tuple:
    """List the states that a training step reads."""
    return tuple(dict.fromkeys(taps if topk else (outputs.NORM, *taps)))


def fingerprint(lm: Any) -> str:
    """Identify a target by its config, its weights' shapes, and a sample of each."""
    shapes = [
        (jax.tree_util.keystr(path), x.shape, str(x.dtype))
        for path, x in jax.tree_util.tree_leaves_with_path(lm.params)
    ]
    return _digest(repr((lm.config, shapes, native.fingerprint(lm.params))))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def about(lm: Any, stream: text_corpus.Stream, kept: Layout) -> dict[str, Any]:
    """Describe a cache's content, whatever the schedule and the batch size."""
    segments = "/documents" if stream.segments or stream.whole else ""
    tokenizer = "" if lm.tokenizer is None else lm.tokenizer.inner.to_str()
    return {
        "format": FORMAT,
        "target": fingerprint(lm),
        "tokenizer": _digest(tokenizer),
        "text": f"{stream.fingerprint}/window={stream.stages[0].window}{segments}",
        "dtype": kept.dtype,
        "topk": kept.topk,
    }


def said(
    model: Any, kept: Layout, rows_at_once: int = 0
) -> Callable[[Any, dict[str, Array]], dict[str, Array]]:
    """Build `(params, batch) -> fields`: the target's outputs on a batch, as cached.

    `rows_at_once` rows are computed at a time, as in training.
    """
    read = outputs.teacher(model, kept.taps)

    def likeliest(params: Any, normed: Array) -> tuple[Array, ...]:
        logits = model.head(params, normed).astype(jnp.float32)
        top, ids = vocab.top_k(logits, kept.topk)
        others = jnp.put_along_axis(logits, ids, -jnp.inf, -1, inplace=False)
        return ids, top, vocab.logsumexp(logits), vocab.logsumexp(others)

    def run(params: Any, batch: dict[str, Array]) -> dict[str, Array]:
        hidden = read(params, batch).hidden
        fields = {outputs.field(tap): hidden[tap] for tap in kept.taps}
        if kept.topk:
            parts = outputs.by_part(
                lambda x: likeliest(params, x), PART, hidden[outputs.NORM]
            )
            fields |= dict(zip(outputs.LIKELIEST, parts))
        return {name: x.astype(kept.said[name].dtype) for name, x in fields.items()}

    def whole(params: Any, batch: dict[str, Array]) -> dict[str, Array]:
        rows, size = batch["tokens"].shape[0], rows_at_once
        if not size or rows == size or rows % size:
            fields = run(params, batch)
        else:
            parts = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), batch)
            parts = jax.tree.map(lambda x: sharding.constrain(x, "- batch"), parts)
            fields = lax.map(lambda part: run(params, part), parts)
            fields = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), fields)
        return jax.tree.map(lambda x: sharding.constrain(x, "batch"), fields)

    return whole


@functools.lru_cache(maxsize=8)
def _program(model: Any, kept: Layout, rows_at_once: int, plan: Any) -> Any:
    """Compile `said` once for all callers; it is traced under the `plan`."""
    return jax.jit(said(model, kept, rows_at_once))


class TeacherRequest(NamedTuple):
    """The arguments from which a teacher of any kind is made."""

    lm: Any  # the target
    rows: text_corpus.DataIterator
    taps: Sequence  # that the objective reads
    settings: Settings
    folder: str | pathlib.Path
    plan: sharding.Plan | None = None
    rows_at_once: int = 0
    remat: bool = False
    say: Say = logging.info  # called with the size of a cache


def lesson(
    config: Any,
    lm: Any,
    rows: text_corpus.DataIterator,
    taps: Sequence,
    workdir: pathlib.Path,
    plan: sharding.Plan | None,
    say: Say = logging.info,
) -> TeacherRequest:
    """Make a recipe's request from its `features` and `train` fields."""
    settings = Settings(**config.get("features", {}))
    folder = settings.directory or workdir / "features"
    at_once, remat = config.train.rows_at_once, config.train.get("remat", False)
    return TeacherRequest(lm, rows, taps, settings, folder, plan, at_once, remat, say)


class FeatureWriter:
    """Run the target over windows of a stream, and fill a cache with its outputs."""

    def __init__(self, lesson: TeacherRequest, cache: Cache):
        rows, self.plan, self.cache = lesson.rows, lesson.plan, cache
        self.stream = rows.stream
        self.process, self.processes = rows.process, rows.processes
        self.batch = self.stream.stages[0].batch // self.processes
        self.writes = self._first()
        self.params = sharding.placed(self.plan, lesson.lm.params)
        model, at_once = lesson.lm.model, lesson.rows_at_once
        self.run = _program(model, cache.layout, at_once, self.plan)

    def read(self, numbers: Sequence[int]) -> Fields:
        """Run the target on up to a batch of windows; all processes call it at once."""
        short = self.batch - len(numbers)
        windows = self.stream.windows([*numbers, *[numbers[-1]] * short])
        batch = {name: windows[name] for name in windows if name != "loss_mask"}
        with sharding.use(self.plan):
            batch = batch if self.plan is None else self.plan.batch(batch)
            fields = self.run(self.params, batch)
        local = {name: _own(x) for name, x in fields.items()}
        return {name: x[: len(numbers)] for name, x in {**windows, **local}.items()}

    def fill(self, shards: Sequence[int]) -> None:
        """Write these shards, one a process, side by side, and then the next ones."""
        for i in range(0, len(shards), self.processes):
            group = [int(shard) for shard in shards[i : i + self.processes]]
            # A process without a shard of its own runs the same calls and writes none.
            spare = self.process >= len(group)
            mine = group[0 if spare else self.process]
            calls = -(-max(len(self.cache.numbers(g)) for g in group) // self.batch)
            rows = self._rows(mine, calls)
            if spare or not self.writes:
                for _ in rows:
                    pass
            else:
                self.cache.write(mine, rows)
            processes.meet(f"features {group[0]}")
            self.cache.made(group)

    def _rows(self, shard: int, calls: int) -> Iterator[Fields]:
        """Yield a shard's rows; all processes make `calls` calls of the target."""
        numbers = list(self.cache.numbers(shard))
        for call in range(calls):
            part = numbers[call * self.batch : (call + 1) * self.batch]
            fields = self.read(part or numbers[-1:])
            for i in range(len(part)):
                yield {name: x[i] for name, x in fields.items()}

    def _first(self) -> bool:
        """Check that no earlier process reads the same rows."""
        if jax.process_count() == 1:
            return True
        shares = multihost_utils.process_allgather(np.int32(self.process))
        return int(np.argmax(shares == self.process)) == jax.process_index()


def _own(x: jax.Array) -> np.ndarray:
    """Gather this process's rows of an array that is sharded by rows."""
    if x.is_fully_addressable:
        return np.asarray(x)
    parts = {s.index[0].indices(len(x))[0]: s.data for s in x.addressable_shards}
    return np.concatenate([np.asarray(parts[i]) for i in sorted(parts)])


class CachedBatches:
    """Join the batches of a `data.DataIterator` with the target's cached outputs.

    Its state is the iterator's. `maker` computes missing windows, and keeps their
    shards if `kept`.
    """

    def __init__(
        self,
        rows: text_corpus.DataIterator,
        cache: Cache,
        names: Sequence[str],
        maker: FeatureWriter | None = None,
        kept: bool = True,
    ):
        self.rows, self.cache, self.names = rows, cache, names
        self.maker, self.kept = maker, kept

    def __next__(self) -> text_corpus.Batch:
        at = (self.rows.step, self.rows.process, self.rows.processes)
        batch = next(self.rows)
        numbers = self.rows.stream.numbers(*at)
        computed = self._make(numbers)
        each = []
        for i, number in enumerate(numbers):
            if computed and not self.cache.there[number // self.cache.shard_rows]:
                each.append({name: computed[name][i] for name in self.names})
            else:
                each.append(self.cache.read(number, batch["tokens"][i]))
        fields = {name: np.stack([row[name] for row in each]) for name in self.names}
        return {**batch, **fields}

    def _make(self, numbers: Sequence[int]) -> Fields:
        """Write any process's missing shards, or return this batch's outputs."""
        if self.maker is None:
            return {}
        missing = processes.either(self.cache.missing(numbers))
        if not missing.any():
            return {}
        if not self.kept:
            return self.maker.read(numbers)
        self.maker.fill(np.flatnonzero(missing).tolist())
        return {}

    def state(self) -> dict[str, Any]:
        return self.rows.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.rows.restore(state)


def open_cache(lesson: TeacherRequest) -> Cache:
    """Open the cache of a request's windows; write nothing.

    Raises `ConfigError` for settings that do not fit, and `DataError` where the folder
    holds the outputs of another target, on another text, or other states.
    """
    lm, stream, settings = lesson.lm, lesson.rows.stream, lesson.settings
    if len(stream.stages) != 1:
        raise ConfigError(
            f"a stream of {len(stream.stages)} stages has windows of several lengths: "
            "use teacher=online"
        )
    window, masked = stream.stages[0].window, stream.masked
    record = layout(lm.config, window, masked, lesson.taps, settings)
    fields = about(lm, stream, record)
    return Cache(lesson.folder, fields, record, stream.distinct, settings.shard_rows)


def report_size(cache: Cache, say: Say) -> list[int]:
    """Report what the cache takes, and return the shards to write.

    Raises `DataError` where the disk has too little space.
    """
    missing = np.flatnonzero(cache.missing()).tolist()
    length = cache.layout.length
    say(
        f"{cache.folder}: the target's outputs on {cache.rows:,} windows of "
        f"{length:,} tokens, {cache.layout.size / length:,.0f} bytes a token, is "
        f"{gb(cache.bytes(range(cache.shards)))} in {cache.shards:,} shards; "
        f"{gb(cache.bytes(missing))} to be written, {gb(cache.free())} free"
    )
    cache.room(missing)
    return missing


def build(lesson: TeacherRequest) -> Cache:
    """Write all of a cache, whose finished shards are checked first.

    A killed run resumes at the shard that it was writing.
    """
    cache = open_cache(lesson)
    damaged = cache.check()
    if damaged:
        lesson.say(f"{cache.folder}: damaged, and made anew: shards {damaged}")
    FeatureWriter(lesson, cache).fill(report_size(cache, lesson.say))
    return cache


def source(
    kind: str, lesson: TeacherRequest
) -> tuple[fit.Data, Callable[[Any, dict[str, Array]], outputs.Teacher]]:
    """Make `fit`'s `data` and `target` for a teacher `kind`, one of `TEACHERS`."""
    taps, settings, rows = lesson.taps, lesson.settings, lesson.rows
    if kind not in TEACHERS:
        raise ConfigError(f"teacher={kind!r}: use one of {TEACHERS}")
    if kind == ONLINE:
        return rows, outputs.teacher(lesson.lm.model, tuple(taps), lesson.remat)
    cache = open_cache(lesson)
    keep = kind == OFFLINE or settings.keep == CACHE
    missing = report_size(cache, lesson.say) if keep else []
    writer = FeatureWriter(lesson, cache)
    if kind == OFFLINE:
        writer.fill(missing)
    step = cache.layout._replace(taps=needed(taps, settings.topk))
    target = outputs.given(lesson.lm.model, step.taps, bool(settings.topk))
    fallback = None if kind == OFFLINE else writer
    return CachedBatches(rows, cache, tuple(step.said), fallback, keep), target
