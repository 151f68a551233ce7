"""decoding/search/beam.py and its loop, against lists on the host and HF's texts."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.conformance import kit
from decoding.hypotheses import slots
from decoding.loops import engines, leaves
from decoding.serving import searching
from models.errors import MethodError, PromptError
from tests.decoding.search import golden, reference
from tests.decoding.search.reference import Rules

LM = kit.model(0, ending=0.5)  # texts end
LONG = kit.model(3)  # they do not
FEW = kit.model(5, vocab=4)
ENDS = (kit.EOS,)
NGRAMS = Spec("transforms/no_repeat_ngram", n=3)


def method(**arguments) -> Method:
    return Method(search=Spec("search/beam", **arguments))


def found(rules: Rules, lm=LM, new: int = 24, prompts=kit.PROMPTS, **fields):
    """The texts and scores of a call, one list a prompt."""
    out = decoding.generate(
        lm,
        prompts,
        method(
            width=rules.width,
            length_penalty=rules.alpha,
            early_stopping=rules.early,
            normaliser="gnmt" if rules.gnmt else "length",
            pool_rule="any" if rules.everyone else "best",
        ),
        max_new_tokens=new,
        n=fields.pop("n", rules.width),
        **fields,
    )
    return out


def wanted(rules: Rules, lm=LM, new: int = 24, prompts=kit.PROMPTS, ends=ENDS):
    law = functools.partial(reference.log_law, lm.params)
    return [reference.beams(law, p, new, ends, rules) for p in prompts]


def differences(out, want) -> int:
    """Prompts whose texts or scores are not those wanted."""
    count = 0
    for texts, scores, pool in zip(out.tokens, out.scores, want):
        same = texts == [text for _, text in pool]
        count += not (same and np.allclose(scores, [s for s, _ in pool], atol=1e-4))
    return count


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("early", [False, True, "never"])
def test_equals_lists_on_the_host(early, alpha):
    rules = Rules(4, alpha, early)
    assert differences(found(rules), wanted(rules)) == 0


@pytest.mark.parametrize(
    "rules",
    [
        Rules(4, early=True, gnmt=True, everyone=True),
        pytest.param(Rules(3, gnmt=True), marks=pytest.mark.long),
        pytest.param(Rules(5, early=True, everyone=True), marks=pytest.mark.long),
    ],
)
def test_the_rules_of_t5x(rules):
    """Planted: without each of the rules."""
    out = found(rules)
    assert differences(out, wanted(rules)) == 0
    for name in ("gnmt", "everyone"):
        if getattr(rules, name):
            assert differences(out, wanted(rules._replace(**{name: False}))) > 0


def test_fault_any_ended_candidate_enters_the_pool():
    """Planted, and a length that counts the prompt."""
    rules = Rules(4, 1.0, True)
    out = found(rules)
    assert differences(out, wanted(rules._replace(everyone=True))) > 0
    longer = [
        sorted(((s * len(t) / (len(t) + len(p)), t) for s, t in pool), reverse=True)
        for p, pool in zip(kit.PROMPTS, wanted(rules))
    ]
    assert differences(out, longer) > 0


@pytest.mark.parametrize(
    "alpha",
    [2.0, *(pytest.param(a, marks=pytest.mark.long) for a in (-0.5, 0.0, 0.6, 1.0))],
)
def test_a_beam_of_all_texts_is_exhaustive(alpha):
    """Width 4^4 over 4 tokens and 4 steps: the best of all texts."""
    new = 4
    rules = Rules(4**new, alpha, "never")
    out = found(rules, FEW, new, [[1, 2], [0]], n=1, stop_token_ids=[3])
    for prompt, text, score in zip([[1, 2], [0]], out.tokens, out.scores):
        best = max(values(prompt, new, alpha))
        assert score == pytest.approx(best[0], abs=1e-4) and text == list(best[1])
        if alpha:  # planted: a length that counts the prompt
            other = max(values(prompt, new, alpha, len(prompt)))
            assert other[0] != pytest.approx(best[0], abs=1e-4)


def values(prompt, new, alpha, more=0):
    """The score of every text over 4 tokens, of which 3 ends it."""
    for text, total in every(tuple(prompt), new):
        yield total / (len(text) + more) ** alpha, text


@functools.cache
def every(prompt: tuple, new: int) -> list:
    """Every text, and its log-probability."""
    texts = []
    for size in range(1, new + 1):
        for text in itertools.product(range(4), repeat=size):
            ended = [t == 3 for t in text]
            if any(ended[:-1]) or not (ended[-1] or size == new):
                continue
            laws = [
                reference.log_law(FEW.params, [*prompt, *text[:i]]) for i in range(size)
            ]
            texts.append((text, sum(law[token] for law, token in zip(laws, text))))
    return texts


def test_one_beam_is_greedy():
    out = found(Rules(1), n=1)
    greedy = [kit.greedy_by_hand(LM.params, p, 24) for p in kit.PROMPTS]
    assert out.tokens == greedy
    assert out.guarantee == "LOSSY"


ENOUGH = 104  # slots a lane that 100 rounds fill at most: none are added


@pytest.mark.long
def test_slots_are_reused_settled_and_grown(monkeypatch):
    """100 rounds of 4 lanes: 400 nodes run in fewer slots; the toy model is strict."""
    rules, new, want = Rules(4), 100, wanted_long()
    monkeypatch.setattr(searching, "FIRST", ENOUGH)
    out = found(rules, LONG, new)
    assert differences(out, want) == 0
    run, most = out.stats.nodes_run, out.stats.most_slots
    assert out.stats.rounds == new and (run > 390).all() and (most < 256).all()
    monkeypatch.setattr(searching, "FIRST", 56)  # 224 slots, then all
    grown = found(rules, LONG, new)
    assert differences(grown, want) == 0
    assert grown.stats.host_syncs > out.stats.host_syncs
    assert grown.scores == out.scores  # bit for bit
    monkeypatch.setattr(searching, "FIRST", ENOUGH)
    # Each behind three copies of itself: slots close up as if it were alone.
    alone = [found(rules, LONG, new, [p] * 4) for p in kit.PROMPTS[::3]]
    assert [a.tokens for a in alone] == [[out.tokens[i]] * 4 for i in (0, 3)]


@functools.cache
def wanted_long():
    return wanted(Rules(4), LONG, 100)


def unshifted(bits, order):
    """`slots.reordered`, but settled slots keep their bits."""
    place = SOUND["reordered"](bits, order)[1]
    moved = slots.unpacked(bits)[order.order][:, order.order]
    return slots.pack_bits(moved), place


def early(up, live):
    """`slots.held`, but the last lane's ancestors are taken for free."""
    return SOUND["held"](up, live.at[-1].set(False))


SOUND = {"reordered": slots.reordered, "held": slots.held}
FAULTS = {"reordered": unshifted, "held": early}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_slots(name, monkeypatch):
    """Planted: bits not shifted by a settling; a slot given away a round early."""
    monkeypatch.setattr(slots, name, FAULTS[name])
    monkeypatch.setattr(searching, "FIRST", ENOUGH)
    with engines.apart():
        out = found(Rules(4), LONG, 100)
    assert differences(out, wanted_long()) > 0


def test_stop_tokens_strings_and_limits():
    """Of each prompt its own; two ends: three times as many candidates."""
    rules = Rules(4)
    out = found(rules, stop_token_ids=[2])
    assert differences(out, wanted(rules, ends=(kit.EOS, 2))) == 0
    assert differences(out, wanted(rules)) > 0  # planted: the model's EOS alone
    limits = [3, 24, 7, 11]
    out = found(rules, new=limits)
    for i, new in enumerate(limits):
        assert out.tokens[i] == [t for _, t in wanted(rules, new=new)[i]]
    stopped = found(Rules(2), LONG, 40, stop=["b"])
    for texts, reasons in zip(stopped.tokens, stopped.finish_reason):
        assert all(1 in text for text in texts) and set(reasons) == {"stop"}
        assert all(text.index(1) == len(text) - 1 for text in texts)


def test_logprobs_are_the_raw_target_s():
    plain, other = found(Rules(4), LONG), found(Rules(4), LONG, transforms=[NGRAMS])
    assert plain.tokens != other.tokens
    for prompt, texts, given in zip(kit.PROMPTS, other.tokens, other.logprobs):
        for text, logprobs in zip(texts, given):
            laws = [
                reference.log_law(LONG.params, [*prompt, *text[:i]])[t]
                for i, t in enumerate(text)
            ]
            np.testing.assert_allclose(logprobs, laws, atol=1e-4)
    sums = [sum(g) / len(g) for given in plain.logprobs for g in given]
    np.testing.assert_allclose(np.ravel(plain.scores), sums, atol=1e-4)


def test_states_follow_their_lanes():
    """No 3-gram occurs twice in any text; planted: states of the lanes before."""
    repeats = lambda texts: sum(
        len(set(zip(t, t[1:], t[2:]))) < len(t) - 2
        for p, row in zip(kit.PROMPTS, texts)
        for t in ([*p, *text] for text in row)
        if len(set(zip(p, p[1:], p[2:]))) == max(len(p) - 2, 0)
    )
    assert repeats(found(Rules(4), LONG, transforms=[NGRAMS]).tokens) == 0
    assert repeats(found(Rules(4), LONG).tokens) > 0
    sound = leaves._advanced
    with pytest.MonkeyPatch.context() as patch, engines.apart():
        own = lambda lane: jnp.broadcast_to(jnp.arange(lane.shape[1]), lane.shape)
        still = lambda p, before, lane, *to: sound(p, before, own(lane), *to)
        patch.setattr(leaves, "_advanced", still)
        wrong = found(Rules(4), LONG, transforms=[NGRAMS]).tokens
    assert repeats(wrong) > 0


def test_streams_run_on_the_same_tree():
    """The mean of two models' logits; by hand from both tables."""
    other = kit.model(4)
    mean = Spec("transforms/contrastive", alpha=0.0, beta=0.5)
    out = found(
        Rules(3),
        LONG,
        transforms=[mean],
        streams={"amateur": decoding.base.Stream(other.model, "amateur")},
        drafts={"amateur": other.params},
        n=3,
    )

    def law(text):
        # The transform receives log-probabilities of the target, raw ones of a stream.
        both = (
            reference.log_law(LONG.params, text),
            reference.toy.logits(other.params, text),
        )
        return np.asarray(both[0]) * 0.5 + np.asarray(both[1], np.float64) * 0.5

    want = [reference.beams(law, p, 24, ENDS, Rules(3)) for p in kit.PROMPTS]
    assert differences(out, want) == 0
    assert differences(out, wanted(Rules(3), LONG)) > 0  # planted: without the stream


@pytest.mark.parametrize("heat", [1.0, 0.9])
def test_samples_follow_the_sums(heat):
    """One beam that samples one token draws from the law: chi-squared, n = 4,000."""
    prompts = [[1]] * 4000
    out = decoding.generate(
        LONG, prompts, method(width=1, sample=True), max_new_tokens=1, temperature=heat
    )
    counts = np.bincount([t[0] for t in out.tokens], minlength=kit.VOCAB)
    p = np.exp(reference.log_law(LONG.params, [1]) / heat)
    p, there = p / p.sum(), p > 1e-4
    gap = ((counts - 4000 * p)[there] ** 2 / (4000 * p[there])).sum()
    assert gap < 27.9  # 7 degrees of freedom, level 1e-4
    flat = 4000 / kit.VOCAB  # planted: a flat law
    assert ((counts - flat) ** 2 / flat).sum() > 27.9


def test_calls_are_counted_by_prompt_and_alternatives_are_the_raw_law_s():
    """A prompt that ends early makes fewer calls; planted: all make as many."""
    out = found(Rules(4), n=2, top_logprobs=3)
    rounds = [max(map(len, texts)) for texts in out.tokens]
    calls = out.stats.target_calls.tolist()
    assert max(calls) == out.stats.rounds and len(set(calls)) > 1
    assert all(c >= r for c, r in zip(calls, rounds))
    for prompt, texts, best in zip(kit.PROMPTS, out.tokens, out.top_logprobs):
        law = reference.log_law(LM.params, prompt)
        (token, value), *_ = best[0][0]
        assert token == law.argmax() and value == pytest.approx(law.max(), abs=1e-4)
        assert len(best[0]) == len(texts[0])


def hf(k: int, stop: int, two: int, alphas=None) -> tuple:
    """The differences to HF's texts of K beams, a stop rule and one or two EOS."""

    def chosen(columns):
        same = (columns[:, [1, 3, 4]] == (k, stop, two)).all(1)
        return same & (np.isin(columns[:, 2], alphas) if alphas else True)

    return golden.differences(
        "search_beams",
        "beams",
        chosen,
        lambda case: method(
            width=k,
            length_penalty=float(case[2]),
            early_stopping=(False, True, "never")[stop],
        ),
        lambda case: [golden.LINE] if two else None,
        lambda case: k,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("k", "stop", "two"), list(itertools.product((2, 4, 8), range(3), (0, 1)))
)
def test_equals_hf(k, stop, two):
    wrong, count, gap = hf(k, stop, two)
    assert wrong == 0 and count and gap < 1e-3


def test_equals_hf_on_some():
    wrong, count, gap = hf(4, 0, 1, [0.6])
    assert wrong == 0 and count >= 8 and gap < 1e-3
    two_ends = golden.arrays("search_beams")["beams_texts"]
    assert (two_ends == golden.LINE).any()  # both kinds of end occur


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"width": 0}, MethodError, "width=0"),
        ({"length_penalty": float("nan")}, MethodError, "length_penalty=nan"),
        ({"early_stopping": "no"}, MethodError, "early_stopping='no'"),
        ({"normaliser": "x"}, MethodError, "normaliser='x'"),
        ({"n": 5}, PromptError, "keeps 4 texts"),
        ({"temperature": 0.5}, MethodError, "draws nothing"),
        ({"loop": max}, MethodError, "a search has none"),
    ],
)
def test_refuses(fields, error, words):
    call = {k: fields.pop(k) for k in ("n", "temperature", "loop") if k in fields}
    with pytest.raises(error, match=words):
        decoding.generate(LM, [[1]], method(**fields), **call)


@pytest.mark.parametrize("name", ["beam", "first_finish"])
def test_rounds_of_another_loop_are_refused(name):
    """A prompt set or an evaluation would decode plainly; planted: it says `whole`."""
    run = kit.Run(Method(search=Spec(f"search/{name}")))
    with pytest.raises(MethodError, match="a search runs whole"):
        run.start()
    keys = engines.request_keys(0, 1, 4)
    arguments = (run.params, run.parts, [[1]] * 4, [9] * 4, keys, 64)
    assert run.engine.start(*arguments, scratch=64, whole=True).tokens.shape == (4, 64)


def test_refuses_other_roles_and_streaming():
    beside = Method(verifier=Spec("verifiers/spectr"), search=Spec("search/beam"))
    with pytest.raises(MethodError, match="verifiers/spectr: a search"):
        decoding.generate(LM, [[1]], beside)
    with pytest.raises(MethodError, match="no text before it ends"):
        list(decoding.stream(LM, [[1]], method()))
