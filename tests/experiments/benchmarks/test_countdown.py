"""The benchmark `countdown`: held-out prompts, right answers 1 and others 0."""

import itertools
import json

import models
from experiments.benchmarks import countdown
from training.data import generated_problems


def test_answers_of_the_set():
    """Planted: the answers of other problems."""
    problems = countdown.problems()
    assert len({p.key for p in problems}) == len(problems) == countdown.COUNT
    assert all(generated_problems.is_held(p.key) for p in problems)
    assert all(countdown.score(p.prompt + p.answer) == 1 for p in problems)
    others = itertools.pairwise(problems)
    assert not any(countdown.score(p.prompt + q.answer) for p, q in others)


def test_prompts(tmp_path):
    lm = models.load("tiny")
    prompts = countdown.prompts(lm, count=3)
    texts = [lm.tokenizer.decode(tokens) for tokens in prompts]
    assert texts == [p.prompt for p in countdown.problems()[:3]]
    longest = max(len(p.answer) for p in countdown.problems())
    assert longest <= countdown.NEW_TOKENS
    path = tmp_path / "public.jsonl"
    path.write_text(json.dumps({"input": "3,5,7", "output": "15"}))
    (prompt,) = countdown.prompts(lm, path=str(path))
    assert lm.tokenizer.decode(prompt) == "3,5,7:15\n"
