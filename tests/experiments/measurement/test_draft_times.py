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


def test_times_are_milliseconds_of_one_draft(monkeypatch):
    """By a clock on which the repeats of two drafts take 1, 2 and 4 seconds."""
    ticks = iter([0.0, 1.0, 10.0, 12.0, 20.0, 24.0])
    monkeypatch.setattr(draft_times.time, "perf_counter", lambda: next(ticks))
    found = draft_times.draft_times(bench(), {"chain": CASE}, PROMPT, 2, repeats=3)
    assert found == {"chain": {"ms": 1000.0, "ms_quartiles": [750.0, 1500.0]}}
