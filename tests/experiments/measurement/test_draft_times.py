"""A loop of drafts, each of which starts from a token of the one before."""

from decoding import Method, Spec
from decoding.conformance import kit
from experiments.measurement import draft_times
from experiments.measurement.workbench import Bench, Case

LENGTH, PROMPT = 2, [1, 2, 3]
CHAIN = Spec("topologies/chain", length=LENGTH)
CASE = Case(Method(Spec("drafters/model"), topology=CHAIN))


def bench() -> Bench:
    return Bench(kit.TARGET, {"draft": kit.DRAFT}, len(PROMPT), 8)


def test_every_draft_starts_from_the_last_token_of_the_one_before():
    """Planted: all start from the prompt's last token."""
    run = draft_times._program(bench(), CASE, PROMPT)
    roots = [PROMPT[-1]]
    for _ in range(3):
        prompt = [*PROMPT[:-1], roots[-1]]
        roots.append(kit.greedy_by_hand(kit.DRAFT.params, prompt, LENGTH)[-1])
    found = [int(run(n)[-1]) for n in range(4)]
    assert found == roots
    assert found != [roots[0], roots[1], roots[1], roots[1]]


def test_every_case_is_timed():
    found = draft_times.draft_times(bench(), {"chain": CASE}, PROMPT, 2, repeats=3)
    low, high = found["chain"]["ms_quartiles"]
    assert 0 < low <= found["chain"]["ms"] <= high
