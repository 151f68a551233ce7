"""A search from its prompts to the rows of its texts."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding import base
from decoding.catalogue import Part
from decoding.hypotheses import reward as rewards
from decoding.hypotheses.nodes import ALL, Select
from decoding.hypotheses.rank import Rank, Sample
from decoding.hypotheses.reward import Reward
from decoding.loops import decode, drafting, engines, search, search_state
from decoding.serving import requests
from decoding.serving.results import Rows, Text
from models.errors import MethodError, PromptError

FIRST = 64  # scratch slots a lane, at first
STATES = 64 << 20  # bytes of a transform's states at all nodes, at most


class Found(NamedTuple):
    """What a search has beside its texts."""

    scores: np.ndarray  # float32[prompts, n]
    rounds: int
    nodes_run: np.ndarray  # int32[prompts]
    host_syncs: int
    most_slots: np.ndarray  # int32[prompts]
    levels: np.ndarray  # int32[prompts]


def rows_of(search: Part | None, n: int) -> int:
    """Return how many rows a prompt has: of a tree one, of a ranking its samples."""
    if search is None or search.card.kind == "prefill":
        return n
    return search.build({}).samples if search.card.kind == "rank" else 1


def ranked(
    rank: Rank, rows: list[list[Text]], found: list[Sample], n: int
) -> tuple[list[list[Text]], list[list[float]]]:
    """Take the `n` best texts of every prompt.

    Args:
        rank: the search.
        rows: the texts of every prompt, in the order of its samples.
        found: the same one after the other, as the search ranks them.
        n: texts to take.

    Returns:
        The texts and their scores, best first.
    """
    best, scores = [], []
    for i, row in enumerate(rows):
        order = rank.order(found[i * len(row) : (i + 1) * len(row)])[:n]
        best.append([row[at] for at, _ in order])
        scores.append([value for _, value in order])
    return best, scores


def samples(lm: Any, asked: requests.Requests, texts: list[Text]) -> list[Sample]:
    """Read the texts of all rows, which are without their prompts."""
    spelt = prompts(lm, asked)
    return [
        Sample(
            text.tokens,
            text.text,
            [x or 0.0 for x in text.logprobs],
            text.finish_reason != "length",
            i // asked.n,
            spelt[i // asked.n],
        )
        for i, text in enumerate(texts)
    ]


def prompts(lm: Any, asked: requests.Requests) -> list[str | None]:
    """Spell every prompt; None without a tokenizer."""
    rows = asked.rows[:: asked.n]
    if lm.tokenizer is None:
        return [None] * len(rows)
    return [lm.tokenizer.decode(row) for row in rows]


def valued(
    lm: Any,
    engine: engines.Engine,
    reward: Reward,
    params: base.Params,
    running: requests.Requests,
    state: Rows,
    found: list[Sample],
) -> list[Sample]:
    """Ask the reward for the worth of all texts, once."""
    if reward.ask is not None:
        values: Any = rewards.asked(reward.ask, found)
    else:
        own = reward.init(running.prompts)
        over = lambda x: jnp.repeat(x, running.n, 0)
        own = base.State(jax.tree.map(over, own.row), own.shared)
        prompt = jnp.asarray([len(row) for row in running.rows], jnp.int32)
        texts = (jnp.asarray(state.tokens), prompt, jnp.asarray(state.length))
        values = np.asarray(engine.value(lm, params, own, texts)).tolist()
    return [sample._replace(value=v) for sample, v in zip(found, values)]


def check(
    lm: Any, program: decode.Program, asked: requests.Requests, streamed: bool
) -> None:
    """Refuse what a search cannot do, before anything is compiled.

    Raises:
        PromptError: more texts than it keeps.
        MethodError: a mesh, texts that are to be streamed, a reward for another number
            of prompts, or a transform of one text beside a law that several share.
    """
    select, rank, n = program.select, program.rank, asked.n
    if program.reward is not None:
        program.reward.init(asked.prompts)
    if select is None and rank is None:
        return
    if streamed:
        raise MethodError("a search has no text before it ends: use generate")
    kept = rank.samples if rank is not None else select.pool if select else 0
    if n > kept:
        raise PromptError(
            f"n={n}: this search keeps {kept} texts; ask for at most as many, or "
            "search wider"
        )
    if select is not None and select.mixes:
        reads = program.transform.advance is not None
        if reads or program.streams:
            raise MethodError(
                f"{'a transform that reads the text' if reads else 'streams'} beside a "
                "search whose texts share one law: leave it out, or search by beams"
            )
    if select is not None and lm.model.plan is not None:
        raise MethodError(
            "a search by a tree runs on one device: load the model without mesh=, or "
            "choose another method"
        )


def scratch(lm: Any, program: decode.Program, new: int) -> tuple[int, int]:
    """Choose the scratch slots behind each prompt at first, and at most.

    A cache that cannot grow has as many at once as it may need: all, or where its
    layers bound a block, as many as they take.
    """
    select = search_state.selects(program)
    rounds = select.rounds(new) if select.holds == ALL else new
    drafts = drafting.size(program, select.width)[0] - select.width
    most = -(-(select.width * (rounds + 1) + drafts) // 32) * 32
    first = -(-(select.width * FIRST + drafts) // 32) * 32
    like = jax.eval_shape(lambda: lm.model.init_cache(1, 64, jnp.float32))
    if like.grows:
        return min(first, most), most
    spans = [layer.span for layer in like.layers if layer.span]
    size = min([most, *(span // 32 * 32 for span in spans)])
    return size, size


def run(
    lm: Any,
    engine: engines.Engine,
    params: base.Params,
    found: tuple[Select, Reward | None],
    rows: decode.DecodeState,
    asked: requests.Requests,
    sizes: tuple[int, int],
) -> tuple[search_state.SearchState, int]:
    """Search from started rows to the end.

    Args:
        lm: the model, whose tokenizer spells the texts of a reward on the host.
        engine: of a composition with a search.
        params: all params, by name.
        found: the search and its reward, whose numbers may differ from the compiled
            ones'.
        rows: from `Engine.start`, with `sizes[0]` scratch slots.
        asked: the requests.
        sizes: scratch slots at first, and at most.

    Returns:
        The ended search, and how often the device waited for the host: at rounds that
        asked for rewards, and where the scratch grew.

    Raises:
        PromptError: the cache cannot hold the hypotheses.
        MethodError: a reward that is no number, or transforms whose states at all nodes
            need more than `STATES` bytes.
    """
    (select, reward), (size, most) = found, sizes
    new = longest(asked)
    _check_states(select, rows, new)
    own = base.State()
    if select.read is None:
        own = select.init(params, new)
    worth = base.State() if reward is None else reward.init(asked.prompts)
    state = engine.plant((own, worth), rows, new, size)
    memo: dict = {}
    syncs = 0
    while True:
        least = search.every(engine.program, select.width) if size < most else 1
        state = engine.search(params, state, least)
        if bool(np.asarray(state.rows.done).all()):
            memory = search_state.memory(state, select)
            return replace(state, rows=replace(state.rows, drafter=memory)), syncs
        syncs += 1
        if (np.asarray(state.ask.node) >= 0).any():
            assert reward is not None
            state = answered(lm, reward, asked, state, memo)
            continue
        if size >= most:
            raise PromptError(
                f"the hypotheses need more than {size} scratch slots, which is all "
                "that this cache can give: use the dense cache, a wider window, or "
                "fewer hypotheses"
            )
        size = min(2 * size, most)
        state = search_state.grown(state, size)


def longest(asked: requests.Requests) -> int:
    """Return the tokens of a text at most."""
    return max(end - len(p) for p, end in zip(asked.rows, asked.limits))


def _check_states(select: Select, rows: decode.DecodeState, new: int) -> None:
    """Refuse a transform whose states at all nodes take too much memory."""
    if select.holds != ALL:
        return
    leaves = jax.tree.leaves(rows.transform.row)
    size = sum(leaf.nbytes for leaf in leaves) * select.capacity(new)
    if size > STATES:
        raise MethodError(
            f"a transform's states at all {select.capacity(new)} nodes of this search "
            f"need {size >> 20} MB, of {STATES >> 20}: ask for fewer tokens, rounds or "
            "prompts, or leave the transform out"
        )


def answered(
    lm: Any,
    reward: Reward,
    asked: requests.Requests,
    state: search_state.SearchState,
    memo: dict,
) -> search_state.SearchState:
    """Ask a reward on the host for all texts that the search waits for, once.

    `memo` maps (request, tokens) to values; the reward is asked for new ones alone.
    """
    assert reward.ask is not None
    nodes, ask = jax.device_get((state.nodes, state.ask))
    places: list[tuple] = []
    spelt = prompts(lm, asked)
    fresh: dict[tuple, Sample] = {}
    for request, place in np.argwhere(ask.node >= 0).tolist():
        node, last = int(ask.node[request, place]), int(ask.last[request, place])
        written, given = climbed(nodes, request, node)
        if last >= 0:
            written.append(last)
        ended = last >= 0 or bool(nodes.ended[request, node])
        key = (request, *written)
        places.append((request, place, key))
        if key not in memo:
            text = None
            if lm.tokenizer is not None:
                text = requests.text_of(lm, written, asked.ends[request])
            about = (ended, request, spelt[request])
            fresh[key] = Sample(written, text, given, *about)
    if fresh:
        memo.update(zip(fresh, rewards.asked(reward.ask, [*fresh.values()])))
    values = np.full(ask.node.shape, np.nan, np.float32)
    for request, place, key in places:
        values[request, place] = memo[key]
    return replace(
        state,
        ask=search_state.nothing(*ask.node.shape),
        values=jnp.asarray(values),
    )


def texts(
    state: search_state.SearchState, asked: requests.Requests, syncs: int
) -> tuple[decode.DecodeState, Found]:
    """Write the `n` best texts of every request into rows of their own.

    Returns:
        Rows as `generate(n=)` has them, on the host, and what is known beside.

    Raises:
        PromptError: a search ended with fewer finished texts than `n`.
    """
    nodes, pool = jax.device_get((state.nodes, state.pool))
    n, prompts = asked.n, asked.prompts
    size = state.rows.tokens.shape[1]
    tokens = np.zeros((prompts * n, size), np.int32)
    logprobs = np.zeros((prompts * n, size), np.float32)
    ends = np.zeros(prompts * n, np.int32)
    for row in range(prompts * n):
        request, place = divmod(row, n)
        node = int(pool.node[request, place])
        if node < 0:
            raise PromptError(
                f"n={n}: the search ended with {place} finished texts for prompt "
                f"{request}; ask for fewer, or search wider"
            )
        written, given = climbed(nodes, request, node)
        if pool.last[request, place] >= 0:
            written.append(int(pool.last[request, place]))
            given.append(float(pool.given[request, place]))
        prompt = asked.rows[row]
        text = slice(len(prompt), len(prompt) + len(written))
        tokens[row, : text.start], tokens[row, text] = prompt, written
        logprobs[row, text], ends[row] = given, text.stop
    best = ends[::n] - np.asarray([len(p) for p in asked.rows[::n]])
    counters = replace(
        state.rows.counters,
        new_tokens=jnp.asarray(best, jnp.int32),
    )
    rows = replace(
        state.rows,
        tokens=jnp.asarray(tokens),
        logprobs=jnp.asarray(logprobs),
        origin=jnp.zeros(tokens.shape, jnp.int8),
        length=jnp.asarray(ends),
        counters=counters,
    )
    counts = (state.nodes_run, state.most_slots, state.level)
    run, most, levels = jax.device_get(counts)
    return rows, Found(pool.score[:, :n], int(state.round), run, syncs, most, levels)


def climbed(nodes: Any, request: int, node: int) -> tuple[list[int], list[float]]:
    """Read the tokens of a path, and their log-probabilities."""
    tokens, given = [], []
    while node > 0:
        tokens.append(int(nodes.tokens[request, node]))
        given.append(float(nodes.given[request, node]))
        node = int(nodes.parents[request, node])
    return tokens[::-1], given[::-1]
