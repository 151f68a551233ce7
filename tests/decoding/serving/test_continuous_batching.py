"""Refilled rows: the same texts whenever a request is admitted, and rows in use."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, compose
from decoding.conformance import kit
from decoding.loops import admission, engines
from decoding.serving import continuous_batching
from models import transformer
from models.base import causal_block
from models.cache_layouts import paged
from models.errors import PromptError

LM = kit.model(0, -1.0)  # whose texts end now and then
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, 7, n).tolist() for n in RNG.integers(1, 12, 16)]
NEW = [int(n) for n in np.clip(RNG.lognormal(2, 1, 16), 1, 40)]
LIMITS = [len(p) + n for p, n in zip(PROMPTS, NEW)]
CASES = ("plain", "oracle-chain", "token_recycling")


def refilled(method, batch=3, lm=LM, temperature=0.8, keys=None, **fields):
    """Texts and log-probabilities by request, and the usage."""
    drafts = kit.drafts(method)
    parts = compose.compose(method, lm, temperature, drafts)
    keys = engines.request_keys(0, len(PROMPTS), 1) if keys is None else keys
    usage = continuous_batching.Usage()
    found = list(
        continuous_batching.decode_requests(
            parts,
            {"target": lm.params},
            fields.pop("prompts", PROMPTS),
            fields.pop("limits", LIMITS),
            keys,
            batch,
            usage=usage,
            **fields,
        )
    )
    by_request = {f.request: f for f in found}
    assert len(by_request) == len(found)
    return [by_request[i].tokens for i in sorted(by_request)], found, usage


def alone(method: Method) -> list[list[int]]:
    """What `generate` says of all prompts in one batch, cut to each one's length."""
    out = kit.generate(
        Method(transforms=method.transforms), 0.8, prompts=PROMPTS, lm=LM
    )
    return [t[:n] for t, n in zip(out.tokens, NEW)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n == "token_recycling" else pytest.mark.long)
        for n in CASES
    ],
)
def test_a_text_does_not_depend_on_its_admission(name):
    """Refilled at once or late, in another order, and, plain, in batches of 1 and
    prefilled one by one: the texts of one large batch of plain decoding."""
    method = kit.cases()[name]
    wanted = alone(method)
    assert len({len(t) for t in wanted}) > 5
    texts, found, usage = refilled(method)
    assert texts == wanted
    order = [f.request for f in found]
    assert order != sorted(order)  # short texts overtake long ones
    assert usage.used == sum(f.calls for f in found)
    backwards = list(reversed(range(len(PROMPTS))))
    assert refilled(method, free=2, wanted=backwards)[0] == wanted
    if name == "plain":
        assert refilled(method, batch=1)[0] == wanted
        assert refilled(method, together=1)[0] == wanted
    assert refilled(method, wanted=[3, 9, 4])[0] == [wanted[i] for i in (3, 4, 9)]


def test_log_probabilities_are_the_request_s():
    _, found, _ = refilled(Method())
    for text in found[::5]:
        _, single, _ = refilled(Method(), batch=1, wanted=[text.request])
        assert text.logprobs == single[0].logprobs
        assert len(text.logprobs) == len(text.tokens)


def test_no_prefilled_row_stays_beside_the_rounds(monkeypatch):
    """Once all are admitted; planted: something else refers to the prefilled state."""
    method, together = kit.cases()["plain"], continuous_batching.TOGETHER
    sound = engines.Engine.advance, engines.Engine.start

    def beside(keep: bool) -> int:
        """The most arrays of `together` rows while rounds ran."""
        alive: list[int] = [0]
        held: list = []

        def advance(*arguments):
            rows = [x.shape[:1] for x in jax.live_arrays()]
            alive.append(rows.count((together,)))
            return sound[0](*arguments)

        def start(*arguments, **fields):
            held[:] = [sound[1](*arguments, **fields)]
            return held[0] if keep else held.pop()

        monkeypatch.setattr(engines.Engine, "advance", advance)
        monkeypatch.setattr(engines.Engine, "start", start)
        refilled(method, wanted=range(3))  # of one prefill
        return max(alive)

    first = sum(x.shape[:1] == (together,) for x in jax.live_arrays())
    assert beside(False) <= first < beside(True)


def test_fault_noise_of_the_row(monkeypatch):
    """Planted: a request takes the key of the row that it runs in."""
    sound = admission.admit

    def admit(state, row, fresh, source):
        after = sound(state, row, fresh, source)
        return dataclasses.replace(after, key=state.key)

    method = Method()
    wanted = alone(method)
    monkeypatch.setattr(admission, "admit", admit)
    monkeypatch.setattr(engines, "_ENGINES", {})
    assert refilled(method)[0] != wanted


def test_fault_noise_of_the_time():
    """Planted: keys are given in the order of admission, not of the prompts."""
    method = Method()
    order = np.roll(np.arange(len(PROMPTS)), 5)
    keys = engines.request_keys(0, len(PROMPTS), 1)
    by_time = keys[np.argsort(order)]  # request order[i] is admitted ith
    assert refilled(method, keys=by_time, wanted=order.tolist())[0] != alone(method)
    assert refilled(method, wanted=order.tolist())[0] == alone(method)


def test_what_a_drafter_learned_outlives_its_request():
    """The matrix of Token Recycling goes on; the texts are the same without it."""
    method = kit.cases()["token_recycling"]
    calls = sum(f.calls for f in refilled(method)[1])
    drafter = compose.compose(method, LM, 0.8).program.drafter
    forgetful = {"target": LM.params}
    single = [
        next(
            continuous_batching.decode_requests(
                compose.compose(method, LM, 0.8),
                forgetful,
                PROMPTS,
                LIMITS,
                engines.request_keys(0, len(PROMPTS), 1),
                3,
                wanted=[i],
            )
        )
        for i in range(len(PROMPTS))
    ]
    assert drafter.depth > 0 and calls < sum(f.calls for f in single)


def compilations():
    """A list that grows by one with every program that XLA compiles."""
    found: list[str] = []

    def listen(event: str, seconds: float, **_) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return found, listen


def test_nothing_compiles_after_the_first_requests():
    """Neither a program of the loop nor any small operation of the host's."""
    method = kit.cases()["token_recycling"]
    refilled(method, wanted=range(8))
    found, listen = compilations()
    try:
        refilled(method, wanted=range(3, 16))
        assert found == []
        # Planted: a batch of another size.
        refilled(method, batch=2, together=3, wanted=range(4))
        assert found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_requests_bring_their_own_settings():
    """Greedy and sampled requests in turns; planted: those of another request."""
    heats = [(0.0, 0.7, 1.2)[i % 3] for i in range(len(PROMPTS))]
    whole = kit.generate(Method(), heats, prompts=PROMPTS, lm=LM).tokens
    wanted = [t[:n] for t, n in zip(whole, NEW)]
    settings = {"together": 1}
    assert refilled(Method(), temperature=heats, **settings)[0] == wanted
    assert refilled(Method(), temperature=heats[::-1], **settings)[0] != wanted
    with pytest.raises(PromptError, match="2 settings for 16 prompts"):
        refilled(Method(), temperature=heats[:2], **settings)


def live() -> int:
    return sum(x.nbytes for x in jax.live_arrays())


def test_memory_is_flat():
    """What is live when a text comes does not grow with the texts before it."""
    parts = compose.compose(Method(), LM, 0.8)
    keys = engines.request_keys(0, len(PROMPTS), 1)
    keep, seen = [], []
    for _ in continuous_batching.decode_requests(
        parts, {"target": LM.params}, PROMPTS, LIMITS, keys, 3, together=1
    ):
        seen.append(live())
    assert max(seen[8:]) <= max(seen[:8])
    # Planted: the caller keeps something on the device.
    for text in continuous_batching.decode_requests(
        parts, {"target": LM.params}, PROMPTS, LIMITS, keys, 3, together=1
    ):
        keep.append(jnp.zeros(len(text.tokens) + 1000))
        seen.append(live())
    assert max(seen[-8:]) > max(seen[:8])


def ragged(count: int, rows: int, **fields):
    rng = np.random.default_rng(1)
    lengths = np.clip(rng.lognormal(2.5, 0.8, count), 1, 100).astype(int)
    prompts = [rng.integers(0, 7, n).tolist() for n in rng.integers(1, 12, count)]
    limits = [len(p) + int(n) for p, n in zip(prompts, lengths)]
    keys = engines.request_keys(0, count, 1)
    *_, usage = refilled(
        Method(), rows, kit.TARGET, prompts=prompts, limits=limits, keys=keys, **fields
    )
    return usage


def test_rows_are_in_use():
    """All but the end of 120 requests; batch by batch (the planted fault) half."""
    usage = ragged(120, 4)
    assert usage.occupancy > 0.95 and usage.rows == 4
    assert ragged(120, 4, free=4).occupancy < 0.7


@pytest.mark.long
def test_rows_are_in_use_at_length():
    """2,000 requests with log-normal lengths in 16 rows; rounds at least halve."""
    usage = ragged(2000, 16)
    assert usage.occupancy >= 0.95
    fixed = ragged(2000, 16, free=16)
    assert fixed.rounds >= 1.5 * usage.rounds


@pytest.mark.long
def test_memory_is_flat_over_ten_thousand_requests():
    """Live arrays and the process's memory, after 1,000 requests and after 10,000."""
    count = 10_000
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, 7, 4).tolist() for _ in range(count)]
    limits = [4 + int(n) for n in rng.integers(1, 8, count)]
    parts = compose.compose(Method(), kit.TARGET, 0.8)
    keys = engines.request_keys(0, count, 1)
    arrays, resident = [], []
    texts = continuous_batching.decode_requests(
        parts, {"target": LM.params}, prompts, limits, keys, 32
    )
    for i, _ in enumerate(texts):
        if i % 500 == 499:
            arrays.append(live())
            with open("/proc/self/statm") as file:
                resident.append(int(file.read().split()[1]) * 4096)
    assert max(arrays[2:]) <= max(arrays[:2])
    assert resident[-1] - resident[1] < 32 * 2**20


def small_lm(cache=None):
    ropes = (transformer.rope(8, 1e4),)
    config = transformer.Config(8, 16, 1, 2, 1, 8, 16, 1024, ropes=ropes, tied=False)
    given = {} if cache is None else {"cache": cache}
    return transformer.transformer(config, **given)


def test_paged_rows_are_replaced():
    """A new request's pages are copied in and the old ones given back: with a pool that
    holds the rows and no more, the texts are the dense cache's."""
    dense = small_lm()
    params = jax.jit(dense.init)(jax.random.key(0))
    wanted = range(8)
    texts = {}
    for name, model in (("dense", dense), ("paged", small_lm(paged.pages(16, 24)))):
        lm = kit.types.SimpleNamespace(
            model=model, params=params, tokenizer=None, config=model.config
        )
        out = refilled(Method(), 2, lm, wanted=wanted, together=2)
        texts[name] = out[0]
    assert texts["paged"] == texts["dense"]
    assert len(texts["dense"]) == 8


def test_a_row_s_pages_are_put():
    """Their contents, twice over; the old ones are given back."""
    model = small_lm(paged.pages(16, 24))
    state = model.init_cache(2, 32, jnp.float32)
    fresh = model.init_cache(1, 32, jnp.float32)
    tokens = jnp.arange(20)[None] % 8
    params = jax.jit(model.init)(jax.random.key(0))
    block = causal_block(tokens, jnp.zeros(1, int), jnp.array([20]), fresh.size)
    call = jax.jit(
        lambda c: model(params, c, block)[1].commit(
            jnp.zeros((1, 0), int), jnp.array([19]), linear=True
        )
    )
    fresh = call(fresh)
    put = jax.jit(lambda a, b: a.admit(1, b, 0))
    whole = put(put(state, fresh), fresh)  # the second time the pages are given back
    assert whole.length.tolist() == [0, 20] and not bool(whole.exhausted)
    assert int((whole.users > 0).sum()) == 2
    for layer, given in zip(whole.layers, fresh.layers):
        for old, new in zip(given.read(), layer.read()):
            np.testing.assert_array_equal(new[1, :, :20], old[0, :, :20])
    # Planted: the pages of the other pool are named, and not copied.
    names = jax.jit(lambda a, b: a._with(a.table.at[1].set(b.table[0]), a.users))
    wrong = names(state, fresh).layers[0].read()[0][1]
    assert not np.array_equal(wrong, fresh.layers[0].read()[0][0])


def test_sizes_are_checked():
    for fields in ({"batch": 0}, {"together": 0}, {"free": 0}):
        with pytest.raises(PromptError, match=next(iter(fields))):
            refilled(Method(), **fields)
    named = decoding.Stream(kit.TARGET.model, "target", [[1]])
    method = Method(transforms=(kit.spec("transforms/contrastive"),))
    given = dict.fromkeys(kit.streams(method), named)
    parts = compose.compose(method, LM, 0.8, None, given)
    with pytest.raises(PromptError, match="prompts of its own"):
        next(continuous_batching.decode_requests(parts, {}, PROMPTS, LIMITS, None, 2))
