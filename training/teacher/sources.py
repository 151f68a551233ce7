"""Where an objective's teacher comes from: the step itself, a cache, or both.

`config.teacher`:

online    the target runs forward in the training step; nothing is written (default)
offline   the target reads every window of the stream once, before training; the step
          then reads the cache, and of the target only its embedding and its head
hybrid    what the cache lacks is made when it is asked for: its whole shard, and kept
          (`sources.keep="cache"`), or for this batch alone (`"delete"`)

Batches and their order are the same in all three, and so are the losses, to the
rounding of `sources.dtype`. The bytes that a token of context takes, in bfloat16:

| what is kept                                              |             | d = 4096 |
|-----------------------------------------------------------|-------------|----------|
| the last normed state: the head makes every logit of it   | 2 d         |    8,192 |
| EAGLE-3's three states, and the last one                  | 8 d         |   32,768 |
| its three states, and the 64 likeliest tokens (`topk`)    | 6 d + 8 k + 8 | 25,096 |
| the 64 likeliest tokens alone                             | 8 k + 8     |      520 |
| the states of all of 32 layers (PPD, LUD), and the last   | 66 d        |  270,336 |

and 4 for the token, 1 where there is a mask; 10^9 tokens of 8,192 bytes are 8 TB. In
float32 states take twice as much. All logits of a vocabulary of 128,256 would take
513,024 and are never written. With `topk` the tokens beyond are one outcome, whose mass
is kept: see `Teacher.compared`.

The size is said, and compared with what the disk has free, before anything is written.
Of several processes each makes shards of its own and reads its share of the rows. The
format is that of `training/teacher/feature_cache.py`.
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
    """`config.features`."""

    directory: str = ""  # empty: `features` in the training's folder
    dtype: str = "bfloat16"  # or float32: of the states
    topk: int = 0  # likeliest tokens that stand for the law; 0: the last normed state
    taps: tuple = ()  # states to keep beside those that the objective reads
    shard_rows: int = 0  # windows of a shard; 0: as many as fill 256 MiB
    keep: str = CACHE  # or delete: what becomes of what hybrid makes


def layout(
    config: Any, window: int, masked: bool, taps: Sequence, settings: Settings
) -> Layout:
    """What is kept for an objective that reads `taps` of a target with this config.

    Raises `ConfigError` for settings that do not fit.
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
    wrong = [t for t in s.taps if t not in (outputs.NORM, *range(depth + 1))]
    if wrong:
        raise ConfigError(
            f"features.taps names {wrong}: use {outputs.NORM!r} and layers from 0 to "
            f"{depth}"
        )
    wanted = {*needed(taps, s.topk), *s.taps}
    every = tuple(sorted(wanted, key=str))
    return Layout(window + 1, config.d_model, masked, every, s.topk, s.dtype)


def needed(taps: Sequence, topk: int) -> tuple:
    """The states that a training step reads."""
    return tuple(dict.fromkeys(taps if topk else (outputs.NORM, *taps)))


def fingerprint(lm: Any) -> str:
    """Names a target: its config, its weights' shapes, and a sample of each of them."""
    shapes = [
        (jax.tree_util.keystr(path), x.shape, str(x.dtype))
        for path, x in jax.tree_util.tree_leaves_with_path(lm.params)
    ]
    return _digest(repr((lm.config, shapes, native.fingerprint(lm.params))))


def _digest(said: str) -> str:
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def about(lm: Any, stream: text_corpus.Stream, kept: Layout) -> dict[str, Any]:
    """What a cache is of; it holds for every schedule and every batch size."""
    segments = "/segments" if stream.segments else ""
    words = "" if lm.tokenizer is None else lm.tokenizer.inner.to_str()
    return {
        "format": FORMAT,
        "target": fingerprint(lm),
        "tokenizer": _digest(words),
        "text": f"{stream.fingerprint}/window={stream.stages[0].window}{segments}",
        "dtype": kept.dtype,
        "topk": kept.topk,
    }


def said(
    model: Any, kept: Layout, rows_at_once: int = 0
) -> Callable[[Any, dict[str, Array]], dict[str, Array]]:
    """`(params, batch) -> fields`: what the target says of a batch, as it is kept.

    `rows_at_once` rows at a time, as in training.
    """
    read = outputs.teacher(model, kept.taps)

    def likeliest(params: Any, normed: Array) -> tuple[Array, ...]:
        logits = model.head(params, normed).astype(jnp.float32)
        known, ids = vocab.top_k(logits, kept.topk)
        others = jnp.put_along_axis(logits, ids, -jnp.inf, -1, inplace=False)
        return ids, known, vocab.logsumexp(logits), vocab.logsumexp(others)

    def run(params: Any, batch: dict[str, Array]) -> dict[str, Array]:
        hidden = read(params, batch).hidden
        found = {outputs.field(tap): hidden[tap] for tap in kept.taps}
        if kept.topk:
            parts = outputs.by_part(
                lambda x: likeliest(params, x), PART, hidden[outputs.NORM]
            )
            found |= dict(zip(outputs.LIKELIEST, parts))
        return {name: x.astype(kept.said[name].dtype) for name, x in found.items()}

    def whole(params: Any, batch: dict[str, Array]) -> dict[str, Array]:
        rows, size = batch["tokens"].shape[0], rows_at_once
        if not size or rows == size or rows % size:
            found = run(params, batch)
        else:
            parts = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), batch)
            parts = jax.tree.map(lambda x: sharding.constrain(x, "- batch"), parts)
            found = lax.map(lambda part: run(params, part), parts)
            found = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), found)
        return jax.tree.map(lambda x: sharding.constrain(x, "batch"), found)

    return whole


@functools.lru_cache(maxsize=8)
def _program(model: Any, kept: Layout, rows_at_once: int, plan: Any) -> Any:
    """`said`, compiled once for all who ask; it is traced under the `plan`."""
    return jax.jit(said(model, kept, rows_at_once))


class TeacherRequest(NamedTuple):
    """Who learns what: all that a teacher of any kind is made from."""

    lm: Any  # the target
    rows: text_corpus.DataIterator
    taps: Sequence  # that the objective reads
    settings: Settings
    folder: str | pathlib.Path
    plan: sharding.Plan | None = None
    rows_at_once: int = 0
    remat: bool = False
    say: Say = logging.info  # is told what a cache takes


def lesson(
    config: Any,
    lm: Any,
    rows: text_corpus.DataIterator,
    taps: Sequence,
    workdir: pathlib.Path,
    plan: sharding.Plan | None,
    say: Say = logging.info,
) -> TeacherRequest:
    """The lesson of a recipe: its `features`, and how its `train` runs the target."""
    chosen = Settings(**config.get("features", {}))
    folder = chosen.directory or workdir / "features"
    at_once, remat = config.train.rows_at_once, config.train.get("remat", False)
    return TeacherRequest(lm, rows, taps, chosen, folder, plan, at_once, remat, say)


class FeatureWriter:
    """Runs the target over windows of a stream, and fills a cache with what it says."""

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
        """Of up to a batch of this process's windows; all processes call it at once."""
        short = self.batch - len(numbers)
        windows = self.stream.windows([*numbers, *[numbers[-1]] * short])
        batch = {name: windows[name] for name in windows if name != "loss_mask"}
        with sharding.use(self.plan):
            batch = batch if self.plan is None else self.plan.batch(batch)
            found = self.run(self.params, batch)
        own = {name: _own(x) for name, x in found.items()}
        return {name: x[: len(numbers)] for name, x in {**windows, **own}.items()}

    def fill(self, shards: Sequence[int]) -> None:
        """Make these shards: one a process, side by side, and then the next ones."""
        for i in range(0, len(shards), self.processes):
            group = [int(shard) for shard in shards[i : i + self.processes]]
            # Without a shard of its own a process takes part, and drops what it reads.
            spare = self.process >= len(group)
            own = group[0 if spare else self.process]
            calls = -(-max(len(self.cache.numbers(g)) for g in group) // self.batch)
            rows = self._rows(own, calls)
            if spare or not self.writes:
                for _ in rows:
                    pass
            else:
                self.cache.write(own, rows)
            processes.meet(f"features {group[0]}")
            self.cache.made(group)

    def _rows(self, shard: int, calls: int) -> Iterator[Fields]:
        """The rows of a shard, of `calls` calls; others' shards may take more."""
        numbers = list(self.cache.numbers(shard))
        for call in range(calls):
            part = numbers[call * self.batch : (call + 1) * self.batch]
            found = self.read(part or numbers[-1:])
            for i in range(len(part)):
                yield {name: x[i] for name, x in found.items()}

    def _first(self) -> bool:
        """Whether none before this process reads the same rows."""
        if jax.process_count() == 1:
            return True
        shares = multihost_utils.process_allgather(np.int32(self.process))
        return int(np.argmax(shares == self.process)) == jax.process_index()


def _own(x: jax.Array) -> np.ndarray:
    """The rows of an array, cut by rows, that lie with this process."""
    if x.is_fully_addressable:
        return np.asarray(x)
    parts = {s.index[0].indices(len(x))[0]: s.data for s in x.addressable_shards}
    return np.concatenate([np.asarray(parts[i]) for i in sorted(parts)])


class CachedBatches:
    """The batches of a `data.DataIterator` with what the target says of them.

    Its state is theirs. `maker` makes what the cache lacks, and keeps it if `kept`.
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
        made = self._make(numbers)
        each = []
        for i, number in enumerate(numbers):
            if made and not self.cache.there[number // self.cache.shard_rows]:
                each.append({name: made[name][i] for name in self.names})
            else:
                each.append(self.cache.read(number, batch["tokens"][i]))
        found = {name: np.stack([row[name] for row in each]) for name in self.names}
        return {**batch, **found}

    def _make(self, numbers: Sequence[int]) -> Fields:
        """Make the shards that are missing for any process; or what the batch needs."""
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
    """The cache of a lesson's windows, as far as it is there; nothing is written.

    Raises `ConfigError` for settings that do not fit, and `DataError` where the folder
    holds what another target said, or of another text, or other states.
    """
    lm, stream, settings = lesson.lm, lesson.rows.stream, lesson.settings
    if len(stream.stages) != 1:
        raise ConfigError(
            f"a stream of {len(stream.stages)} stages has windows of several lengths: "
            "use teacher=online"
        )
    window, masked = stream.stages[0].window, stream.corpus.mask is not None
    kept = layout(lm.config, window, masked, lesson.taps, settings)
    told = about(lm, stream, kept)
    return Cache(lesson.folder, told, kept, stream.distinct, settings.shard_rows)


def report_size(cache: Cache, say: Say) -> list[int]:
    """Say what the cache takes, and return the shards that are to be written.

    Raises `DataError` where the disk has not so much free.
    """
    missing = np.flatnonzero(cache.missing()).tolist()
    length = cache.layout.length
    say(
        f"{cache.folder}: what the target says of {cache.rows:,} windows of "
        f"{length:,} tokens, {cache.layout.size / length:,.0f} bytes a token, is "
        f"{gb(cache.bytes(range(cache.shards)))} in {cache.shards:,} shards; "
        f"{gb(cache.bytes(missing))} to be written, {gb(cache.free())} free"
    )
    cache.room(missing)
    return missing


def build(lesson: TeacherRequest) -> Cache:
    """A whole cache, whose finished shards were read through first.

    Killed, it goes on with the shard that it was at.
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
    """`fit`'s `data` and `target` for a teacher of this `kind`, one of `TEACHERS`."""
    taps, settings, rows = lesson.taps, lesson.settings, lesson.rows
    if kind not in TEACHERS:
        raise ConfigError(f"teacher={kind!r}: use one of {TEACHERS}")
    if kind == ONLINE:
        return rows, outputs.teacher(lesson.lm.model, tuple(taps), lesson.remat)
    cache = open_cache(lesson)
    kept = kind == OFFLINE or settings.keep == CACHE
    missing = report_size(cache, lesson.say) if kept else []
    maker = FeatureWriter(lesson, cache)
    if kind == OFFLINE:
        maker.fill(missing)
    step = cache.layout._replace(taps=needed(taps, settings.topk))
    told = outputs.given(lesson.lm.model, step.taps, bool(settings.topk))
    more = None if kind == OFFLINE else maker
    return CachedBatches(rows, cache, tuple(step.said), more, kept), told
