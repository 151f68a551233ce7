"""What every method owes the loop: shapes, keys, rows, ends and caches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method
from decoding.loops import decode, engines
from tests.conformance import kit

CASES = kit.cases()
EACH = kit.each(CASES)
# Without jit every operation is compiled by itself, and a batch of one has programs of
# its own, some ten seconds a case: these run always, the others with `-m long`.
EAGER = ("plain", "oracle-chain")
EACH_EAGER = [
    pytest.param(method, id=name, marks=() if name in EAGER else (pytest.mark.long,))
    for name, method in CASES.items()
]
RECYCLING = CASES["token_recycling"]


def compiled() -> int:
    """Programs compiled so far in this process."""
    return sum(len(d._compiled) for d in engines._ENGINES.values())


def halfway(run: kit.Run, rounds: int = 3, **fields) -> decode.DecodeState:
    return run.advance(run.start(**fields), rounds)


@pytest.mark.parametrize("method", EACH)
def test_the_carry_is_a_fixed_point(method):
    run = kit.Run(method, 0.8)
    state = run.start()
    program = run.parts.program
    after = jax.eval_shape(
        lambda p, s: decode.round_(program, p, s)[0], run.params, state
    )
    before = jax.eval_shape(lambda s: s, state)
    assert jax.tree.structure(after) == jax.tree.structure(before)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(before)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)


@pytest.mark.parametrize("method", EACH_EAGER)
def test_a_round_is_the_same_without_jit(method):
    run = kit.Run(method, 0.8)
    state = halfway(run)
    slow = decode.round_(run.parts.program, run.params, kit.copy(state))[0]
    fast = run.advance(state, 1)
    assert kit.same(slow.tokens, fast.tokens)
    assert kit.same(slow.length, fast.length)
    assert kit.same(slow.counters, fast.counters)


@pytest.mark.parametrize("method", EACH)
def test_a_second_call_compiles_nothing(method):
    kit.generate(method, 0.8)
    before = compiled()
    out = kit.generate(
        method, 0.7, seed=3, prompts=[[5, 4], [1, 1, 1], [2], [3] * 7], max_new_tokens=9
    )
    assert compiled() == before
    assert out.stats.compile_seconds == 0


def test_fault_a_setting_that_shapes_the_program():
    """The counter can count: another length of chain is another program."""
    kit.generate(Method(kit.spec("drafters/copyspec", copy=2)), 0.0)
    before = compiled()
    kit.generate(Method(kit.spec("drafters/copyspec", copy=3)), 0.0)
    assert compiled() > before


def moved(run: kit.Run, order: list[int], keys) -> list[tuple[list, list]]:
    """Text and log-probabilities of requests `order`, in the order of `PROMPTS`."""
    prompts = [kit.PROMPTS[i] for i in order]
    state = run.advance(run.start(prompts).replace(key=keys))
    texts, given = kit.texts(state, prompts), np.asarray(state.logprobs)
    spans = zip(prompts, given, texts)
    said = [row[len(p) : len(p) + len(text)].tolist() for p, row, text in spans]
    return [(texts[order.index(i)], said[order.index(i)]) for i in sorted(order)]


@pytest.mark.parametrize("method", EACH)
def test_a_request_does_not_see_its_row(method):
    """Every request in the next row, among other neighbours: the same to the bit."""
    together = kit.generate(method, 0.8)
    keys = engines.request_keys(0, len(kit.PROMPTS), 1)
    order = [3, 0, 1, 2]
    found = moved(kit.Run(method, 0.8), order, keys[np.array(order)])
    assert found == list(zip(together.tokens, together.logprobs))


@pytest.mark.parametrize("method", EACH_EAGER)
def test_a_row_alone_is_the_row_in_a_batch(method):
    """The same in a program of one row."""
    together = kit.generate(method, 0.8)
    keys = engines.request_keys(0, len(kit.PROMPTS), 1)
    run = kit.Run(method, 0.8)
    for i in range(len(kit.PROMPTS)):
        (found,) = moved(run, [i], keys[i : i + 1])
        assert found == (together.tokens[i], together.logprobs[i])


def test_fault_keys_of_the_row():
    """Planted: the key of the row that a request runs in, not the request's."""
    together = kit.generate(Method(), 0.8)
    keys = engines.request_keys(0, len(kit.PROMPTS), 1)
    found = moved(kit.Run(Method(), 0.8), [3, 0, 1, 2], keys)
    assert [text for text, _ in found] != together.tokens


def pause(run: kit.Run, state: decode.DecodeState) -> decode.DecodeState:
    """Row 0 sits finished through two rounds, and then goes on."""
    state = run.advance(state.replace(done=state.done.at[0].set(True)), 2)
    return run.advance(state.replace(done=state.done.at[0].set(False)))


@pytest.mark.parametrize("method", EACH)
def test_a_finished_row_is_inert(method):
    run = kit.Run(method, 0.8)
    state = halfway(run)
    still = kit.copy(state)
    paused = pause(run, kit.copy(state))
    assert kit.texts(paused) == kit.texts(run.advance(state))

    def counted(s):
        return (
            s.tokens[0],
            s.length[0],
            s.origin[0],
            jax.tree.map(lambda x: x[0], s.counters),
        )

    stopped = still.replace(done=still.done.at[0].set(True))
    before = kit.copy(counted(stopped))
    assert kit.same(counted(run.advance(stopped, 2)), before)


def learned(run: kit.Run) -> bool:
    """Whether a round in which every row is finished changes what is shared."""
    state = run.start()
    state = state.replace(done=jnp.ones_like(state.done))
    before = jax.device_get(state.drafter.shared)
    rows = len(kit.PROMPTS)
    state = run.engine.advance(run.params, state, rounds=1, free=rows + 1)
    return not kit.same(state.drafter.shared, before)


@pytest.mark.parametrize("method", EACH)
def test_a_finished_row_teaches_nothing(method):
    assert not learned(kit.Run(method, 0.8))


def test_fault_finished_rows_teach():
    run = kit.Run(RECYCLING, 0.8)
    sound = run.parts.program.drafter

    def observe(ctx, state, outcome):
        everyone = outcome.replace(active=jnp.ones_like(outcome.active))
        return sound.observe(ctx, state, everyone)

    assert learned(run.alter(drafter=sound._replace(observe=observe)))


@pytest.mark.parametrize("method", EACH)
def test_limits_cut_at_every_offset(method):
    """Greedy texts of 1 to 9 tokens are the beginnings of the long one."""
    whole = kit.plain(method, 0.0)
    for new in range(1, 10):
        out = kit.generate(method, 0.0, max_new_tokens=new)
        assert out.tokens == [text[:new] for text in whole]
        assert out.stats.new_tokens.tolist() == [new] * len(whole)


ENDINGS = range(10, 22)


def ends(method: Method, seed: int) -> tuple[list, list, list]:
    """Texts, plain texts, and the depth of the draft that ended each text."""
    lm = kit.model(seed, 1.0)
    out = kit.generate(method, 0.0, lm=lm, draft=lm)
    cut = [o[-1] for t, o in zip(out.tokens, out.origin) if t[-1] == kit.EOS]
    return out.tokens, kit.plain(method, 0.0, lm=lm), cut


@pytest.mark.parametrize("method", EACH)
def test_eos_cuts_at_every_offset(method):
    met = set()
    for seed in ENDINGS:
        texts, plain, cut = ends(method, seed)
        assert texts == plain
        met |= set(cut)
    if method.drafter == kit.spec("drafters/oracle"):
        depth = kit.Run(method).parts.program.drafter.depth
        assert met == set(range(depth + 1))


def test_fault_eos_inside_a_path():
    """Planted: only the last token of a round is looked at."""
    method = CASES["oracle-chain"]
    lm = kit.model(ENDINGS[0], 1.0)
    run = kit.Run(method, lm=lm)
    assert run.alter(eos=()).texts() != kit.plain(method, 0.0, lm=lm)


def committed(state: decode.DecodeState) -> list:
    """The target's committed slots, row by row."""
    cache = jax.device_get(state.caches["target"])
    rows = []
    for i, length in enumerate(cache.length):
        own = [
            (layer.token[i, :length], layer.pos[i, :length]) for layer in cache.layers
        ]
        rows.append([int(length), cache.pos[i, :length].tolist()])
        rows[-1] += [[t.tolist(), p.tolist()] for t, p in own]
    return rows


def prefilled(run: kit.Run, state: decode.DecodeState) -> list:
    """The cache of a fresh start from the committed tokens."""
    tokens, length = np.asarray(state.tokens), np.asarray(state.length)
    return committed(run.start([t[:n].tolist() for t, n in zip(tokens, length)]))


@pytest.mark.parametrize("method", EACH)
def test_the_cache_is_that_of_a_fresh_prefill(method):
    run = kit.Run(method, 0.8)
    state = halfway(run, 4)
    assert committed(state) == prefilled(run, state)


@pytest.mark.parametrize("more", [1, -1])
def test_fault_rollback_off_by_one(more):
    run = kit.Run(RECYCLING, 0.8)
    sound = run.parts.program.policy

    def retain(state, cache, outcome):
        cache, state = sound.retain(state, cache, outcome)
        wrong = (
            0 if outcome.tree.linear else more
        )  # not in prefill, which would never end
        return cache.replace(length=cache.length + wrong), state

    state = halfway(run.alter(policy=sound._replace(retain=retain)), 2)
    assert committed(state) != prefilled(kit.Run(RECYCLING, 0.8), state)


def test_requests_are_known_by_their_key_alone():
    """One seed for all is the same as that seed for each."""
    one = kit.generate(Method(), 0.8, seed=4)
    listed = kit.generate(Method(), 0.8, seed=[4, 4, 4, 4])
    assert one.tokens == listed.tokens
