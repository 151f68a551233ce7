"""Every transform, constraint, topology, policy and exit keeps its contract.

Beside each contract stand the faults that it must catch.
"""

import jax.numpy as jnp
import pytest

from decoding import Method, Spec, base, catalogue
from decoding.conformance import (
    constraints,
    exits,
    kit,
    policies,
    rewards,
    schedules,
    searches,
    topologies,
    transforms,
)

CONTRACTS = {
    "transforms": transforms.check,
    "constraints": constraints.check,
    "topologies": topologies.check,
    "caches": policies.check,
    "exits": exits.check,
    "search": searches.check,
    "rewards": rewards.check,
    "diffusion": schedules.check,
}
EVERY = [
    name
    for folder in CONTRACTS
    for name in catalogue.names(folder)
    if Spec(name).card.kind != "canvas_policy"  # tests/conformance/test_schedules.py
]


# One policy that evicts; its own tests meet every other, its contract with `-m kv`.
USUAL = ("caches/dense", "caches/h2o")
# What the searches' own tests and the other exit of layers meet in every run.
SEARCHES = ("beam", "best_of_n", "smc")
SCHEDULES = ("blocks", "fast_dllm")  # the others meet the oracle in their own tests
RARE = (
    "exits/first",
    *(n for n in catalogue.names("search") if n.split("/")[1] not in SEARCHES),
    *(n for n in catalogue.names("diffusion") if n.split("/")[1] not in SCHEDULES),
)


def marks(name: str) -> list:
    if not name.startswith("caches/"):
        return [pytest.mark.long] * (name in RARE)
    return [pytest.mark.kv, *[pytest.mark.long] * (name not in USUAL)]


@pytest.mark.parametrize("name", [pytest.param(n, marks=marks(n)) for n in EVERY])
def test_contract(name):
    CONTRACTS[name.split("/")[0]](Spec(name))


@pytest.mark.long
@pytest.mark.parametrize("name", catalogue.names("search"))
def test_drafts_keep_a_search(name):
    """test_search_drafts.py has the faults, and the usual drafters of beams."""
    searches.drafts_keep_the_texts(Spec(name))


TOP_K = Spec("transforms/top_k", k=2)
PENALTY = Spec("transforms/frequency_penalty", penalty=0.5)


def part(spec: Spec) -> base.LogitsTransform:
    return spec.build(kit.PARTS)


def nothing_left(state, logits, aux):
    return jnp.full_like(logits, -jnp.inf)


def shifted(state, logits, aux):
    """Banned tokens come back."""
    return jnp.maximum(logits, -1e9)


def half(state, logits, aux):
    return logits.astype(jnp.bfloat16)


@pytest.mark.parametrize(
    ("apply", "words"),
    [
        (nothing_left, "forbids every token"),
        (shifted, "becomes possible"),
        (half, "apply returns bfloat16"),
    ],
)
def test_fault_a_transform(apply, words):
    with pytest.raises(AssertionError, match=words):
        transforms.walks(TOP_K, part(TOP_K)._replace(apply=apply))


def test_fault_a_state_that_grows():
    def advance(state, token, logits, aux):
        return base.State((state.row, token), state.shared)

    wrong = part(PENALTY)._replace(advance=advance)
    with pytest.raises(AssertionError, match="advance changes"):
        transforms.walks(PENALTY, wrong)


def test_fault_states_along_a_chain():
    """Planted: a node's state is that after the node before, not after its parent."""

    def along(transform, state, nodes, logits, aux):
        before = jnp.arange(-1, nodes.parents.shape[1] - 1)
        nodes = nodes.replace(parents=jnp.broadcast_to(before, nodes.parents.shape))
        return transforms.tree.node_states(transform, state, nodes, logits, aux)

    with pytest.raises(AssertionError, match="node 2 has another state"):
        transforms.nodes_hold_replayed_states(PENALTY, part(PENALTY), along)


def test_fault_memory_in_the_shared_part():
    sound = part(PENALTY)

    def init(tokens, length):
        return base.State((), sound.init(tokens, length).row)

    def advance(state, token, logits, aux):
        moved = sound.advance(base.State(state.shared), token, logits, aux)
        return base.State((), moved.row)

    def apply(state, logits, aux):
        return sound.apply(base.State(state.shared), logits, aux)

    wrong = base.LogitsTransform(init, apply, advance)
    with pytest.raises((AssertionError, ValueError), match=r"share|out_axes"):
        transforms.nodes_hold_replayed_states(PENALTY, wrong)


def test_fault_a_number_that_shapes_the_program(monkeypatch):
    """Planted: `p` is a constant of the program, and the card lists it as data."""
    module = Spec("transforms/top_p").module
    sound = module.transform

    def transform(p):
        def apply(state, logits, aux):
            return jnp.where(logits > p, logits, -jnp.inf)

        return sound(p)._replace(apply=apply)

    monkeypatch.setattr(module, "transform", transform)
    with pytest.raises(AssertionError, match="shapes the program"):
        transforms.numbers_share_a_program(Spec("transforms/top_p", p=0.9))


def test_fault_a_transform_that_reads_ids_and_says_it_does_not():
    biased = part(Spec("transforms/top_p", p=0.9))

    def apply(state, logits, aux):
        return logits - jnp.arange(logits.shape[0])

    with pytest.raises(AssertionError, match="reads which tokens"):
        transforms.parts_are_parts(TOP_K, biased._replace(apply=apply))


def test_fault_a_constraint_that_strands():
    """Planted: after token 3 nothing is allowed."""

    def apply(state, logits, aux):
        return jnp.where(state.row == 3, -jnp.inf, logits.at[0].set(-jnp.inf))

    wrong = base.LogitsTransform(
        lambda tokens, length: base.State(jnp.int32(0)),
        apply,
        lambda state, token, logits, aux: base.State(token),
    )
    with pytest.raises(AssertionError, match="no token may follow"):
        constraints.never_strands(TOP_K, wrong)


def test_fault_a_constraint_that_reads_logits():
    with pytest.raises(AssertionError, match="logits change what is allowed"):
        constraints.never_strands(TOP_K, part(TOP_K))


def test_fault_a_constraint_that_forbids_nothing():
    free = part(Spec("transforms/temperature", temperature=2.0))
    with pytest.raises(AssertionError, match="it forbids nothing"):
        constraints.never_strands(TOP_K, free)


@pytest.mark.parametrize(
    ("free", "words"),
    [
        (None, "has no `free`"),
        (lambda state, logits, aux: logits * 2, "changes the logit"),
        (lambda state, logits, aux: logits.at[0].set(-jnp.inf), "forbids a token"),
    ],
)
def test_fault_a_constraint_without_a_mass(free, words):
    regex = part(kit.spec("constraints/regex"))
    with pytest.raises(AssertionError, match=words):
        constraints.has_a_mass(TOP_K, regex._replace(free=free))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda words: words | 0xFF, "differ on"),
        (lambda words: words & 0, "has no token"),
    ],
)
def test_fault_a_constraint_whose_words_are_of_no_text(change, words):
    regex = part(kit.spec("constraints/regex"))
    allowed = lambda state, canvas: change(regex.holes.allowed(state, canvas))
    wrong = regex._replace(holes=regex.holes._replace(allowed=allowed))
    with pytest.raises(AssertionError, match=words):
        constraints.fills_its_holes(TOP_K, wrong)


def swapped(nodes: base.TokenTree) -> base.TokenTree:
    parents = nodes.parents.copy()
    parents[0, 1] = 2
    return nodes.replace(parents=parents)


def orphaned(nodes: base.TokenTree) -> base.TokenTree:
    kind = nodes.kind.copy()
    kind[0, 1] = base.PAD
    return nodes.replace(kind=kind)


def unknown(nodes: base.TokenTree) -> base.TokenTree:
    return nodes.replace(tokens=nodes.tokens + kit.VOCAB)


def forked(nodes: base.TokenTree) -> base.TokenTree:
    return nodes.replace(linear=True)


@pytest.fixture(scope="module")
def static_trees():
    return topologies.grown(Spec("topologies/static"))


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (swapped, "node 1 has the parent 2"),
        (orphaned, "is padding"),
        (unknown, "has the token"),
        (forked, "it forks"),
    ],
)
def test_fault_a_tree(plant, words, static_trees):
    drafter, nodes = static_trees
    with pytest.raises(AssertionError, match=words):
        topologies.is_a_tree("topologies/static", drafter, plant(nodes))


def test_fault_siblings_alike(static_trees):
    """Planted: all nodes have one token."""
    nodes = static_trees[1].replace(tokens=0 * static_trees[1].tokens)
    assert nodes.draw != base.IID
    with pytest.raises(AssertionError, match="siblings repeat"):
        topologies.siblings_differ("topologies/static", nodes)


def test_fault_a_length_that_counts_slots():
    """Planted: a policy that counts the slots of a round, and not its tokens."""
    run = kit.Run(Method())
    sound = run.parts.program.policy

    def retain(state, cache, outcome):
        cache, state = sound.retain(state, cache, outcome)
        more = 0 if outcome.is_prompt else 1
        return cache.replace(length=cache.length + more), state

    run.alter(policy=sound._replace(retain=retain))
    with pytest.raises(AssertionError, match="after rounds"):
        policies.counts_tokens_seen("caches/dense", run)


def test_fault_a_chunk_that_loses_its_last_token():
    """Planted: the last slot of every chunk is written over."""
    run = kit.Run(Method())
    sound = run.parts.program.policy

    def retain(state, cache, outcome):
        cache, state = sound.retain(state, cache, outcome)
        rows, last = jnp.arange(len(cache.length)), cache.length - 1
        blank = lambda x: x.at[rows, last].set(0)
        layers = tuple(x.replace(token=blank(x.token)) for x in cache.layers)
        return cache.replace(layers=layers), state

    run.alter(policy=sound._replace(retain=retain))
    with pytest.raises(AssertionError, match="depends on the prompt's chunks"):
        policies.chunks_leave_one_cache("caches/dense", run)


def test_fault_a_policy_that_sees_the_block():
    """Planted: a node sees its siblings, and the policy is declared path_pure."""
    plain, tree = Method(), kit.cases()["model-static"]
    run = kit.Run(tree)
    sound = run.parts.program.policy

    def place(state, cache, nodes):
        slots, seen = sound.place(state, cache, nodes)
        return slots, seen.replace(ancestors=seen.ancestors | ~jnp.uint32(0))

    run.alter(policy=sound._replace(place=place))
    with pytest.raises(AssertionError, match="a draft tree changes the text"):
        policies.drafts_keep_the_text("caches/dense", run, kit.Run(plain))


def test_fault_an_exit_that_is_not_path_pure():
    """Planted: an exit that counts the nodes of a block, and is declared path_pure."""
    plain = kit.Run(Method())
    wide = kit.Run(Method(kit.spec("drafters/prompt_lookup")))
    model = wide.parts.program.model

    def layers(weights, cache, x, block, lo, hi, taps=()):
        x, cache, hidden = model.layers(weights, cache, x, block, lo, hi, taps)
        return x * (1 - 2 * (x.shape[1] > 1)), cache, hidden

    wide.alter(model=model._replace(layers=layers))
    with pytest.raises(AssertionError, match="a draft changes the text"):
        exits.drafts_keep_the_text("exits/wrong", wide, plain)


def test_fault_wider_blocks_are_taken():
    wide = Method(kit.spec("drafters/prompt_lookup"))
    with pytest.raises(AssertionError, match="a wider draft is taken"):
        exits.wider_blocks_are_refused("exits/wrong", wide)
