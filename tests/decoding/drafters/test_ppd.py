"""PPD's prompt tokens in the loop, and plans of how many a node carries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec, base
from decoding.tree_building import aux_nodes
from models import transformer
from models.errors import MethodError
from models.heads import ppd as heads
from tests.decoding.drafters import agreement
from training.objectives.heads import ppd
from training.teacher import outputs

KEY = jax.random.key(0)


@functools.cache
def params(copies: int = 2):
    lm = agreement.target()
    fresh = heads.init(KEY, lm.model, lm.params, 3, copies)
    return agreement.stirred(fresh, 0.3)


@functools.cache
def loop():
    return agreement.Loop("drafters/ppd", ppd, params(), 3, late=1)


@pytest.mark.long
def test_drafts_in_the_loop_are_those_over_the_text():
    """The block's prompts see what they see behind the same token of a whole text."""
    assert loop().agrees()


def test_fault_the_prompts_of_another_node(monkeypatch):
    """Planted: the laws are read behind the root, not the last accepted node."""
    run = loop()
    sound = aux_nodes.tree.last_node
    monkeypatch.setattr(aux_nodes.tree, "last_node", lambda verdict: 0 * sound(verdict))
    assert not run.agrees()


def test_fault_copies_that_see_one_another(monkeypatch):
    """Planted: the chain of a copy begins behind another copy's."""
    sound = aux_nodes.AuxNodes.__init__

    def init(self, *arguments):
        sound(self, *arguments)
        self.parents[:, 1, 0] = self.index[:, 0, -1]

    monkeypatch.setattr(aux_nodes.AuxNodes, "__init__", init)
    assert not loop.__wrapped__().agrees()


PLAN = ((3, 2, -1, -1), (3, 1, 0, -1), (3, 2, 0, 1))


def rounds(prompts, plan, count: int):
    """A chain of three on the random target, its drafts accepted by lot.

    What was known before each round, its outcome, and the row state after it.
    """
    run = agreement.Loop("drafters/ppd", ppd, prompts, 3, plan=plan)
    before = np.array(run.begun.drafter.row.known)
    for _, outcome, state in run.rounds(count):
        row = jax.tree.map(np.array, state.drafter.row)
        yield before, outcome, row
        before = row.known


@pytest.mark.long
def test_a_plan_decides_who_carries_what():
    """Each row's block is that of its state: kinds, parents, and what is known next."""
    full = aux_nodes.AuxNodes(4, 3, 2, agreement.VOCAB).nodes
    states, widths = set(), set()
    for known, outcome, after in rounds(params(), PLAN, 6):
        nodes = outcome.tree
        kinds, parents = np.asarray(nodes.kind), np.asarray(nodes.parents)
        for row, s in enumerate(known):
            counts = PLAN[s - 1] if s else (3, -1, -1, -1)
            candidates = [n for n in counts if n >= 0]
            assert (kinds[row] == base.CANDIDATE).sum() == len(candidates)
            assert (kinds[row] == base.AUX).sum() == 2 * sum(candidates)
            for i, n in enumerate(candidates):
                aux = (kinds[row] == base.AUX) & (parents[row] == i)
                assert aux.sum() == 2 * (n > 0)
            last = int(np.asarray(outcome.verdict.path)[row].max())
            assert after.known[row] == counts[last]
            states.add(int(s))
        widths.add(kinds.shape[1])
    assert len(states) > 2 and max(widths) < full  # planted: no plan, a full block


@pytest.mark.long
def test_under_a_plan_the_laws_are_the_same():
    """What is behind a node does not depend on what else the block holds."""
    own, moved = params(), 0
    thin = ((3, 1, 1, 1),) * 3
    for wide, narrow in zip(rounds(own, (), 2), rounds(own, thin, 2)):
        count = np.asarray(wide[1].verdict.count)
        np.testing.assert_array_equal(count, narrow[1].verdict.count)
        np.testing.assert_allclose(wide[2].laws[:, 0], narrow[2].laws[:, 0], atol=1e-4)
        np.testing.assert_array_equal(narrow[2].known, np.where(count, 1, 3))
        moved += count.sum()
    assert moved > 0  # planted: only behind the root would show little


def test_bad_plans():
    for plan, message in (
        (((3, 0, 0, 0),), "a plan of 1 states"),
        (((2, 0, 0, 0),) * 3, "node 0 all of them"),
        (((3, 0, 0, 4),) * 3, "-1 to 3 AUX nodes"),
    ):
        with pytest.raises(MethodError, match=message):
            aux_nodes.AuxNodes(4, 3, 1, 10, plan)


def test_equal_copies_are_one():
    """The mean over copies that are equal, of laws and of text."""
    lm, one = agreement.target(), params(1)
    two = {"prompts": jnp.repeat(one["prompts"], 2, 1)}
    batch = {"tokens": jnp.asarray([[4, 8, 15, 16, 23, 42, 3, 1]], jnp.int32)}
    read = outputs.teacher(lm.model, ppd.objective(lm.model).taps)

    @jax.jit
    def laws(own):
        teacher = read(lm.params, batch)
        return [d(s) for s, d in ppd.guesses(own, lm.model, batch, teacher, 3)]

    for a, b in zip(laws(one), laws(two), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    other = {"prompts": two["prompts"].at[:, 1].multiply(-1.0)}  # planted: unequal
    assert np.abs(laws(other)[2] - laws(one)[2]).max() > 0.01


def test_what_is_trained():
    """m · copies · D numbers, a gradient for all of them, and none for the target."""
    lm, own = agreement.target(), params()
    assert sum(x.size for x in jax.tree.leaves(own)) == 3 * 2 * lm.config.d_model
    objective = ppd.objective(lm.model, points=4)
    tokens = jax.random.randint(KEY, (2, 12), 0, agreement.VOCAB)
    batch = {"tokens": tokens, "row": jnp.arange(2)}
    read = outputs.teacher(lm.model, objective.taps)

    def loss(own, frozen):
        return objective.loss(own, batch, read(frozen, batch))[0]

    ours, theirs = jax.jit(jax.grad(loss, (0, 1)))(own, lm.params)
    assert (ours["prompts"] != 0).all()
    assert all((g == 0).all() for g in jax.tree.leaves(theirs))


def test_of_a_target_of_7b_it_adds_next_to_nothing():
    """At most 0.001 % of the target's parameters; sixteen copies would be more."""
    config = transformer.Config(
        vocab_size=32_000,
        d_model=4096,
        n_layers=32,
        n_heads=32,
        n_kv_heads=32,
        head_dim=128,
        d_ff=11_008,
        max_positions=4096,
        ropes=(transformer.rope(128, 10000.0),),
    )
    model = transformer.transformer(config)
    whole = jax.eval_shape(model.init, KEY)

    def share(copies: int) -> float:
        make = lambda target: heads.init(KEY, model, target, 3, copies)
        sizes = [jax.tree.leaves(x) for x in (jax.eval_shape(make, whole), whole)]
        own, target = (sum(x.size for x in leaves) for leaves in sizes)
        return own / target

    assert share(1) <= 1e-5 < share(16)


@pytest.mark.long
def test_text_is_plain_at_a_temperature():
    """A tree of several branches on a real transformer, coupled."""
    lm = agreement.target()
    tree = Spec("topologies/static", choices=((0,), (1,), (0, 0), (0, 0, 0)))
    method = Method(Spec("drafters/ppd"), topology=tree)
    fields = {"max_new_tokens": 20, "temperature": 1.0, "seed": 3}
    prompts = [list(p) for p in agreement.PROMPTS]
    plain = decoding.generate(lm, prompts, **fields).tokens
    out = decoding.generate(lm, prompts, method, drafts={"heads": params()}, **fields)
    assert out.tokens == plain
