"""Keys are kept a step after their tokens are committed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec, noise
from decoding.caches import dkv
from decoding.conformance import canvases as oracle
from decoding.denoising import schedule
from models.errors import MethodError
from tests.decoding.caches import canvases
from tests.decoding.diffusion import writing

SIZE, STEPS = 7, 5
RANDOM = (
    Spec("diffusion/blocks", size=SIZE),
    Spec("diffusion/llada", steps=STEPS, order="random"),
)


@pytest.mark.long
@pytest.mark.parametrize("alignment", ["same", "shifted"])
def test_keys_are_kept_with_a_delay(alignment):
    """Planted: nothing is kept."""
    assert canvases.differs("dkv", "recompute", alignment)


@functools.cache
def uniform(request, count):
    """The numbers that rank a block's positions where `count` are committed."""
    key = noise.request_keys(0, np.array([request]), np.array([0]))[0]
    key = noise.on_canvas_for(key, noise.UNMASK, count)
    return np.asarray(jax.random.uniform(key, (SIZE,)))


def drawn(request):
    """The rule of `RANDOM`, which sees positions alone."""

    def rule(view):
        first = min(view.guesses) - view.canvas[0]
        lo = view.canvas[0] + first // SIZE * SIZE
        count = lo - view.canvas[0] + view.masks - len(view.guesses)
        each, more = divmod(view.masks, STEPS)
        best = sorted(view.guesses, key=lambda p: -uniform(request, count)[p - lo])
        return {*best[: each + (view.step < more)]}

    return rule


def written(lm, refresh, window, temperature=0.0):
    policy = Spec("caches/dkv", refresh=refresh, window=window)
    if window is None:
        policy = Spec("caches/recompute", visibility="bidirectional")
    method = Method(schedule=RANDOM, policy=policy)
    settings = {"max_new_tokens": writing.NEW, "temperature": temperature}
    return decoding.generate(lm, writing.PROMPTS, method, **settings)


def expected(lm, **settings):
    plan = lambda view, lo: lo + SIZE
    about = (lm.model.config, lm.params)
    return [
        oracle.denoise(
            *about, prompt, writing.NEW, drawn(i), plan, policy="dkv", **settings
        )
        for i, prompt in enumerate(writing.PROMPTS)
    ]


@pytest.mark.parametrize(
    "alignment", ["shifted", pytest.param("same", marks=pytest.mark.long)]
)
def test_a_window_runs_beside_what_is_committed(alignment):
    """In an order that is drawn before. Planted: other windows, and none."""
    lm = writing.lm(alignment, eos=(), scale=2.0)
    out = written(lm, 3, 1)
    assert writing.same(out, expected(lm, refresh=3, beside=1))
    for beside in (0, 3, None):
        assert not writing.same(out, expected(lm, refresh=3, beside=beside))


@pytest.mark.long
def test_a_window_that_is_renewed_at_every_step_is_exact():
    """At temperature 0.8. Planted: every second step."""
    lm = writing.lm(eos=(), scale=2.0)
    exact = written(lm, 1, None, 0.8).tokens
    assert written(lm, 1, 1, 0.8).tokens == exact
    assert written(lm, 2, 1, 0.8).tokens != exact


def canvas(opened, step):
    """A state of a block that begins at position 3, where 5 was committed last."""
    number = lambda x: jnp.asarray(x, jnp.int32)
    place = np.arange(16)
    return schedule.Canvas(
        tokens=number(place),
        known=jnp.asarray(~np.isin(place, opened)),
        born=number(np.where(place == 5, step - 1, -1)),
        start=number(3),
        lo=number(3),
        hi=number(11),
        begun=number(0),
        limit=number(15),
        count=number(1),
        step=number(step),
        window=8,
    )


@pytest.mark.parametrize(
    ("window", "beside", "both"),
    [
        (0, set(), set()),
        (1, {8}, {8, 9}),
        (2, {8, 9}, {8, 9, 11}),  # none is open at distance 1 or 2 on the left
        (3, {4, 8, 9}, {4, 8, 9, 11}),  # at distance 3 the left one is first
        (4, {4, 8, 9, 10}, {3, 4, 8, 9, 11, 12}),
        (9, {3, 4, 8, 9, 10, 11, 12}, {3, 4, 8, 9, 11, 12}),
    ],
)
def test_the_nearest_open_positions(window, beside, both):
    """Of 7, and of 7 and 10; 5 was committed before. Planted: of 10 alone."""
    state = canvas([3, 4, 7, 8, 9, 10, 11, 12], 1)

    def runs(*wanted):
        where = jnp.zeros(16, bool).at[jnp.asarray(wanted)].set(True)
        return {*np.flatnonzero(dkv.canvas_policy(2, window).run(state, where))}

    assert runs(7) == {5, 7} | beside
    assert runs(7, 10) == {5, 7, 10} | both
    assert window == 0 or runs(10) - {10} != runs(7, 10) - {7, 10}


def test_a_window_of_the_canvas_runs_all_that_is_open():
    """As without one, but in the second step of a block. Planted: that step."""
    wanted = jnp.zeros(16, bool).at[7].set(True)
    for step in range(1, 9):
        state = canvas([3, 4, 7, 8, 9, 10], step)
        runs = [dkv.canvas_policy(4, w).run(state, wanted) for w in (None, 16)]
        assert (runs[0] == runs[1]).all() == (step > 1)


def test_refused_numbers():
    for about, words in (((0, None), "refresh=0"), ((2, -1), "window=-1")):
        with pytest.raises(MethodError, match=words):
            dkv.canvas_policy(*about)


@pytest.mark.parametrize(
    "schedule", [(Spec("diffusion/llada"),), (*RANDOM, Spec("diffusion/eotp"))]
)
def test_an_order_that_is_not_known_before_is_refused(schedule):
    method = Method(schedule=schedule, policy=Spec("caches/dkv", window=4))
    with pytest.raises(MethodError, match="order='random'"):
        decoding.generate(writing.lm(), [[1]], method, max_new_tokens=2)
