"""The contract of drafters and exits: texts, independent rows, ends and caches.

The text must be plain decoding's under the same transforms, cache policy and exit. A
lossy drafter is checked with arguments under which it changes nothing
(`CARD.examples`). `lax.while_loop` itself requires that a round keep the structure,
shapes and dtypes of the state.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from decoding.conformance import kit
from decoding.conformance.require import require
from decoding.loops import decode, engines
from decoding.method import Method

TEMPERATURE = 0.8
HEATS = (0.0, TEMPERATURE, TEMPERATURE, 0.0)  # of the kit's prompts
SEEDS = (0, 5)
ENDINGS = range(10, 22)  # seeds of toy models that end their texts


def check(method: Method) -> None:
    """Check a method against every contract of `CONTRACT`.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    for contract in CONTRACT:
        contract(method)


def text_is_plain(method: Method, temperature: float) -> None:
    """Require plain decoding's text, with and without `memory`.

    `memory` may change the speed, never the text.
    """
    for seed in SEEDS:
        plain = kit.plain(method, temperature, seed=seed)
        out = kit.generate(method, temperature, seed=seed)
        require(out.tokens == plain, method, f"not plain's text at T = {temperature}")
        again = kit.generate(method, temperature, seed=seed, memory=out.memory)
        require(again.tokens == plain, method, "memory changes the text")
        require(again.stats.compile_seconds == 0, method, "memory recompiles")


def greedy_text_is_plain(method: Method) -> None:
    """Require plain decoding's text at temperature 0."""
    text_is_plain(method, 0.0)


def sampled_text_is_plain(method: Method) -> None:
    """Require plain decoding's text at `TEMPERATURE`."""
    text_is_plain(method, TEMPERATURE)


def greedy_rows_are_plain(method: Method) -> None:
    """Require plain decoding's text from greedy rows among sampled ones.

    The sampled program serves them, so that this costs no compilation.
    """
    texts = kit.generate(method, HEATS).tokens
    require(texts == kit.plain(method, HEATS), method, "not plain's text by row")


def compiled() -> int:
    """Count the programs compiled so far in this process."""
    return sum(len(d._compiled) for d in engines._ENGINES.values())


def a_second_call_compiles_nothing(method: Method) -> None:
    """Require one program for other temperatures, seeds, prompts and lengths."""
    kit.generate(method, TEMPERATURE)
    before, prompts = compiled(), [[5, 4], [1, 1, 1], [2], [3] * 7]
    out = kit.generate(method, 0.7, seed=3, prompts=prompts, max_new_tokens=9)
    require(compiled() == before, method, "a second call compiles")
    require(out.stats.compile_seconds == 0, method, "a second call compiles")


def moved(run: kit.Run, order: list[int], keys) -> list[tuple[list, list]]:
    """Run requests in rows of `order`; return text and logprobs in `PROMPTS`' order."""
    prompts = [kit.PROMPTS[i] for i in order]
    state = run.advance(replace(run.start(prompts), key=keys))
    texts, logprobs = kit.texts(state, prompts), np.asarray(state.logprobs)
    spans = zip(prompts, logprobs, texts)
    rows = [row[len(p) : len(p) + len(text)].tolist() for p, row, text in spans]
    return [(texts[order.index(i)], rows[order.index(i)]) for i in sorted(order)]


def a_request_does_not_see_its_row(method: Method) -> None:
    """Require the same bits from each request in another row, with other neighbours."""
    together = kit.generate(method, TEMPERATURE)
    keys, order = engines.request_keys(0, len(kit.PROMPTS), 1), [3, 0, 1, 2]
    texts = moved(kit.Run(method, TEMPERATURE), order, keys[np.array(order)])
    same = texts == list(zip(together.tokens, together.logprobs))
    require(same, method, "a text depends on its row")


def a_row_alone_is_the_row_in_a_batch(method: Method) -> None:
    """Require the same bits from each request in a program of one row."""
    together = kit.generate(method, TEMPERATURE)
    keys, run = (
        engines.request_keys(0, len(kit.PROMPTS), 1),
        kit.Run(method, TEMPERATURE),
    )
    for i in range(len(kit.PROMPTS)):
        (row,) = moved(run, [i], keys[i : i + 1])
        same = row == (together.tokens[i], together.logprobs[i])
        require(same, method, "a text depends on the size of its batch")


def a_round_is_the_same_without_jit(method: Method) -> None:
    """Require the same tokens, lengths and counters of one round without jit."""
    run = kit.Run(method, TEMPERATURE)
    state = run.advance(run.start(), 3)
    slow = decode.round_(run.parts.program, run.params, kit.copy(state))[0]
    fast = run.advance(state, 1)
    for name in ("tokens", "length", "counters"):
        same = kit.same(getattr(slow, name), getattr(fast, name))
        require(same, method, f"jit changes {name}")


def pause(run: kit.Run, state: decode.DecodeState) -> decode.DecodeState:
    """Mark row 0 finished for two rounds, then let it continue."""
    state = run.advance(replace(state, done=state.done.at[0].set(True)), 2)
    return run.advance(replace(state, done=state.done.at[0].set(False)))


def a_finished_row_is_inert(method: Method) -> None:
    """Require that rounds leave a finished row unchanged, able to continue."""
    run = kit.Run(method, TEMPERATURE)
    state = run.advance(run.start(), 3)
    still = kit.copy(state)
    paused = kit.texts(pause(run, kit.copy(state)))
    require(paused == kit.texts(run.advance(state)), method, "a pause changes a text")

    def counted(s: decode.DecodeState) -> tuple:
        counters = jax.tree.map(lambda x: x[0], s.counters)
        return s.tokens[0], s.length[0], s.origin[0], counters

    stopped = replace(still, done=still.done.at[0].set(True))
    before = kit.copy(counted(stopped))
    same = kit.same(counted(run.advance(stopped, 2)), before)
    require(same, method, "a finished row is written to")


def learned(run: kit.Run) -> bool:
    """Return whether a round of finished rows alone changes `shared` leaves."""
    state = run.start()
    state = replace(state, done=jnp.ones_like(state.done))
    before = jax.device_get(state.drafter.shared)
    rows = len(kit.PROMPTS)
    state = run.engine.advance(run.params, state, rounds=1, free=rows + 1)
    return not kit.same(state.drafter.shared, before)


def a_finished_row_teaches_nothing(method: Method) -> None:
    """Require that `observe` leaves `shared` unchanged if no row is active."""
    require(
        not learned(kit.Run(method, TEMPERATURE)),
        method,
        "finished rows write to shared",
    )


def limits_cut_at_every_offset(method: Method) -> None:
    """Require that texts of 1 to 9 tokens are prefixes of the long one."""
    whole = kit.plain(method, TEMPERATURE)
    for new in range(1, 10):
        out = kit.generate(method, TEMPERATURE, max_new_tokens=new)
        cut = out.tokens == [text[:new] for text in whole]
        require(cut, method, f"a limit of {new} gives another text")
        counts = out.stats.new_tokens.tolist()
        require(counts == [new] * len(whole), method, f"{counts} tokens of {new}")


def ends(method: Method, seed: int) -> tuple[list, list, list]:
    """Return texts, plain texts, and the depths of the drafts that ended texts."""
    lm = kit.model(seed, 1.0)
    out = kit.generate(method, TEMPERATURE, lm=lm, draft=lm)
    cut = [o[-1] for t, o in zip(out.tokens, out.origin) if t[-1] == kit.EOS]
    return out.tokens, kit.plain(method, TEMPERATURE, lm=lm), cut


def eos_cuts_at_every_offset(method: Method) -> None:
    """Require plain's text, EOS included, from texts that end inside a path."""
    depths = set()
    for seed in ENDINGS:
        texts, plain, cut = ends(method, seed)
        require(texts == plain, method, "a text that ends is not plain's")
        depths |= set(cut)
    if method.drafter == kit.spec("drafters/oracle"):
        depth = kit.Run(method).parts.program.drafter.depth
        require(depths == set(range(depth + 1)), method, f"EOS at depths {depths} only")


def committed(state: decode.DecodeState, passed: np.ndarray | None = None) -> list:
    """List the target's committed cache slots, row by row.

    `passed` bool[L, B, S]: slots of tokens that passed a layer, which leave nothing.
    """
    cache = jax.device_get(state.caches["target"])
    rows = []
    for i, length in enumerate(cache.length):
        rows.append([int(length), cache.pos[i, :length].tolist()])
        for j, layer in enumerate(cache.layers):
            slots = np.arange(length)
            if passed is not None:
                slots = slots[~passed[j, i, :length]]
            rows[-1].append(
                [layer.token[i, slots].tolist(), layer.pos[i, slots].tolist()]
            )
    return rows


def prefilled(
    run: kit.Run, state: decode.DecodeState, passed: np.ndarray | None = None
) -> list:
    """List the cache slots of a fresh start from the committed tokens."""
    tokens, length = np.asarray(state.tokens), np.asarray(state.length)
    texts = [t[:n].tolist() for t, n in zip(tokens, length)]
    return committed(run.start(texts), passed)


def passed_by(run: kit.Run, state: decode.DecodeState) -> np.ndarray | None:
    """Return bool[L, B, S]: which committed tokens passed which layers."""
    exits, cache = run.parts.program.exit, state.caches["target"]
    if exits.layers is None:
        return None
    places = jnp.broadcast_to(jnp.arange(cache.size, dtype=jnp.int32), cache.pos.shape)
    return np.asarray(exits.layers(state.exit, places)[1])


def the_cache_is_that_of_a_fresh_prefill(method: Method) -> None:
    """Require, after four rounds, each layer's tokens, positions and length."""
    run = kit.Run(method, TEMPERATURE)
    state = run.advance(run.start(), 4)
    passed = passed_by(run, state)
    same = committed(state, passed) == prefilled(run, state, passed)
    require(same, method, "the cache after rounds is not that of a prefill")


CONTRACT = (
    greedy_text_is_plain,
    sampled_text_is_plain,
    greedy_rows_are_plain,
    a_second_call_compiles_nothing,
    a_request_does_not_see_its_row,
    a_finished_row_is_inert,
    a_finished_row_teaches_nothing,
    limits_cut_at_every_offset,
    eos_cuts_at_every_offset,
    the_cache_is_that_of_a_fresh_prefill,
)
# Without jit every operation compiles by itself, and a batch of one has its own
# programs: some ten seconds a method.
SLOW = (a_round_is_the_same_without_jit, a_row_alone_is_the_row_in_a_batch)
