"""Streams through the loop: the same block, the same committed path, their own prompts.

The transforms are held against a simulation by table look-up, in which every model has
its own prompt and all have the text in common.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, base, compose
from decoding.conformance import kit
from decoding.loops import engines
from decoding.serving import continuous_batching
from models.errors import MethodError, PromptError
from models.synthetic import toy
from tests.decoding.search import reference

AMATEUR, EXPERT = kit.model(2), kit.model(3)
MODELS = {"amateur": AMATEUR, "expert": EXPERT}
OWN = ([3, 3, 3, 1], [2], [6, 5], [4, 4, 1, 2, 0, 1, 5])  # ragged, unlike the target's
ALPHA, BETA, WEIGHT = 0.2, 1.5, 0.7
TREE = kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE)


def method(name: str, drafter=None) -> Method:
    transform = {
        "contrastive": kit.spec("transforms/contrastive", alpha=ALPHA, beta=BETA),
        "proxy": kit.spec("transforms/proxy", alpha=WEIGHT),
    }[name]
    return Method(drafter or kit.spec("drafters/plain"), transforms=(transform,))


def streams(names, prompts=None) -> dict[str, base.Stream]:
    return {n: base.Stream(AMATEUR.model, n, prompts) for n in names}


def recall(params, hidden, turn: int = 0):
    """The logits of another toy model, at the contexts that the target has read."""
    code = jnp.roll(hidden["norm"][..., toy.CODE], turn, 1).astype(jnp.int32)
    table = params["table"]
    flat = table.reshape(table.shape[0], -1, table.shape[-1])
    return flat[:, code].sum(0)


def derived(names) -> dict[str, base.Derived]:
    """Streams that compute what `streams` do, with no model."""
    return {n: base.Derived(("norm",), n, recall) for n in names}


def generate(chosen: Method, prompts=None, temperature=0.0, make=streams, **fields):
    names = [s for t in chosen.transforms for s in t.build({}).streams]
    beside = make(names, prompts) if prompts else make(names)
    return decoding.generate(
        kit.TARGET,
        fields.pop("texts", kit.PROMPTS),
        chosen,
        max_new_tokens=kit.NEW,
        temperature=temperature,
        drafts={name: MODELS[name] for name in names},
        streams=beside,
        **fields,
    )


def combined(name: str, target, amateur, expert) -> np.ndarray:
    if name == "proxy":
        return target + np.float32(WEIGHT) * (expert - amateur)
    mixed = amateur + np.float32(BETA) * (target - amateur)
    return np.where(target >= target.max() + np.log(ALPHA), mixed, -np.inf)


def by_hand(name: str, prompt: list[int], own: list[int]) -> list[int]:
    said: list[int] = []
    for _ in range(kit.NEW):
        target = toy.logits(kit.TARGET.params, prompt + said)
        others = [toy.logits(m.params, own + said) for m in (AMATEUR, EXPERT)]
        said.append(int(combined(name, target, *others).argmax()))
    return said


@pytest.mark.parametrize(
    "name", ["contrastive", pytest.param("proxy", marks=pytest.mark.long)]
)
def test_text_is_the_simulation_s(name):
    """Plainly and through a tree, whose path the streams' caches must follow."""
    expected = [by_hand(name, p, p) for p in kit.PROMPTS]
    assert generate(method(name)).tokens == expected
    expected = [by_hand(name, p, o) for p, o in zip(kit.PROMPTS, OWN)]
    assert generate(method(name), OWN).tokens == expected
    assert generate(method(name, TREE), OWN).tokens == expected


@pytest.mark.long
def test_coupled_text_through_a_tree():
    plain = generate(method("proxy"), OWN, 0.8)
    assert generate(method("proxy", TREE), OWN, 0.8).tokens == plain.tokens


def test_every_sample_has_its_stream():
    """With n = 2 a stream's prompts are repeated as the target's are.

    Two prompts, so that there are four rows: programs are compiled for as many.
    """
    texts = kit.PROMPTS[2:]
    out = generate(method("contrastive"), OWN[2:], n=2, texts=texts)
    for text, own, pair in zip(texts, OWN[2:], out.tokens):
        assert pair == [by_hand("contrastive", text, own)] * 2


def test_fault_a_stream_that_runs_another_block():
    """Planted: in the stream every draft stands in its neighbour's place."""
    run = kit.Run(method("contrastive", TREE))
    stream = run.parts.program.streams["amateur"]
    nodes = run.parts.program.drafter.nodes

    def embed(params, tokens, positions):
        if tokens.shape[1] == nodes:
            tokens = tokens.at[:, 1:].set(jnp.roll(tokens[:, 1:], 1, 1))
        return stream.model.embed(params, tokens, positions)

    expected = [by_hand("contrastive", p, p) for p in kit.PROMPTS]
    faulty = stream._replace(model=stream.model._replace(embed=embed))
    assert run.alter(streams={"amateur": faulty}).texts() != expected


def test_prompts_of_a_stream_are_checked():
    with pytest.raises(PromptError, match="stream 'amateur' has 1 prompts"):
        generate(method("contrastive"), ([1],))


@pytest.mark.parametrize(
    "name", ["contrastive", pytest.param("proxy", marks=pytest.mark.long)]
)
def test_derived_text_is_the_simulation_s(name):
    """Streams that read the target's states: plainly, at a tree's nodes, in samples."""
    expected = [by_hand(name, p, p) for p in kit.PROMPTS]
    assert generate(method(name), make=derived).tokens == expected
    assert generate(method(name, TREE), make=derived).tokens == expected
    both = generate(method(name), make=derived, n=2, texts=kit.PROMPTS[2:]).tokens
    assert both == [[text] * 2 for text in expected[2:]]


@pytest.mark.parametrize(
    ("drafter", "make"),
    [
        (TREE, streams),
        (TREE, derived),
        pytest.param(None, derived, marks=pytest.mark.long),
    ],
)
def test_samples_are_those_of_plain_decoding_with_models(drafter, make):
    """Coupled texts; planted: greedy ones."""
    plain = generate(method("proxy"), None, 0.8).tokens
    assert generate(method("proxy", drafter), None, 0.8, make).tokens == plain
    assert plain != [by_hand("proxy", p, p) for p in kit.PROMPTS]


def test_a_search_reads_derived_streams():
    """Beams by lists on the host; planted: under the target alone."""
    transforms = method("contrastive").transforms
    beams = Method(search=kit.spec("search/beam", width=3), transforms=transforms)
    out = generate(beams, make=derived, n=3)
    alone = functools.partial(reference.log_law, kit.TARGET.params)

    def law(text):
        amateur = toy.logits(AMATEUR.params, text).astype(np.float64)
        return combined("contrastive", alone(text), amateur, None)

    about = (kit.NEW, (kit.EOS,), reference.Rules(3))
    for wanted, same in ((law, True), (alone, False)):
        rows = [reference.beams(wanted, p, *about) for p in kit.PROMPTS]
        assert (out.tokens == [[text for _, text in row] for row in rows]) == same
        scores = [[score for score, _ in row] for row in rows]
        assert np.allclose(out.scores, scores, atol=1e-4) == same


def test_refilled_rows_read_derived_streams():
    chosen = method("proxy", TREE)
    parts = compose.compose(
        chosen, kit.TARGET, 0.8, MODELS, derived(("expert", "amateur"))
    )
    params = compose.params(kit.TARGET, MODELS, parts.program.streams)
    limits = [len(p) + kit.NEW for p in kit.PROMPTS]
    keys = engines.request_keys(0, len(kit.PROMPTS), 1)
    found = continuous_batching.decode_requests(
        parts, params, kit.PROMPTS, limits, keys, 2
    )
    texts = {f.request: f.tokens for f in found}
    expected = generate(method("proxy"), None, 0.8).tokens
    assert [texts[i] for i in range(len(expected))] == expected


@pytest.mark.long
@pytest.mark.parametrize("case", [n for n, m in kit.cases().items() if not m.exit])
def test_every_drafter_reads_derived_streams(case):
    """The texts of plain decoding, greedily and sampled, where the method claims it."""
    transforms, streams = method("contrastive").transforms, derived(("amateur",))
    chosen = dataclasses.replace(kit.cases()[case], transforms=transforms)
    plain = Method(transforms=transforms)
    for temperature in (0.0, 0.8):
        given = (temperature, kit.models(chosen), streams)
        claim = compose.compose(chosen, kit.TARGET, *given).guarantee
        texts = [
            kit.generate(one, temperature, streams=streams, width="paper").tokens
            for one in (chosen, plain)
        ]
        assert texts[0] == texts[1] or claim == base.LOSSY


def test_fault_a_derived_stream_of_the_node_beside():
    """Planted: every node reads the state of its neighbour in the block."""
    run = kit.Run(method("contrastive", TREE))
    sound = [by_hand("contrastive", p, p) for p in kit.PROMPTS]

    def beside(params, hidden):
        return recall(params, hidden, turn=1)

    faulty = base.Derived(("norm",), "amateur", beside)
    assert run.alter(streams={"amateur": faulty}).texts() != sound


def test_derived_streams_and_early_exits_are_refused():
    exiting = kit.exiting("exits/specee")
    transforms = method("contrastive").transforms
    chosen = Method(exit=exiting.exit, transforms=transforms)
    beside = {**kit.models(exiting), "amateur": AMATEUR}
    with pytest.raises(MethodError, match=r"\['amateur'\].*exits/specee"):
        compose.compose(chosen, kit.TARGET, 0.0, beside, derived(("amateur",)))
    compose.compose(chosen, kit.TARGET, 0.0, beside, streams(("amateur",)))
