"""exact-extract: the most probable span of a passage, of all of its spans.

Castel, Ram, Efrat, Levy, *How Optimal is Greedy Decoding for Extractive Question
Answering?*, 2022, arXiv 2108.05857, section 3; official code
github.com/ocastel/exact-extract. With a passage c_0 .. c_{N-1} behind the prompt x,

    l(i, j) = log p(c_{i+j} | x, c_i .. c_{i+j-1})
    e(i, j) = log p(end | x, c_i .. c_{i+j})
    S(i, j) = l(i, 0) + ... + l(i, j) + e(i, j)     the answer is the argmax

and, by length, S(i, j) / (j + 2): the tokens of the span and the end. All spans that
begin at i share one teacher-forced pass, so N of them score all N^2 spans.

The prompt is read once. A call reads a number of passes as branches of one tree behind
it, in one row of the cache, so nothing of the prompt is copied.

Deviations: for decoder-only models; the paper's are T5, with a start token whose
constant term its code adds, and counts in the length. Of equal spans the first counts.
Cost: N L tokens for spans of at most L, in calls of `chunk` passes; a call's attention
is over the prompt and the whole tree.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base, tree, vocab
from decoding.loops import initial_state, prefill
from decoding.serving import requests
from models.base import ALL, Block
from models.errors import MethodError, PromptError

NODES = 512  # of a call, unless one pass has more
MOST = 1024  # nodes that attention kernels take
LOGITS = 2**26  # floats of a call's logits, at most (256 MB), down to one pass


class Span(NamedTuple):
    """A span of a passage: tokens `start` to `stop` - 1."""

    start: int
    stop: int
    tokens: list[int]
    text: str | None  # None without a tokenizer
    score: float  # log-probability of the span and its end
    logprobs: list[float]  # of each token, and of the end


class Extracted(NamedTuple):
    """The answer of a prompt."""

    best: Span  # by the sum
    by_length: Span  # by the mean over tokens and the end
    calls: int  # of the model, those of the prompt included


def extract(
    lm: Any,
    prompts: Sequence[Any],
    passages: Sequence[Any],
    longest: int | None = None,
    *,
    chunk: int | None = None,
    ends: Sequence[int] = (),
) -> list[Extracted]:
    """Find the most probable span of every prompt's passage.

    Args:
        lm: the model, as `models.load` returns it.
        prompts: texts, conversations or token lists, as of `generate`; a question with
            its passage, for example.
        passages: one a prompt, a text or a token list. Spans consist of its tokens.
        longest: tokens of a span, at most; None: those of the passage.
        chunk: passes of a call; None: as many as 512 nodes hold.
        ends: tokens that end an answer; none: the model's end of sequence.

    Raises:
        PromptError: a prompt or passage that is empty or too long, or lists of
            different lengths.
        MethodError: a number out of range, or a model without an end.
    """
    config = lm.model.config
    stops = tuple(ends) or tuple(config.eos)
    if not stops or not all(0 <= end < config.vocab_size for end in stops):
        raise MethodError(
            f"ends={stops}: give tokens that end an answer, within the vocabulary of "
            f"{config.vocab_size}"
        )
    if (longest is not None and longest < 1) or (chunk is not None and chunk < 1):
        raise MethodError(f"longest={longest}, chunk={chunk}: use at least 1")
    if len(prompts) != len(passages):
        raise PromptError(
            f"{len(prompts)} prompts and {len(passages)} passages: give one a prompt"
        )
    texts, spans_of = requests.encode(lm, prompts), _encoded(lm, passages)
    for i, (prompt, passage) in enumerate(zip(texts, spans_of)):
        _check(config, i, prompt, passage, min(longest or MOST, len(passage)))
    # One shape for all prompts, so that one program serves them.
    most = max(map(len, spans_of))
    size = min(longest or most, most)
    rows = chunk or min(NODES, LOGITS // config.vocab_size) // size
    rows = max(1, min(rows, most, (MOST - 1) // size))
    room = initial_state.bucket(max(map(len, texts)))
    shape = rows, size, room
    answers = []
    for prompt, passage in zip(texts, spans_of):
        laws, calls = _laws(lm, prompt, passage, shape, stops)
        best, by_length = (_best(lm, passage, *laws, x) for x in (False, True))
        answers.append(Extracted(best, by_length, calls))
    return answers


def _encoded(lm: Any, passages: Sequence[Any]) -> list[list[int]]:
    """Encode passages without the token that begins a text."""
    if any(type(passage) is str for passage in passages) and lm.tokenizer is None:
        raise PromptError(
            "a passage is a text and the model has no tokenizer.json: pass token lists"
        )
    return [
        lm.tokenizer.encode(passage, False)
        if type(passage) is str
        else [int(token) for token in passage]
        for passage in passages
    ]


def _check(
    config: Any, i: int, prompt: list[int], passage: list[int], size: int
) -> None:
    for name, tokens in (("prompt", prompt), ("passage", passage)):
        wrong = [t for t in tokens if not 0 <= t < config.vocab_size]
        if wrong or not tokens:
            what = f"has token {wrong[0]}" if wrong else "is empty"
            raise PromptError(
                f"{name} {i} {what}: give tokens within the model's vocabulary of "
                f"{config.vocab_size}"
            )
    if len(prompt) + size > config.max_positions or size >= MOST:
        raise PromptError(
            f"prompt {i} has {len(prompt)} tokens and spans of {size}: use spans of "
            f"less than {MOST}, together at most the model's {config.max_positions} "
            "positions; lower longest"
        )


def _laws(
    lm: Any,
    prompt: list[int],
    passage: list[int],
    shape: tuple[int, int, int],
    ends: tuple[int, ...],
) -> tuple[tuple[np.ndarray, np.ndarray], int]:
    """Return l and e, float64[N, L], -inf past the passage's end; and the calls.

    Args:
        lm: the model.
        prompt: its tokens.
        passage: its N tokens.
        shape: passes of a call, L, and slots for the prompt.
        ends: tokens that end an answer.
    """
    rows, size, room = shape
    count = len(passage)
    padded = np.zeros((1, room), np.int32)
    padded[0, : len(prompt)] = prompt
    length = jnp.asarray([len(prompt)], jnp.int32)
    nodes = 1 + rows * size
    cache = _read(lm.model, room + nodes, lm.params, jnp.asarray(padded), length)
    at = np.arange(count)[:, None] + np.arange(size)
    inside = at < count
    chains = np.asarray(passage, np.int32)[np.minimum(at, count - 1)]
    root, stops = jnp.asarray(prompt[-1:], jnp.int32), jnp.asarray(ends, jnp.int32)
    parts = []
    for first in range(0, count, rows):
        some = np.zeros((rows, size), np.int32)
        some[: count - first] = chains[first : first + rows]
        both = _scores(lm.model, lm.params, cache, root, jnp.asarray(some), stops)
        parts.append(np.asarray(both, np.float64)[:, : count - first])
    laws = np.where(inside, np.concatenate(parts, 1), -np.inf)
    prefilled = -(-(len(prompt) - 1) // min(prefill.CHUNK, room))
    return (laws[0], laws[1]), prefilled + len(parts)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _read(model: Any, slots: int, params: Any, tokens: Array, length: Array) -> Any:
    """Fill a cache with all of a prompt but its last token."""
    dtype = jax.tree.leaves(params)[0].dtype
    cache = model.init_cache(1, slots, dtype)
    size = min(prefill.CHUNK, tokens.shape[1])
    return prefill.fill_stream((model, params), cache, tokens, length, size)


@functools.partial(jax.jit, static_argnums=0)
def _scores(
    model: Any, params: Any, cache: Any, root: Array, chains: Array, ends: Array
) -> Array:
    """Run chains int32[C, L] as branches below `root` int32[1].

    Returns:
        Log-probabilities of each token, and of an end behind it, float32[2, C, L].
    """
    rows, size = chains.shape
    index = jnp.arange(rows * size, dtype=jnp.int32)
    # Node 0 is the root; chain node n is 1 + n, and hangs below node n but for firsts.
    above = jnp.where(index % size == 0, 0, index)
    tokens = jnp.concatenate([root, chains.reshape(-1)])[None]
    parents = jnp.concatenate([jnp.full(1, -1, jnp.int32), above])[None]
    nodes = base.TokenTree(tokens, parents, jnp.ones_like(tokens), depth=size)
    start = cache.length[:, None]
    block = Block(
        tokens,
        start + tree.depths(nodes),
        start + jnp.arange(tokens.shape[1], dtype=jnp.int32),
        tree.visibility(nodes, cache.length),
        logits_at=ALL,
    )
    out, _ = model(params, cache, block)
    assert out.logits is not None
    laws = vocab.log_softmax(out.logits)[0]
    token = laws[above, tokens[0, 1:]]
    end = vocab.logsumexp(laws[1:, ends])
    return jnp.stack([token, end]).reshape(2, rows, size)


def _best(
    lm: Any, passage: list[int], token: np.ndarray, end: np.ndarray, by_length: bool
) -> Span:
    """Return the best span; of those of the same tokens the first."""
    sums = np.cumsum(token, 1) + end
    size = token.shape[1]
    values = sums / np.arange(2, size + 2) if by_length else sums
    start, last = divmod(int(np.argmax(values)), size)
    tokens = passage[start : start + last + 1]
    # Equal spans differ by rounding alone.
    first = next(i for i in range(start + 1) if passage[i : i + last + 1] == tokens)
    return Span(
        first,
        first + last + 1,
        tokens,
        None if lm.tokenizer is None else lm.tokenizer.decode(tokens),
        float(sums[start, last]),
        [*token[start, : last + 1].tolist(), float(end[start, last])],
    )
