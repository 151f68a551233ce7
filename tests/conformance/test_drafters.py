"""Every drafter and exit keeps its contract, and perfect drafts are all accepted."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from decoding import Method, base, catalogue, tree
from decoding.conformance import drafters, kit, transforms
from decoding.loops import decode, engines
from decoding.tree_building import draft_model
from models.errors import MethodError
from tests.conformance import parameters

CASES = kit.cases()
EACH = parameters.each(CASES)
EAGER = ("plain",)
EACH_EAGER = [
    pytest.param(method, id=name, marks=() if name in EAGER else (pytest.mark.long,))
    for name, method in CASES.items()
]


def rare(name: str, contract) -> bool:
    """Whether a method meets the contract with the long tests alone."""
    return name in parameters.ALIKE and contract is drafters.greedy_text_is_plain


CONTRACTS = [
    pytest.param(
        *case.values,
        contract,
        id=f"{case.id}-{contract.__name__}",
        marks=case.marks or [pytest.mark.long] * rare(case.id, contract),
    )
    for case in EACH
    for contract in drafters.CONTRACT
]
PERFECT = parameters.each(
    {
        name: method
        for name, method in CASES.items()
        if name.split("-")[0] in ("oracle", "model")
    }
)
# Topologies whose deepest node is not below the first child of every node.
DYNAMIC = (
    "rsd_s",
    "dyspec",
    "eagle2",
    "confidence_stop",
    "specdec_pp",
    "hardware_aware",
)
RECYCLING = CASES["token_recycling"]
TREE = Method(kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE))


def test_every_drafter_and_exit_is_in_every_run():
    """Planted: one whose only case runs with the long tests is missed."""

    def missing(rare) -> set:
        usual = [method for name, method in CASES.items() if name not in rare]
        parts = {spec.name for method in usual for spec in method.parts}
        return {*kit.drafters(), *catalogue.names("exits")} - parts

    assert {*parameters.RARE, *parameters.ALIKE} <= set(CASES)
    assert not missing(parameters.RARE)
    assert missing((*parameters.RARE, "lud")) == {"drafters/lud"}


@pytest.mark.parametrize("ending", [-30.0, 0.5])
def test_plain_text_is_the_table_s(ending):
    lm = kit.model(0, ending)
    for i, text in enumerate(kit.generate(Method(), lm=lm).tokens):
        assert text == kit.greedy_by_hand(lm.params, kit.PROMPTS[i], kit.NEW)


def test_greedy_rows_among_sampled_ones():
    """Planted: all rows sample, or none."""
    greedy = [
        kit.greedy_by_hand(kit.TARGET.params, prompt, kit.NEW) for prompt in kit.PROMPTS
    ]
    is_greedy = lambda heats: [
        text == wanted
        for text, wanted in zip(kit.generate(Method(), heats).tokens, greedy)
    ]
    assert is_greedy(drafters.HEATS) == [heat == 0 for heat in drafters.HEATS]
    assert is_greedy(0.8) != is_greedy(drafters.HEATS) != is_greedy(0.0)


@pytest.mark.parametrize(("method", "contract"), CONTRACTS)
def test_contract(method, contract):
    contract(method)


@pytest.mark.parametrize("contract", drafters.SLOW, ids=lambda c: c.__name__)
@pytest.mark.parametrize("method", EACH_EAGER)
def test_slow_contract(method, contract):
    contract(method)


@pytest.mark.long
@pytest.mark.parametrize("transform", kit.transforms(), ids=lambda s: s.name)
def test_text_is_plain_under_each_transform(transform):
    transforms.drafts_keep_text(transform)


def test_all_transforms_meet_every_drafter():
    """Planted: one that no group names is missed."""
    every = {spec.name for spec in kit.transforms()}
    named = {name for names in parameters.TOGETHER.values() for name in names}
    assert every == named
    assert every != named - {"transforms/typical"}


def with_transforms(method: Method, names) -> Method:
    return replace(method, transforms=tuple(kit.spec(name) for name in names))


def heats(names) -> tuple[float, ...]:
    """The temperatures of a group: a transform that has no law is greedy."""
    laws = [kit.spec(name).card.guarantee == base.LAW for name in names]
    return (0.0, 0.8) if all(laws) else (0.0,)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(
            names,
            id=group,
            marks=[pytest.mark.long] * (group in parameters.ALIKE_GROUPS),
        )
        for group, names in parameters.TOGETHER.items()
    ],
)
def test_text_is_plain_under_every_transform(names):
    """Greedy and sampled rows of one program; each alone with the long tests."""
    method = with_transforms(TREE, names)
    if len(heats(names)) > 1:
        drafters.greedy_rows_are_plain(method)
    else:
        assert kit.generate(method).tokens == kit.plain(method, 0.0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "temperature"),
    [
        pytest.param(names, heat, id=f"{group}-{heat}")
        for group, names in parameters.TOGETHER.items()
        for heat in heats(names)
    ],
)
@pytest.mark.parametrize("method", EACH)
def test_every_drafter_under_every_transform(method, names, temperature):
    method = with_transforms(method, names)
    out = kit.generate(method, temperature)
    assert out.tokens == kit.plain(method, temperature)


@pytest.mark.parametrize("name", ["medusa", "chimera"])
def test_a_topology_that_watches_needs_a_state_for_each_node(name):
    """Medusa hands nothing down its tree, and Chimera several vectors."""
    watching = kit.spec("topologies/specdec_pp")
    method = Method(kit.spec(f"drafters/{name}"), topology=watching)
    with pytest.raises(MethodError, match="watches the states"):
        kit.generate(method)


def calls(run: kit.Run) -> tuple[list[int], list[int]]:
    """The least target calls of four full rounds, and those made."""
    depth = run.parts.program.drafter.depth
    state = run.advance(run.start(new=4 * (depth + 1)))
    return [4] * len(kit.PROMPTS), state.counters.target_calls.tolist()


def ends_at_a_leaf(run: kit.Run, rounds: int = 3) -> bool:
    """Whether every accepted path ends where the tree has no draft to offer."""
    state = run.start()
    for _ in range(rounds):
        state, outcome = run.engine.step(run.params, state)
        nodes, last = outcome.tree, tree.last_node(outcome.verdict)
        below = (nodes.parents == last[:, None]) & (nodes.kind == base.CANDIDATE)
        if below.any():
            return False
    return True


@pytest.mark.parametrize(
    "temperature", [drafters.HEATS, pytest.param(0.0, marks=pytest.mark.long)], ids=str
)
@pytest.mark.parametrize("method", PERFECT)
def test_perfect_drafts_are_all_accepted(method, temperature):
    """As deep as the tree goes, or, if that changes, to a leaf of it.

    In the program of sampled texts for both; the greedy one with the long tests.
    """
    if method.topology.name.split("/")[1] in DYNAMIC:
        assert ends_at_a_leaf(kit.Run(method, temperature, draft=kit.TARGET))
        return
    least, made = calls(kit.Run(method, temperature, draft=kit.TARGET))
    assert made == least


def test_fault_another_draft():
    """The oracle can fail: a draft with other weights is not always accepted."""
    least, made = calls(kit.Run(CASES["model-chain"], 0.8, draft=kit.DRAFT))
    assert min(made) > least[0]
    assert not ends_at_a_leaf(kit.Run(CASES["model-eagle2"], 0.8, draft=kit.DRAFT))


def test_fault_slots_by_node(monkeypatch):
    """The draft's keys are looked for in the slot of the node's index in the tree that
    is verified, not where they were written. The text stays right, acceptance drops.
    At 0.8: the toy's greedy texts showed it in none of nine rounds."""
    sound = draft_model.commit

    def commit(cache, topology, outcome):
        bare = outcome.replace(tree=outcome.tree.replace(slots=None))
        return sound(cache, topology, bare)

    monkeypatch.setattr(draft_model, "commit", commit)
    run = kit.Run(CASES["model-eagle2"], 0.8, draft=kit.TARGET)
    assert not ends_at_a_leaf(run.alter())


# Planted faults that change a text.


def keeps_one_too_many(run: kit.Run) -> dict:
    sound = run.parts.program.policy

    def retain(state, cache, outcome):
        cache, state = sound.retain(state, cache, outcome)
        more = (outcome.verdict.count >= 0).astype(jnp.int32)
        return cache.replace(length=cache.length + more), state

    return {"policy": sound._replace(retain=retain)}


def keeps_the_wrong_nodes(run: kit.Run) -> dict:
    sound = run.parts.program.policy

    def retain(state, cache, outcome):
        verdict = outcome.verdict
        path = jnp.arange(1, outcome.tree.depth + 1, dtype=jnp.int32)
        verdict = verdict.replace(path=jnp.broadcast_to(path, verdict.path.shape))
        return sound.retain(state, cache, outcome.replace(verdict=verdict))

    return {"policy": sound._replace(retain=retain)}


def sees_the_whole_block(run: kit.Run) -> dict:
    sound = run.parts.program.policy

    def place(state, cache, nodes):
        slots, seen = sound.place(state, cache, nodes)
        return slots, seen.replace(ancestors=jnp.full_like(seen.ancestors, 2**32 - 1))

    return {"policy": sound._replace(place=place)}


def noise_of_the_root(run: kit.Run) -> dict:
    sound = run.parts.program.verifier

    def verify(key, state, nodes, target):
        still = target._replace(noise=lambda depth: target.noise(0 * depth))
        return sound.verify(key, state, nodes, still)

    return {"verifier": sound._replace(verify=verify)}


FAULTS = (
    keeps_one_too_many,
    keeps_the_wrong_nodes,
    sees_the_whole_block,
    noise_of_the_root,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_fault_changes_the_text(fault):
    run = kit.Run(TREE, 0.8)
    assert run.alter(**fault(run)).texts() != kit.plain(TREE, 0.8)


def test_fault_transform_state_of_the_root(monkeypatch):
    """The transform's state is not carried along the path of a draft."""

    def root_states(transform, state, nodes, logits, aux):
        return sound(transform._replace(advance=None), state, nodes, logits, aux)

    sound = tree.node_states
    monkeypatch.setattr(decode.tree, "node_states", root_states)
    method = CASES["oracle-chain"]
    assert kit.Run(method, 0.8).alter().texts() != kit.plain(method, 0.8)


def test_fault_draft_cache_keeps_one_too_many():
    """After a full path the draft must catch up on two tokens, and here does on one.

    Equal text cannot show it: the text stays plain's, and acceptance drops.
    """
    method = CASES["model-chain"]
    run = kit.Run(method, 0.0, draft=kit.TARGET)
    sound = run.parts.program.drafter

    def observe(ctx, state, outcome):
        if outcome.is_prompt:
            return sound.observe(ctx, state, outcome)
        cache, row = sound.observe(ctx, state, outcome).row
        full = outcome.active & (outcome.verdict.count == sound.depth)
        more = full.astype(jnp.int32)  # the deepest draft was never forwarded
        return state.replace(row=(cache.replace(length=cache.length + more), row))

    run.alter(drafter=sound._replace(observe=observe))
    least, made = calls(run)
    assert max(made) > least[0]
    assert run.texts() == kit.plain(method, 0.0)


def test_fault_a_setting_that_shapes_the_program():
    """The counter can count: another length of chain is another program."""
    kit.generate(Method(kit.spec("drafters/copyspec", copy=2)), 0.0)
    before = drafters.compiled()
    kit.generate(Method(kit.spec("drafters/copyspec", copy=3)), 0.0)
    assert drafters.compiled() > before


def test_fault_keys_of_the_row():
    """Planted: the key of the row that a request runs in, not the request's."""
    together = kit.generate(Method(), 0.8)
    keys = engines.request_keys(0, len(kit.PROMPTS), 1)
    texts = drafters.moved(kit.Run(Method(), 0.8), [3, 0, 1, 2], keys)
    assert [text for text, _ in texts] != together.tokens


def test_fault_finished_rows_teach():
    run = kit.Run(RECYCLING, 0.8)
    sound = run.parts.program.drafter

    def observe(ctx, state, outcome):
        everyone = outcome.replace(active=jnp.ones_like(outcome.active))
        return sound.observe(ctx, state, everyone)

    assert drafters.learned(run.alter(drafter=sound._replace(observe=observe)))


def test_fault_eos_inside_a_path():
    """Planted: only the last token of a round is looked at."""
    method = CASES["oracle-chain"]
    lm = kit.model(drafters.ENDINGS[0], 1.0)
    run = kit.Run(method, drafters.TEMPERATURE, lm=lm)
    state = run.start()
    state = state.replace(ends=jnp.full_like(state.ends, -1))
    plain = kit.plain(method, drafters.TEMPERATURE, lm=lm)
    assert kit.texts(run.advance(state)) != plain


@pytest.mark.parametrize("more", [1, -1])
def test_fault_rollback_off_by_one(more):
    run = kit.Run(RECYCLING, 0.8)
    sound = run.parts.program.policy

    def retain(state, cache, outcome):
        cache, state = sound.retain(state, cache, outcome)
        # Not in prefill, which would never end.
        wrong = 0 if outcome.tree.linear else more
        return cache.replace(length=cache.length + wrong), state

    run.alter(policy=sound._replace(retain=retain))
    state = run.advance(run.start(), 2)
    again = drafters.prefilled(kit.Run(RECYCLING, 0.8), state)
    assert drafters.committed(state) != again
