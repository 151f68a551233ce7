"""Unit tests: the share of tests that a generated program passes.

Zhang, Chen, Shen, Ding, Tenenbaum, Gan, *Planning with Large Language Models for Code
Generation*, 2023, arXiv 2303.05510, section 4. With tests t_1 .. t_K,

    r(y) = (1 / K) sum_k [y passes t_k]

Programs run on this machine, each in a process with limits; read what
`decoding.execution.tests_runner` does not protect from. It runs none unless
`allow_execution=True` is given and DECODAX_ALLOW_EXECUTION=1 is set.

Deviations: none. Cost: some 0.1 s of a core a program, on the host.
"""

import re
from collections.abc import Sequence
from typing import Any

from decoding import base
from decoding.catalogue import Card
from decoding.execution import tests_runner
from decoding.hypotheses.rank import Sample
from decoding.hypotheses.reward import Reward
from models.errors import MethodError

CARD = Card(
    paper="PG-TD, arXiv 2303.05510",
    guarantee=base.LOSSY,
    family="by rule",
    data=("tests", "allow_execution", "program"),
    examples={
        "tests": ("assert 'b' in x", "assert len(x) > 3"),
        "allow_execution": True,
        "program": "x = '{text}'",
    },
    sources=("zhang2023planning",),
)


def reward(
    tests: Sequence[Any],
    allow_execution: bool = False,
    program: str = "{prompt}{text}",
) -> Reward:
    """Value texts by tests.

    Args:
        tests: lines of Python such as `assert f(2) == 3`, for all prompts, or one list
            of them a prompt.
        allow_execution: one of the two switches that let programs run.
        program: Python in which {prompt} and {text} stand for those of a sample.
    """
    is_listed = bool(tests) and all(type(t) in (list, tuple) for t in tests)
    lists = [list(row) for row in tests] if is_listed else [list(tests)]
    wrong = [t for row in lists for t in row if type(t) is not str]
    if wrong or not all(lists):
        raise MethodError(
            f"tests={tests!r}: give one test or more, or such a list for each prompt"
        )
    tests_runner.check_allowed(allow_execution)

    def init(prompts: int) -> base.State:
        if len(lists) not in (1, prompts):
            raise MethodError(
                f"tests has {len(lists)} lists for {prompts} prompts: give one for "
                "all, or one a prompt"
            )
        return base.State()

    def written(sample: Sample) -> str:
        parts = {"{prompt}": sample.prompt or "", "{text}": sample.text or ""}
        return re.sub(r"\{(prompt|text)\}", lambda found: parts[found[0]], program)

    def ask(samples: Sequence[Sample]) -> list[float]:
        programs = [written(s) for s in samples]
        each = [lists[s.request if len(lists) > 1 else 0] for s in samples]
        verdicts = tests_runner.run_all(programs, each, None, allow_execution)
        return [verdict.share for verdict in verdicts]

    return Reward(ask=ask, init=init)
