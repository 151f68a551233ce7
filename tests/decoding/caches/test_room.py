"""A policy's room: rounds and prompt chunks end where it says, and the text stays."""

import itertools

import jax
import numpy as np
import pytest

from decoding import Method, Spec
from decoding.conformance import kit

pytestmark = pytest.mark.kv

EVERY = 4
SELF = Method(
    Spec("drafters/oracle"), topology=Spec("topologies/chain", length=EVERY + 2)
)
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [2]]


def run(room: bool, chunk: int) -> kit.Run:
    """Drafts of the target's own, so that nothing but the policy cuts a round."""
    sound = kit.Run(SELF, 0.8)
    policy = sound.parts.program.policy
    if room:  # none may pass a multiple of EVERY tokens seen

        def left(state, cache, tokens):
            return EVERY - cache.length % EVERY

        policy = policy._replace(room=left)
    return sound.alter(policy=policy, chunk=chunk)


def lengths(one: kit.Run) -> tuple[list, list]:
    """The rows' texts, and the tokens seen after each round."""
    state, seen = one.start(PROMPTS), []
    for _ in range(kit.NEW + 1):
        seen.append(np.asarray(state.caches["target"].length).tolist())
        state = one.advance(state, 1)
    return kit.texts(state, PROMPTS), seen


def crossed(seen: list) -> int:
    """Rounds in which a row passed a multiple of EVERY without stopping at it."""
    moves = [move for x, y in itertools.pairwise(seen) for move in zip(x, y)]
    return sum((after - 1) // EVERY > before // EVERY for before, after in moves)


@pytest.mark.parametrize("chunk", [pytest.param(3, marks=pytest.mark.long), 16])
def test_rounds_are_cut_and_the_text_stays(chunk):
    """The text is plain decoding's, whatever the chunk; planted: the room ignored."""
    wanted = kit.plain(SELF, 0.8, prompts=PROMPTS)
    texts, seen = lengths(run(True, chunk))
    assert texts == wanted and crossed(seen) == 0
    texts, seen = lengths(run(False, chunk))
    assert texts == wanted and crossed(seen) > 0


def test_prompt_chunks_are_cut():
    """What is retained of a prompt ends at the multiples; planted: the room ignored."""
    ends: list[set[int]] = []
    for room in (True, False):
        one = run(room, 16)
        sound, met = one.parts.program.policy, set()

        def retain(state, cache, outcome, sound=sound, met=met):
            after, state = sound.retain(state, cache, outcome)
            if outcome.is_prompt:
                note = lambda n, met=met: met.update(n.tolist())
                jax.debug.callback(note, after.length)
            return after, state

        one.alter(policy=sound._replace(retain=retain)).start(PROMPTS)
        jax.effects_barrier()
        ends.append(met)
    assert ends[0] == {0, EVERY, 6} and ends[1] == {0, 6}
