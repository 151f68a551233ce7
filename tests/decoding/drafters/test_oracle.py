"""The drafter `self` on an exact model: it proposes its model's best tokens."""

import jax
import numpy as np

from decoding import Method, base
from decoding.conformance import kit
from decoding.loops import decode
from models.synthetic import toy

METHOD = kit.cases()["oracle-static"]
DRAFTER = kit.TARGET  # whose law the drafts follow


def ranked(context: list[int], rank: int) -> int:
    return int(np.argsort(-toy.logits(DRAFTER.params, context), kind="stable")[rank])


def test_worked_example():
    """Each node of the tree is the candidate of its rank after the path to it."""
    method = Method(METHOD.drafter, topology=METHOD.topology)
    run = kit.Run(method)
    state = run.advance(run.start(), 2)
    program = run.parts.program

    def draft(params, state):
        ctx = decode.context(program, params, state)
        return program.drafter.draft(state.key, ctx, state.drafter)[0]

    nodes = jax.jit(draft)(run.params, state)
    assert nodes.draw == base.POINT and int(nodes.calls) == program.drafter.depth
    order = ((), *sorted(kit.SMALL_TREE, key=lambda p: (len(p), p)))
    for row in range(len(kit.PROMPTS)):
        text = np.asarray(state.tokens)[row, : int(state.length[row])].tolist()
        known = {(): text}
        for path in order[1:]:
            before = known[path[:-1]]
            known[path] = [*before, ranked(before, path[-1])]
        assert nodes.tokens[row].tolist() == [known[p][-1] for p in order]


def test_fault_another_model():
    """Planted: the other model's arg-max path is not what is proposed."""
    other = kit.DRAFT if DRAFTER is kit.TARGET else kit.TARGET
    text = list(kit.PROMPTS[3])
    paths = [kit.greedy_by_hand(m.params, text, 3) for m in (DRAFTER, other)]
    assert paths[0] != paths[1]
