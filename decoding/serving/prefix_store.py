"""Prefixes of prompts on disk: their caches are loaded, not computed.

    store = PrefixStore("prefixes", lm, method)
    store.add(tokens)                    # or store.save(tokens, store.row(tokens))
    decoding.generate(lm, prompts, method, prefixes=store)

An entry is a row after the prefill of a prefix (`prefix_rows`) in a file of its own
(`prefix_files`). Its name has a hash chain over links of 128 tokens, so the longest
stored prefix of a prompt is found by the names alone, and a digest of all else that the
row depends on: weights, tokenizer, config, method, chunks of the prompt.

An entry ends where a chunk of the prompt ends, so a call goes on with the chunks that
it would have had. Raw entries then give the texts and log-probabilities, bit for bit,
of a call without the store, if they were computed in as many rows and in buffers of
the same sizes (`rows`, `prompt_tokens`, `new`): products of others may round otherwise.
Compressed entries (`cachegen`) are LOSSY.

Whatever is wrong with a file is a miss, with its reason, and never an error.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from decoding import base, compose
from decoding.block_width import choice
from decoding.loops import decode, engines, initial_state
from decoding.serving import prefix_files, prefix_rows, requests
from decoding.serving.cachegen import codec, tables
from decoding.serving.prefix_folder import LINK, Entry, PrefixFolder
from decoding.serving.prefix_rows import Misfit, Row
from models import storage
from models.cache_layouts.stored import Arrays
from models.errors import MethodError, PromptError


class Found(NamedTuple):
    """The longest stored prefix of a prompt; without a row, a miss."""

    row: Row | None
    reason: str  # why this or a longer one was refused; "" if none was
    level: str = ""
    file: storage.Path | None = None

    @property
    def tokens(self) -> int:
        return 0 if self.row is None else len(self.row.tokens)


class PrefixStore(PrefixFolder):
    """A folder of stored prefixes of one model and method."""

    def __init__(
        self,
        folder: str | os.PathLike,
        lm: Any,
        method: Any = None,
        *,
        drafts: Mapping[str, Any] | None = None,
        streams: base.Streams | None = None,
        level: str = codec.RAW,
        link: int = LINK,
        prompt_tokens: int = 0,
        new: int = 128,
        rows: int = 1,
        prefill_chunk: int | None = None,
    ):
        """Open a folder; it is made when something is saved.

        Args:
            folder: of the files, on a disk or in a bucket.
            lm: the target, as `models.load` returns it.
            method: of the calls that will load entries; as in `generate`, like
                `drafts`, `streams` and `prefill_chunk`.
            drafts: see `method`.
            streams: see `method`.
            level: "raw", or a level of `cachegen` ("3", "2", "1") for what is saved.
            link: tokens of a link of the hash chain.
            prompt_tokens: of the longest prompt of later calls; a saved one's if it is
                longer. With `new` it decides the sizes of buffers: some layouts and
                drafters have arrays for the whole text, and load into no longer one.
            new: tokens that later calls write.
            rows: of the calls that should have the texts of calls without the store to
                the last bit; texts of other batches agree but for rounding.
            prefill_chunk: see `method`.

        Raises:
            MethodError: an unknown level, or one without calibrated tables.
        """
        if level != codec.RAW and level not in codec.LEVELS:
            known = [codec.RAW, *codec.LEVELS]
            raise MethodError(f"level={level!r}: use one of {known}")
        if new < 1 or rows < 1:
            raise MethodError(f"new={new}, rows={rows}: use at least 1")
        super().__init__(folder, link)
        self.level, self.new, self.rows = level, new, rows
        self.prompt_tokens = prompt_tokens
        self.digests = prefix_rows.Digests()
        self._chunk = prefill_chunk or 0
        self._tables: dict[tuple[str, str], codec.Tables] = {}
        self.lm, chosen, drafts = requests.with_heads(lm, method, drafts)
        self._parts = compose.compose(
            *(chosen, self.lm, 0.0, drafts, streams), width=choice.default()
        )
        self._params = compose.params(self.lm, drafts, streams)
        if level != codec.RAW:
            self.tables(level, self.weights)

    @property
    def weights(self) -> str:
        """The digest of the target's weights."""
        return self.digests.of(self._params["target"])

    def tables(self, level: str, weights: str) -> codec.Tables:
        """Read the calibrated tables of a level of the model with these weights.

        Raises:
            MethodError: they are missing or of another model.
        """
        key = level, weights
        if key not in self._tables:
            self._tables[key] = tables.load(tables.path(self.folder), level, weights)
        return self._tables[key]

    def add(self, tokens: Sequence[int]) -> Entry:
        """Compute and save the longest prefix of a prompt that can be an entry.

        Raises:
            PromptError: the prompt is shorter than a link and a token.
            MethodError: a layout, policy or drafter whose rows cannot be stored.
        """
        row = self.row(tokens)
        return self.save(row.tokens, row)

    def row(self, tokens: Sequence[int]) -> Row:
        """Compute the row after the longest prefix of `tokens` that can be an entry.

        Raises:
            PromptError, MethodError: as `add`.
        """
        tokens = [int(t) for t in tokens]
        for end in range((len(tokens) - 1) // self.link * self.link, 0, -self.link):
            row = self._computed(tokens, end)
            if row is not None:
                return row
        raise PromptError(
            f"{len(tokens)} tokens have no prefix to store: entries end at multiples "
            f"of {self.link} and where a chunk of the prompt ends, and a token follows"
        )

    def _computed(self, tokens: list[int], end: int) -> Row | None:
        """Read `tokens[:end]` as a prompt; None: no chunk ends there."""
        engine, parts = engines.engine(self._parts), self._parts
        if parts.program.prefill is not None or parts.program.model.plan is not None:
            raise MethodError(
                "prefixes of searches that change the prompt's cache, and of models on "
                "a mesh, are not stored"
            )
        longest = max(self.prompt_tokens, len(tokens))
        size = initial_state.bucket(longest + self.new)
        before: dict[str, Any] = {}

        def note(state: decode.DecodeState, chunk: int) -> decode.DecodeState:
            before["begun"] = prefix_rows.begun(state, 0)
            before["shared"] = prefix_rows.shared_digests(state)
            before["chunk"] = chunk
            return state

        try:
            signature = self.signature(self.lm, parts, self._params)
            state = engine.start(
                *(self._params, parts, [tokens[: end + 1]] * self.rows),
                *([size] * self.rows, engines.request_keys(0, self.rows, 1)),
                size,
                chunk=self._chunk,
                whole=True,
                longest=(longest, self.new),
                load=note,
                finish=False,
            )
            signature["chunk"] = chunk = before["chunk"]
            if end not in prefix_rows.ends(parts.program, state, chunk):
                return None
            about = before["begun"], before["shared"], signature
            return prefix_rows.taken(parts.program, state, *about)
        except Misfit as reason:
            raise MethodError(f"this prefix cannot be stored: {reason}") from None

    def signature(
        self, lm: Any, parts: compose.Composition, params: base.Params
    ) -> dict[str, Any]:
        """Return what a row depends on, but for its tokens and its chunks."""
        return prefix_rows.signature(lm, parts, params, self.digests)

    def save(self, tokens: Sequence[int], row: Row) -> Entry:
        """Write an entry: a file that has its name only when it is complete.

        Args:
            tokens: of the prefix; those of the row.
            row: from `row`, or a loaded one.

        Raises:
            PromptError: the row is of other tokens, or of part of a link.
            MethodError: a level that does not fit the cache.
        """
        tokens = tuple(int(t) for t in tokens)
        if tokens != row.tokens or len(tokens) % self.link or not tokens:
            raise PromptError(
                f"{len(tokens)} tokens for a row of {len(row.tokens)}: save a row "
                f"under its own tokens, in links of {self.link}"
            )
        about, arrays = prefix_rows.content(row)
        if self.level != codec.RAW:
            table = self.tables(self.level, row.signature["weights"])
            arrays, coded = codec.compressed(arrays, table)
            about["coded"] = {**coded, "tables": tables.digest(table)}
        file = self.folder / f"{self.name(row)}{prefix_files.SUFFIX}"
        size = prefix_files.write(file, prefix_files.Content(about, arrays))
        return Entry(file, len(tokens), size, 0.0, self.level)

    def find(
        self, tokens: Sequence[int], signature: Mapping[str, Any] | None = None
    ) -> Found:
        """Read the longest stored prefix of `tokens` that a token follows.

        Args:
            tokens: of a prompt.
            signature: of the call, with its `chunk`; None: of the store's own method,
                with the chunks of any entry.
        """
        tokens = [int(t) for t in tokens]
        wanted = dict(signature or {})
        if signature is None:
            try:
                wanted = self.signature(self.lm, self._parts, self._params)
            except Misfit as reason:
                return Found(None, str(reason))
        reasons: list[str] = []
        for end, file in self.candidates(tokens):
            try:
                about, arrays = prefix_files.read(file)
                row = self._checked(about, arrays, tokens[: end + 1], wanted)
                if self.is_kept_locally:
                    os.utime(file)
                level = about.get("coded", {}).get("level", codec.RAW)
                return Found(row, "; ".join(reasons), level, file)
            except (prefix_files.Damaged, Misfit, OSError) as reason:
                reasons.append(f"{end} tokens in {file.name}: {reason}")
            except (KeyError, TypeError, ValueError) as error:
                # The checksum is right: another version, or a forged file.
                reasons.append(f"{end} tokens in {file.name}: no entry ({error!r})")
        return Found(None, "; ".join(reasons))

    def _checked(
        self,
        about: dict[str, Any],
        arrays: Arrays,
        tokens: Sequence[int],
        wanted: Mapping[str, Any],
    ) -> Row:
        """Return the row of a file's content; Misfit if the call cannot take it."""
        row = prefix_rows.of_content(about, arrays)
        if list(row.tokens) != list(tokens[:-1]):
            raise Misfit("it is of other tokens")
        wanted = {"chunk": row.signature["chunk"], **wanted}
        names = prefix_rows.differing(wanted, row.signature)
        if names:
            raise Misfit(f"it has another {_differences(names, wanted, row.signature)}")
        if row.following not in (-1, tokens[-1]):
            raise Misfit(
                f"it was followed by token {row.following}, on which this method's row "
                f"depends, and the prompt goes on with {tokens[-1]}"
            )
        coded = about.get("coded")
        if coded is not None:
            try:
                table = self.tables(coded["level"], row.signature["weights"])
            except MethodError as reason:
                raise Misfit(str(reason)) from None
            if tables.digest(table) != coded["tables"]:
                raise Misfit("it was coded by other tables")
            row = row._replace(arrays=codec.decompressed(row.arrays, coded, table))
        return row


def _differences(names: Sequence[str], wanted: Mapping, other: Mapping) -> str:
    """Name what differs, with both values where they are short."""
    parts = []
    for name in names:
        values = f"{other.get(name)}, here {wanted.get(name)}"
        short = len(values) <= 120 and name in ("chunk", "method", "device", "layout")
        parts.append(f"{name} ({values})" if short else name)
    return ", ".join(parts)
