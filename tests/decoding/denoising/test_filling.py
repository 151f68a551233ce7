"""Constraints of canvases in the loop: against the plain-Python loop, and by hand."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec, base, catalogue, compose, noise
from decoding.conformance import canvases, schedules
from decoding.constraints import diffusion_cfg, regex
from decoding.denoising import filling, schedule
from decoding.loops import engines
from decoding.serving import continuous_batching
from models.errors import ConstraintError, MethodError
from models.predictors import unmask_filter
from tests.decoding.denoising import languages
from tests.decoding.denoising.languages import EOS, NESTED, REGEX, VOCAB

PROMPTS = [[1, 0, 3], [0, 0, 1, 4, 4], [5], [1] * 9]
NEW, BLOCK, HEAT = 9, 5, 0.8
CFG = Spec("constraints/diffusion_cfg", grammar=NESTED)
GBNF = {"gbnf": NESTED}
FAST = (Spec("diffusion/fast_dllm", threshold=0.3),)
REGULAR, TREE = languages.is_regular, languages.is_nested


def fast(view):
    """Commit as `FAST` does."""
    return {p for p, g in view.guesses.items() if np.exp(g.logp) >= 0.3}


def written(*parts, prompts=PROMPTS, policy="recompute", lm=None, **settings):
    plan = Spec("diffusion/blocks", size=BLOCK)
    method = Method(schedule=(plan, *parts), policy=Spec(f"caches/{policy}"))
    settings = {"max_new_tokens": NEW, **settings}
    return decoding.generate(lm or languages.lm(), prompts, method, **settings)


def drawn(request):
    key = noise.request_keys(0, np.array([request]), np.array([0]))[0]

    def draw(position, count, logits):
        own = noise.on_canvas(key, position, count, len(logits))
        return int(np.asarray(logits / np.float32(HEAT) + own).argmax())

    return draw


def expected(i, language, rule=fast, heat=HEAT, **settings):
    """Decode prompt i by the plain-Python loop under a language."""
    toy = languages.lm()
    about = (toy.model.config, toy.params, PROMPTS[i], NEW, rule)
    settings |= {"draw": drawn(i)} if heat else {}
    holds = functools.partial(languages.holds, language)
    plan = lambda view, lo: lo + BLOCK
    return canvases.denoise(*about, plan, constraint=holds, **settings)


CASES = {
    "regex": (REGULAR, {"constraint": REGEX}, True),
    "cfg": (TREE, {"transforms": (CFG,)}, True),
    "host": (TREE, {"constraint": GBNF}, False),
}


LONG = [pytest.param(case, marks=pytest.mark.long) for case in ("cfg", "host")]


@pytest.mark.parametrize("case", ["regex", *LONG])
def test_texts_are_those_of_the_plain_loop(case):
    """Ragged rows, several tokens a forward, drawn. Planted: another language."""
    language, settings, is_masked = CASES[case]
    out = written(*FAST, temperature=HEAT, **settings)
    for i, tokens in enumerate(out.tokens):
        text = expected(i, language, is_masked=is_masked)
        assert tokens == text.tokens
        assert out.stats.target_calls[i] == text.calls
        np.testing.assert_allclose(out.logprobs[i], text.logprobs, atol=1e-5)
        assert languages.is_text(language, tokens)
    free = [expected(i, lambda text: True) for i in range(len(PROMPTS))]
    assert out.tokens != [text.tokens for text in free]
    assert out.stats.host_syncs == (0 if is_masked else max(out.stats.target_calls))
    if "constraint" in settings:
        assert out.accepted == [True] * len(PROMPTS)
        assert out.engine == ["device" if is_masked else "host"] * len(PROMPTS)


def state_of(part):
    """A constraint in the loop's form, and its state behind an empty prompt."""
    part = filling.on_canvas(part)
    return part.holes, part.init(jnp.zeros(1, jnp.int32), jnp.int32(0))


def made(name):
    about = (languages.Tokens(), (EOS,), VOCAB)
    if name == "regex":
        return state_of(regex.transform("ab|ba", *about))
    return state_of(diffusion_cfg.transform('root ::= "a" "b" | "b" "a"', *about))


def canvas_of(tokens, limit=None, start=0):
    """A canvas with -1 at open positions; the block is all of it."""
    tokens = jnp.asarray(tokens, jnp.int32)
    zero, end = jnp.int32(0), jnp.int32(len(tokens) if limit is None else limit)
    known = (tokens >= 0) | (jnp.arange(len(tokens)) < start)
    begin = jnp.int32(start)
    return schedule.Canvas(
        *(tokens, known, known.astype(jnp.int32), begin, begin, end, zero, end),
        *(zero, zero),
        window=len(tokens),
    )


def proposal_of(guesses, logp):
    found = schedule.Proposal(
        jnp.asarray(guesses), jnp.asarray(logp), None, None, None, jnp.ones(2, bool)
    )
    scores = jax.nn.one_hot(found.guess, VOCAB)
    return found, scores


@pytest.mark.parametrize("name", ["regex", "cfg"])
def test_chosen_tokens_are_admitted_one_by_one(name):
    """Planted: all that are allowed alone are committed, and no text is `aa`."""
    holes, state = made(name)
    canvas = canvas_of([-1, -1])
    words = filling.words(holes, state, canvas, 2, jnp.arange(2))[filling.WORDS]
    assert words[:, 0].tolist() == [0b11, 0b11]
    both, ask = jnp.ones(2, bool), jax.jit(filling.admitted, static_argnums=(0, 3))
    for logp, first in (([-0.2, -0.1], 1), ([-0.1, -0.1], 0)):
        found, scores = proposal_of([0, 0], logp)
        after = ask(holes, state, canvas, 2, found, both, scores)
        assert np.flatnonzero(after.commit).tolist() == [first]
    found, scores = proposal_of([0, 1], [-0.2, -0.1])
    after = ask(holes, state, canvas, 2, found, both, scores)
    assert after.commit.all()
    careless = holes._replace(possible=lambda state, text: jnp.bool_(True))
    found, scores = proposal_of([0, 0], [-0.2, -0.1])
    assert ask(careless, state, canvas, 2, found, both, scores).commit.all()


def test_words_are_of_the_window():
    """Behind the prompt, and none outside of the canvas."""
    holes, state = made("regex")
    canvas = canvas_of([0, 0, 0, -1, -1, -1], limit=5, start=2)
    words = filling.words(holes, state, canvas, 4, jnp.arange(1, 7))[filling.WORDS]
    assert words[:, 0].tolist() == [0, 0b11, 0b10, 0b100, 0, 0]


def test_a_canvas_is_cut_where_a_text_may_end():
    holes, state = made("regex")
    canvas = canvas_of([0, -1, -1, -1])
    cut = lambda end, limit: int(
        filling.cut(holes, state, canvas, 4, *map(jnp.int32, (end, limit)))
    )
    assert [cut(4, limit) for limit in (1, 2, 3, 4)] == [4, 2, 3, 4]
    assert cut(3, 2) == 4  # given text stands behind


@pytest.mark.parametrize("case", ["regex", "cfg", "host"])
def test_a_canvas_that_no_text_fills_is_refused(case):
    """Too many positions for a text of even length, or given text that none has."""
    source = "(ab)+" if case == "regex" else 'root ::= "a" root "b" | "a" "b"'
    settings = {
        "regex": {"constraint": {"regex": source}},
        "host": {"constraint": {"gbnf": source}},
        "cfg": {"transforms": (Spec("constraints/diffusion_cfg", grammar=source),)},
    }[case]
    for wrong, match in (
        ({"max_new_tokens": 1}, "row 0: 1 open positions and 0 given"),
        ({"max_new_tokens": 3, "suffix": [[0, 0]] * 4}, "3 open positions and 2 given"),
        ({"max_new_tokens": [4, 1, 4, 4]}, "row 1"),
    ):
        with pytest.raises(ConstraintError, match=match):
            written(*FAST, **settings, **wrong)


class Spelled(languages.Tokens):
    """A tokenizer that gives the mask a letter."""

    def token_bytes(self):
        return [*super().token_bytes()[:6], b"d"]


def test_refused_constraints():
    lm = languages.lm()
    two = {"constraint": REGEX, "transforms": (CFG,)}
    for wrong, error, match in (
        ({"constraint": lambda text: [0]}, ConstraintError, "from left to right"),
        ({"constraint": {**REGEX, "canonical": True}}, ConstraintError, "canonical"),
        ({"constraint": GBNF, "engine": "device"}, ConstraintError, "on the host"),
        ({"constraint": REGEX, "engine": "host"}, ConstraintError, "on the device"),
        (two, MethodError, "keep one"),
    ):
        with pytest.raises(error, match=match):
            written(lm=lm, **wrong)
    lm.tokenizer = Spelled()
    with pytest.raises(ConstraintError, match="token 6, the mask"):
        written(lm=lm, constraint={"regex": "d+"})


def test_transforms_without_holes_or_with_a_path_are_refused():
    init = lambda tokens, length: base.State()
    same = lambda state, logits, aux: logits
    path = base.LogitsTransform(init, same, lambda state, *rest: state)
    with pytest.raises(MethodError, match="from left to right"):
        written(transforms=(path,))


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_branches_are_states_of_the_constraint(case):
    """FreeDave's text is that of its rule under the same constraint, and in fewer."""
    settings = CASES[case][1] | {"temperature": HEAT, "n": 3}
    saved = 0
    for rule in ((), FAST):
        alone = written(*rule, **settings)
        verified = written(*rule, Spec("diffusion/freedave", branches=4), **settings)
        assert verified.tokens == alone.tokens
        calls = [out.stats.target_calls for out in (alone, verified)]
        assert (calls[1] <= calls[0]).all()
        saved += int((calls[0] - calls[1]).sum())
    assert saved > 0


def outside(language, out, suffix=()):
    """How many texts are not in a language."""
    texts = [[*tokens, *suffix] for tokens in out.tokens]
    return sum(not languages.is_text(language, text) for text in texts)


@pytest.mark.long
@pytest.mark.parametrize("rows", [slice(1), slice(4)])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", catalogue.names("diffusion"))
def test_every_schedule_writes_texts_of_the_language(name, case, rows):
    language, settings, _ = CASES[case]
    fewer = {"branches": 3} if name == "diffusion/freedave" else {}  # compiles sooner
    method = schedules.schedule(Spec(name, **fewer))
    weights = unmask_filter.init(jax.random.key(0))
    drafts = {"filter": weights} if name == "diffusion/learn2pd" else None
    for more, suffix in ({}, ()), ({"suffix": [[0, 1]] * len(PROMPTS[rows])}, (0, 1)):
        out = decoding.generate(
            *(languages.lm(), PROMPTS[rows], method),
            **(settings | more),
            max_new_tokens=NEW,
            drafts=drafts,
            temperature=HEAT,
            n=3,
        )
        texts = types.SimpleNamespace(tokens=[t for row in out.tokens for t in row])
        assert outside(language, texts, suffix) == 0


@pytest.mark.long
def test_fault_tokens_are_admitted_without_recomputation(monkeypatch):
    """Planted: every chosen token is committed."""
    careless = lambda holes, state, canvas, size, found, commit, scores: (
        filling.Admitted(found.guess, commit)
    )
    with engines.apart():
        monkeypatch.setattr(filling, "admitted", careless)
        out = written(*FAST, constraint=REGEX, temperature=HEAT)
    assert outside(REGULAR, out)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["dual", "block_causal"])
def test_cache_policies_and_a_row_alone(policy):
    """A row's text is that of a call of it alone, whatever the cache."""
    settings = {"constraint": REGEX, "temperature": HEAT, "policy": policy}
    settings |= {"seed": [0, 1, 2, 3]}
    together = written(*FAST, **settings)
    settings["seed"] = [2]
    alone = written(*FAST, prompts=PROMPTS[2:3], **settings)
    assert together.tokens[2] == alone.tokens[0]
    assert outside(REGULAR, together) == 0


@pytest.mark.long
@pytest.mark.parametrize("case", ["regex", "cfg"])
def test_requests_that_are_admitted_later(case):
    """Continuous batching of two rows has the texts of one batch."""
    part = Spec("constraints/regex", pattern=REGEX["regex"]) if case == "regex" else CFG
    whole = written(*FAST, transforms=(part,), temperature=HEAT)
    lm, plan = languages.lm(), Spec("diffusion/blocks", size=BLOCK)
    method = Method(schedule=(plan, *FAST), transforms=(part,))
    parts = compose.compose(method, lm, HEAT)
    keys = engines.request_keys(0, len(PROMPTS), 1)
    limits = [len(prompt) + NEW for prompt in PROMPTS]
    about = (parts, {"target": lm.params}, PROMPTS, limits, keys, 2)
    texts = {x.request: x.tokens for x in continuous_batching.decode_requests(*about)}
    assert [texts[i] for i in range(len(PROMPTS))] == whole.tokens
