"""The denoise loop: requests, ends of texts, given text behind, other loops.

All calls share one program: one position a forward in blocks of 5 at T = 0.8, with a
stop automaton. The rules and cache policies have tests of their own, against the
plain-Python loop.
"""

import types

import jax
import numpy as np
import pytest

import decoding
from decoding import Method, Spec, base, compose, noise
from decoding.conformance import canvases, laws, schedules
from decoding.loops import engines
from decoding.serving import continuous_batching
from models import transformer
from models.cache_layouts import kv_cache, quantized
from models.errors import MethodError
from models.synthetic import toy_masked

METHOD = Method(schedule=(Spec("diffusion/blocks", size=5),))
PROMPTS = [[1, 2, 3], [2, 0, 1, 4, 4], [5], [1] * 9]
NEW, HEAT, STOP = 13, 0.8, "eee"


def lm(eos=()):
    model, params = toy_masked.model(7, scale=2.0, eos=eos)
    return types.SimpleNamespace(
        model=model, params=params, tokenizer=schedules.Letters()
    )


def written(prompts=PROMPTS, model=None, **settings):
    numbers = {"max_new_tokens": NEW, "temperature": HEAT, "stop": STOP, "seed": 0}
    return decoding.generate(model or lm(), prompts, METHOD, **{**numbers, **settings})


def drawn(seed, request):
    """The draw of a request's noise, for the plain-Python loop."""
    key = noise.request_keys(seed, np.array([request]), np.array([0]))[0]

    def draw(position, count, logits):
        own = noise.on_canvas(key, position, count, len(logits))
        return int(np.asarray(logits / np.float32(HEAT) + own).argmax())

    return draw


def test_samples_are_the_oracle_s():
    """Every draw is a function of request, position and committed tokens."""
    out, toy = written(stop="ffffff"), lm()
    plan = lambda view, lo: lo + 5
    single = lambda view: canvases.first(view.guesses, 1)
    for i, prompt in enumerate(PROMPTS):
        about = (toy.model.config, toy.params, prompt, NEW, single, plan)
        text = canvases.denoise(*about, draw=drawn(0, i))
        assert out.tokens[i] == text.tokens
        # Planted: the draw of another request.
        other = canvases.denoise(*about, draw=drawn(0, i + 1))
        assert out.tokens[i] != other.tokens


def test_stop_strings_end_a_text_once_all_before_is_known():
    free, out = written(stop="ffffff"), written(stop=["ca", "db", "ee"])
    stopped = 0
    for whole, cut, reason in zip(free.texts, out.texts, out.finish_reason):
        places = [whole.find(stop) for stop in ("ca", "db", "ee")]
        first = min((at for at in places if at >= 0), default=-1)
        # Behind the match nothing was written, or the text would be longer.
        assert cut == (whole if first < 0 else whole[:first])
        assert reason == ("length" if first < 0 else "stop")
        stopped += first >= 0
    assert stopped >= 2
    # Planted: a loop that stops nowhere writes all positions.
    assert out.stats.new_tokens.sum() < free.stats.new_tokens.sum()


def test_end_of_sequence():
    """A text ends with its first one; what lies behind is not counted."""
    ends = lm(eos=(4,))
    out = written(model=ends)
    for tokens, reason in zip(out.tokens, out.finish_reason):
        assert (4 in tokens) == (reason == "eos")
        assert 4 not in tokens[:-1]
    assert "eos" in out.finish_reason
    assert out.stats.new_tokens.tolist() == [len(tokens) for tokens in out.tokens]


def test_given_text_behind_is_seen_and_kept():
    behind = [[3, 3], [0], [1, 2, 0, 0], [5]]
    out, plain = written(suffix=behind), written()
    assert [len(tokens) for tokens in out.tokens] == [NEW] * 4
    assert out.tokens != plain.tokens
    toy, plan = lm(), lambda view, lo: lo + 5
    single = lambda view: canvases.first(view.guesses, 1)
    for i, prompt in enumerate(PROMPTS):
        about = (toy.model.config, toy.params, prompt, NEW, single, plan)
        text = canvases.denoise(*about, suffix=behind[i], draw=drawn(0, i))
        assert out.tokens[i] == text.tokens
        # Planted: the given text is not seen.
        assert text.tokens != canvases.denoise(*about, draw=drawn(0, i)).tokens


def test_streams_give_the_known_beginning():
    out, pieces = written(), {}
    numbers = {"max_new_tokens": NEW, "temperature": HEAT, "stop": STOP}
    for piece in decoding.stream(lm(), PROMPTS, METHOD, **numbers):
        pieces.setdefault(piece.prompt, []).append(piece)
    for i, row in pieces.items():
        assert [t for piece in row for t in piece.tokens] == out.tokens[i]
        assert "".join(piece.text for piece in row) == out.texts[i]
        assert [piece.finish_reason for piece in row[:-1]] == [None] * (len(row) - 1)


def test_requests_are_admitted_to_rows_that_are_done():
    model = lm()
    parts = compose.compose(METHOD, model, HEAT, stop=(STOP,))
    keys = engines.request_keys(0, len(PROMPTS), 1)
    limits = [len(prompt) + NEW for prompt in PROMPTS]
    about = (parts, {"target": model.params}, PROMPTS, limits, keys, 2)
    texts = {x.request: x.tokens for x in continuous_batching.decode_requests(*about)}
    assert [texts[i] for i in range(len(PROMPTS))] == written().tokens


@pytest.mark.parametrize(
    "more", [(), pytest.param(("diffusion/freedave",), marks=pytest.mark.long)]
)
def test_a_stream_is_the_canvas_behind_another_prompt(more):
    """A transform that takes the stream's law gives the text of its prompts."""
    model, others = lm(), [[4, 0, 2, 2], [1], [3, 3, 5], [0, 1]]
    init = lambda tokens, length: base.State()
    law = base.LogitsTransform(init, lambda state, x, aux: aux["beside"])
    law = law._replace(streams=("beside",))
    stream = base.Stream(model.model, "beside", others)
    method = Method(schedule=(*METHOD.schedule, *map(Spec, more)))
    settings = {"max_new_tokens": NEW, "drafts": {"beside": model}}
    settings |= {"streams": {"beside": stream}, "transforms": (law,)}
    out = decoding.generate(model, PROMPTS, method, **settings)
    alone = decoding.generate(model, others, METHOD, max_new_tokens=NEW)
    assert out.tokens == alone.tokens
    # Planted: the law of the canvas behind its own prompt.
    own = decoding.generate(model, PROMPTS, METHOD, max_new_tokens=NEW)
    assert out.tokens != own.tokens


def test_caches_whose_slots_are_not_written_again_are_refused():
    ropes = (transformer.rope(8, 1e4),)
    shape = transformer.Config(
        *(7, 16, 1, 2, 2, 8, 16, 64),
        ropes=ropes,
        mask_token=6,
        visibility=("bidirectional",),
    )
    for cache, refused in ((kv_cache.dense, False), (quantized.int8(), True)):
        model = transformer.transformer(shape, cache=cache)
        loaded = types.SimpleNamespace(model=model, params=None, tokenizer=None)
        if refused:
            with pytest.raises(MethodError, match="dense cache"):
                compose.compose(METHOD, loaded)
        else:
            compose.compose(METHOD, loaded)


def test_refused_parts():
    model = lm()
    penalty = Spec("transforms/frequency_penalty", penalty=0.5)
    for wrong, match in (
        ({"drafter": Spec("drafters/prompt_lookup")}, "belong to autoregressive"),
        ({"policy": Spec("caches/h2o", budget=8)}, "caches/recompute, prefix"),
        ({"transforms": (penalty,)}, "from left to right"),
        ({"schedule": (Spec("diffusion/llada"), Spec("diffusion/dream"))}, "'select'"),
        (
            {
                "schedule": (Spec("diffusion/freedave"),),
                "policy": Spec("caches/dkv"),
            },
            "cannot verify several states",
        ),
    ):
        with pytest.raises(MethodError, match=match):
            compose.compose(Method(**wrong), model)
    with pytest.raises(MethodError, match=r"\['top_logprobs'\]"):
        decoding.generate(model, PROMPTS, METHOD, top_logprobs=2)


PAIR, TEXTS, CALLS = [1, 0], 16384, 13


def law(order):
    """The joint law of three positions of three tokens, by enumeration [3, 3, 3]."""
    toy = small()
    out = np.zeros((3, 3, 3))
    start = len(PAIR)

    def go(tokens, mass):
        opened = [p for p in range(start, start + 3) if tokens[p] is None]
        if not opened:
            out[tuple(tokens[start:])] += mass
            return
        seen = [3 if t is None else t for t in tokens]
        cache = toy_masked.Reference(toy.model.config, toy.params)
        found = cache.run(seen, range(len(seen)), lambda p: len(seen))
        probs = {}
        for p in opened:
            z = found[p][:3].astype(np.float64)
            probs[p] = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        if order == "random":
            for p in opened:
                for token in range(3):
                    rest = [*tokens]
                    rest[p] = token
                    go(rest, mass * probs[p][token] / len(opened))
            return
        for guess in np.ndindex(*(3,) * len(opened)):
            chance = np.prod([probs[p][t] for p, t in zip(opened, guess)])
            conf = [probs[p][t] for p, t in zip(opened, guess)]
            at = int(np.argmax(conf))
            rest = [*tokens]
            rest[opened[at]] = guess[at]
            go(rest, mass * chance)

    go([*PAIR, None, None, None], 1.0)
    return out


def small():
    model, params = toy_masked.model(4, seed=5, scale=1.5)
    return types.SimpleNamespace(model=model, params=params, tokenizer=None)


def counts(order):
    found = np.zeros((3, 3, 3), np.int64)
    method = Method(schedule=(Spec("diffusion/llada", order=order),))
    for seed in range(CALLS):
        settings = {"max_new_tokens": 3, "temperature": 1.0, "seed": seed}
        out = decoding.generate(small(), [PAIR], method, n=TEXTS, **settings)
        np.add.at(found, tuple(np.asarray(out.tokens[0]).T), 1)
    return found


@pytest.mark.long
@pytest.mark.parametrize("order", ["low_confidence", "random"])
def test_laws_of_the_orders(order):
    """n = 212,992, 27 cells, level 1e-5 for two cases."""
    assert laws.chi_square(counts(order), law(order)) > 1e-5


@pytest.mark.long
def test_fault_noise_of_the_position_alone(monkeypatch):
    """Planted: the noise stays while others are committed, and is conditioned."""
    at = lambda key, position, count, size: noise.at_position(key, position, size)
    monkeypatch.setattr(noise, "on_canvas", at)
    with engines.apart():
        found = counts("low_confidence")
    assert laws.chi_square(found, law("low_confidence")) < 1e-6


def test_keys_of_a_canvas_differ():
    """By position, by committed tokens, by role."""
    key = jax.random.key(3)
    draws = [
        np.asarray(noise.on_canvas(key, position, count, 8))
        for position in (3, 4)
        for count in (0, 1)
    ]
    assert len({draw.tobytes() for draw in draws}) == 4
    roles = [noise.on_canvas_for(key, noise.UNMASK, count) for count in (0, 1)]
    assert (jax.random.key_data(roles[0]) != jax.random.key_data(roles[1])).any()
