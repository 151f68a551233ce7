"""Every verifier: the law of the first tokens, against exact enumeration.

A draft model with other weights drafts for an exact table model of 4 tokens; the joint
law of the first 3 tokens (64 cells), at temperature 0.9 alone and under top-k 3 or
top-p 0.95, is enumerated in float64 and held against `N` texts by a chi-square test.
Level: 10^-3 over all the cases (Bonferroni), seeds 0 .. `CALLS` - 1. A token that
cannot be fails at once. The planted faults must be rejected at 10^-6 with as many
texts.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Spec, base, catalogue, compose, noise, vocab
from decoding.conformance import kit, laws, topologies, toy_heads, verifiers
from decoding.loops import decode, engines, initial_state
from decoding.tree_building import child_sampling
from models.errors import MethodError
from tests import default_compiler
from tests.decoding.test_vocab import two_kernels


def lossless(name: str) -> bool:
    return Spec(name).build({}).guarantee == base.LAW


VERIFIERS = [n for n in catalogue.of_kind("verifiers") if lossless(n)]


BASIC = ("topologies/chain", "topologies/static")
EVERY = [(v, d, None) for v in VERIFIERS for d in Spec(v).build({}).draws]


def drawn(topology: str) -> tuple[str, ...]:
    """List the draws that are held to the law: a tree's first, or all of heads'."""
    draws = Spec(topology).card.draws
    if not topologies.headed(Spec(topology)):
        return draws[:1]
    return tuple(draw for draw in draws if draw != base.COUPLED)


GROWN = [
    ("verifiers/recursive_rejection", draw, t)
    for t in catalogue.names("topologies")
    if t not in BASIC
    for draw in drawn(t)
] + [("verifiers/spectr", base.IID, "topologies/specinfer")]
BLOCKS = tuple(f"drafters/{name}" for name in toy_heads.BLOCKS)
CHAIN = Spec("topologies/chain", length=3)
USUAL = ("topologies/eagle2",)  # the others with `-m long`


def first(verifier: str, draw: str) -> bool:
    """Whether it is the draw that the verifier likes best."""
    return draw == Spec(verifier).build({}).draws[0]


def first_of_several(verifier: str, draw: str) -> bool:
    return first(verifier, draw) and len(Spec(verifier).build({}).draws) > 1


@pytest.mark.parametrize(
    ("verifier", "draw", "topology"),
    # Every draw has its law without top-k, below, and every topology its drafts'.
    [
        pytest.param(*case, marks=() if first(*case[:2]) else pytest.mark.long)
        for case in EVERY
    ]
    + [
        pytest.param(*case, marks=() if case[2] in USUAL else pytest.mark.long)
        for case in GROWN
    ],
)
def test_law_of_the_first_tokens(verifier, draw, topology):
    top_k = (verifiers.TOP_K,)
    run = verifiers.keeps_the_law(Spec(verifier), draw, topology, top_k)
    if topology is None and first(verifier, draw):
        of_all_tokens(run, Spec(verifier), draw)
        if draw != base.POINT:
            perfect(run)


def of_all_tokens(run: kit.Run, verifier: Spec, draw: str) -> None:
    """The law under a k of all tokens: the same program, for k lies in the state.

    Planted: held against the law of the three best.
    """
    every = (Spec("transforms/top_k", k=4),)
    run.parts = verifiers.a_run(verifier.name, draw, None, every).parts
    counts = verifiers.sample(run)
    assert laws.chi_square(counts, verifiers.WARM) > verifiers.LEVEL
    assert laws.chi_square(counts, verifiers.LAW) < 1e-6


@pytest.mark.parametrize(
    ("verifier", "draw"),
    # A verifier's first draw of several has it above, in the program of top-k's law.
    [
        pytest.param(*case[:2], marks=[pytest.mark.long] * first_of_several(*case[:2]))
        for case in EVERY
    ],
)
def test_law_without_transforms(verifier, draw):
    verifiers.keeps_the_law(Spec(verifier), draw, None, ())


def rounded_fits() -> dict[str, float]:
    """P-values of independent drafts, with our arg-max and with one in two kernels."""
    case = ("verifiers/recursive_rejection", base.IID, None, ())

    def fit() -> float:
        return laws.chi_square(verifiers.sample(verifiers.a_run(*case)), verifiers.WARM)

    ours = fit()
    vocab.argmax = two_kernels
    return {"ours": ours, "planted": fit()}


@pytest.mark.long
def test_law_however_it_is_rounded():
    """Planted: the maximum and the comparison with it in kernels of their own."""
    module = "tests.conformance.test_verifiers"
    found = default_compiler.result(module, "rounded_fits")
    assert found["ours"] > verifiers.LEVEL and found["planted"] < 1e-6


def perfect(run: kit.Run) -> None:
    """Drafts from the target's own law are all accepted (the same program serves)."""
    run.params["draft"] = verifiers.TARGET.params
    depth = run.parts.program.drafter.depth
    state = run.start(
        [verifiers.PROMPT], new=3 * (depth + 1), n=verifiers.ROWS, size=16
    )
    calls = np.asarray(run.advance(state).counters.target_calls)
    assert (calls == 3).all()


@pytest.mark.long
@pytest.mark.parametrize("drafter", BLOCKS)
def test_law_of_a_block_s_drafts(drafter):
    """n = 49 x 4096 > 2 x 10^5, T = 0.9: chains under the papers' rejection.

    Planted: what is accepted by other laws than the drafts were drawn from.
    """
    case = ("verifiers/rejection", base.IID, CHAIN, (), drafter)
    run = verifiers.a_run(*case)
    counts = verifiers.sample(run, 49)
    assert laws.chi_square(counts, verifiers.WARM) > verifiers.LEVEL
    run = verifiers.a_run(*case)
    sound = run.parts.program.drafter

    def draft(*given):
        nodes, *rest = sound.draft(*given)
        other = nodes.logits + jnp.arange(4.0)
        return nodes.replace(logits=other), *rest

    run.alter(drafter=sound._replace(draft=draft))
    assert laws.chi_square(verifiers.sample(run), verifiers.WARM) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("drafter", BLOCKS)
def test_law_of_two_million_texts_after_a_block(drafter, law_table):
    """The same at n = 490 x 4096 > 2 x 10^6, seeds 0 .. 489."""
    case = ("verifiers/rejection", base.IID, CHAIN, (), drafter)
    counts = verifiers.sample(verifiers.a_run(*case), 490)
    named = ("verifiers/rejection", base.IID, drafter)
    found = law_table(named, counts, verifiers.WARM, f"> {verifiers.LEVEL:.1g}")
    assert found > verifiers.LEVEL


@pytest.mark.long
@pytest.mark.parametrize(("verifier", "draw", "topology"), EVERY + GROWN)
def test_law_of_two_million_texts(verifier, draw, topology, law_table):
    """n = 490 x 4096 > 2 x 10^6, seeds 0 .. 489, the same level."""
    counts = verifiers.sample(verifiers.a_run(verifier, draw, topology), 490)
    grown = topology or verifiers.method(verifier, draw).topology.name
    found = law_table(
        (verifier, draw, grown), counts, verifiers.LAW, f"> {verifiers.LEVEL:.1g}"
    )
    assert found > verifiers.LEVEL


@pytest.mark.long
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_law_of_two_million_texts_under_top_p(verifier, law_table):
    """As many, with the verifier's first draw; planted: held against top-k's law."""
    draw = Spec(verifier).build({}).draws[0]
    counts = verifiers.sample(
        verifiers.a_run(verifier, draw, None, (verifiers.TOP_P,)), 490
    )
    grown = verifiers.method(verifier, draw).topology.name.split("/")[1]
    parts = (verifier, draw, f"{grown}, top-p")
    assert (
        law_table(parts, counts, verifiers.UNDER_TOP_P, f"> {verifiers.LEVEL:.1g}")
        > verifiers.LEVEL
    )
    assert laws.chi_square(counts, verifiers.LAW) < 1e-6


@pytest.mark.parametrize("topology", catalogue.names("topologies"))
@pytest.mark.parametrize("verifier", catalogue.of_kind("verifiers"))
def test_a_topology_is_handed_a_draw_that_both_know(verifier, topology):
    """The verifier's favourite of those that the topology offers."""
    bare = verifiers.method(verifier, base.POINT, topology).topology
    spec = Spec(topology, **{k: v for k, v in bare.arguments.items() if k != "draw"})
    given, offered = Spec(verifier).build({}), spec.card.draws
    both = [draw for draw in given.draws if draw in offered]
    if both:
        assert compose.topology(spec, given, {}).draw == both[0]
    else:
        with pytest.raises(MethodError, match="choose another verifier"):
            compose.topology(spec, given, {})


def accepting(draw: str, topology: str) -> set[str]:
    """The verifiers that a round with such drafts can be traced with: one trace."""
    some = verifiers.method("verifiers/simulated", draw, topology)
    run = kit.Run(some, verifiers.TEMPERATURE, verifiers.TARGET, verifiers.DRAFT)
    judge = {"weight": jnp.zeros(8), "bias": jnp.zeros(())}
    params, accepted = {**run.params, "judge": judge}, set()
    sound = decode._verify

    def each(program, state, *nodes_and_logits):
        for name in catalogue.of_kind("verifiers"):
            own = Spec(name).build({"greedy": not lossless(name)})
            fresh = own.init(params)
            row = initial_state._repeat(fresh.row, 1)
            held = state.replace(verifier=base.State(row, fresh.shared))
            try:
                sound(replace(program, verifier=own), held, *nodes_and_logits)
                accepted.add(name)
            except MethodError:
                pass
        return sound(program, state, *nodes_and_logits)

    # The judge reads the target's states.
    seen = run.parts.program.verifier._replace(taps=("norm",))
    program = replace(run.parts.program, verifier=seen)

    def round_(params):
        engine = engines.Engine(program)
        engine._call = lambda name, function, donate, params, state, *own: state
        keys, limits = engines.request_keys(0, 1, 1), [verifiers.LENGTH + 2]
        prompts = [verifiers.PROMPT]
        state = engine.start(params, run.parts, prompts, limits, keys, 16)
        return decode.round_(program, params, state)[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_verify", each)
        jax.eval_shape(round_, run.params)
    return accepted


@pytest.mark.parametrize("topology", BASIC)
@pytest.mark.parametrize("draw", base.DRAWS)
def test_draws_and_topologies(draw, topology):
    """A verifier takes the draws it names and refuses the others when it is traced."""
    named = {
        n for n in catalogue.of_kind("verifiers") if draw in Spec(n).build({}).draws
    }
    if topology != "topologies/chain":
        named -= {*verifiers.CHAINS}
    assert accepting(draw, topology) == named


# Planted faults: each bends the law.


def resort_by_q(monkeypatch, run):
    """Siblings are tested in the order of their q, not of their draw."""
    sound = child_sampling.candidates

    def candidates(draw, keys, logits, k, noise):
        drawn = sound(draw, keys, logits, k, noise)
        order = jnp.argsort(-jnp.take_along_axis(logits, drawn, -1), -1)
        return jnp.take_along_axis(drawn, order, -1)

    monkeypatch.setattr(child_sampling, "candidates", candidates)
    return {}


def drop_low_probability(monkeypatch, run):
    """Drafts that the draft model thinks unlikely are dropped after they were drawn."""
    sound = run.parts.program.drafter

    def draft(keys, ctx, state):
        nodes, state, cache = sound.draft(keys, ctx, state)
        rows = jnp.arange(nodes.tokens.shape[0])[:, None]
        q = jax.nn.softmax(nodes.logits)[rows, jnp.maximum(nodes.parents, 0)]
        q = jnp.take_along_axis(q, nodes.tokens[..., None], -1)[..., 0]
        kind = jnp.where((q < 0.4) & (nodes.parents >= 0), base.PAD, nodes.kind)
        return nodes.replace(kind=kind), state, cache

    return {"drafter": sound._replace(draft=draft)}


def unwarped_bonus(monkeypatch, run):
    """The token after a fully accepted path is drawn from the raw logits."""
    sound = run.parts.program.verifier

    def verify(key, state, nodes, target):
        verdict = sound.verify(key, state, nodes, target)
        node = jnp.where(verdict.count > 0, verdict.path[verdict.count - 1], 0)
        raw = target.logits[node] * verifiers.TEMPERATURE * 0.5
        bonus = jax.random.categorical(jax.random.fold_in(key, 99), raw)
        full = verdict.count == nodes.depth
        return verdict.replace(
            token=jnp.where(full, bonus, verdict.token).astype(jnp.int32)
        )

    return {"verifier": sound._replace(verify=verify)}


def resample_from_p(monkeypatch, run):
    """After a rejection the token is drawn from p, not from the residual."""
    sound = run.parts.program.verifier

    def verify(key, state, nodes, target):
        verdict = sound.verify(key, state, nodes, target)
        node = jnp.where(verdict.count > 0, verdict.path[verdict.count - 1], 0)
        again = jax.random.categorical(jax.random.fold_in(key, 99), target.logits[node])
        return verdict.replace(token=again.astype(jnp.int32))

    return {"verifier": sound._replace(verify=verify)}


def key_reuse(monkeypatch, run):
    """The draft and the coins take the same key."""
    sound = noise.for_role
    monkeypatch.setattr(
        noise, "for_role", lambda keys, role, length: sound(keys, noise.DRAFT, length)
    )
    return {}


def wrong_replacement(monkeypatch, run):
    """Siblings drawn without replacement are verified as if drawn with it."""
    sound = run.parts.program.verifier

    def verify(key, state, nodes, target):
        return sound.verify(key, state, nodes.replace(draw=base.IID), target)

    return {"verifier": sound._replace(verify=verify)}


def unwarped_target(monkeypatch, run):
    """The target's transform is left out: impossible tokens appear."""
    law = run.parts.program.transform
    flat = law._replace(apply=lambda state, logits, aux: logits)
    return {"transform": flat}


FAULTS = (
    resort_by_q,
    drop_low_probability,
    unwarped_bonus,
    resample_from_p,
    key_reuse,
    wrong_replacement,
    unwarped_target,
)


ODD = (resort_by_q, unwarped_bonus, key_reuse, unwarped_target)  # in every run
MARKED = [pytest.param(f, marks=[pytest.mark.long] * (f not in ODD)) for f in FAULTS]


@pytest.mark.parametrize("fault", MARKED, ids=lambda f: f.__name__)
def test_fault_bends_the_law(fault, monkeypatch, law_table):
    name = "verifiers/recursive_rejection"
    sound = kit.Run(
        verifiers.method(name, base.NO_REPLACE),
        verifiers.TEMPERATURE,
        verifiers.TARGET,
        verifiers.DRAFT,
    )
    run = verifiers.a_run(name, base.NO_REPLACE, **fault(monkeypatch, sound))
    planted = f"fault: {fault.__name__}"
    parts = (name, base.NO_REPLACE, planted)
    assert law_table(parts, verifiers.sample(run), verifiers.LAW, "< 1e-6") < 1e-6
