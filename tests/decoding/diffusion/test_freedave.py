"""The rule's text in fewer forwards, whatever the rule and the cache."""

import pytest

from decoding import Spec
from decoding.denoising import branches
from decoding.diffusion import freedave
from decoding.loops import engines
from models.errors import MethodError
from tests.decoding.diffusion import writing

RULES = {
    "one": (),
    "quota": (Spec("diffusion/llada", steps=3),),
    "threshold": (Spec("diffusion/fast_dllm", threshold=0.4),),
    "entropy": (Spec("diffusion/dparallel", most=0.7),),
    "leap": (Spec("diffusion/localleap", threshold=0.5, near=0.3),),
    "random": (Spec("diffusion/llada", order="random"),),
}


def pair(rule, policy, temperature, number, alignment="same", **settings):
    """Texts and calls of a rule alone, and verified."""
    lm = writing.lm(alignment, eos=())
    settings |= {"policy": policy, "temperature": temperature, "seed": 3}
    part = Spec("diffusion/freedave", branches=number)
    alone = writing.written(lm, *RULES[rule], **settings)
    return alone, writing.written(lm, *RULES[rule], part, **settings)


def is_exact(alone, verified):
    calls = [out.stats.target_calls for out in (alone, verified)]
    fewer = (calls[1] <= calls[0]).all()
    return alone.tokens == verified.tokens and fewer


def test_one_position_a_forward_in_fewer():
    alone, verified = pair("one", "recompute", 0.8, 3)
    assert is_exact(alone, verified)
    assert verified.stats.target_calls.sum() < alone.stats.target_calls.sum()
    for ours, theirs in zip(verified.logprobs, alone.logprobs):
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_fault_a_draft_is_always_accepted(monkeypatch):
    """Planted: drafts are not checked."""
    monkeypatch.setattr(branches, "_equal", lambda a, b: True)
    with engines.apart():
        alone, verified = pair("one", "recompute", 0.8, 3)
    assert not is_exact(alone, verified)


@pytest.mark.long
@pytest.mark.parametrize("number", [2, 4, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", ["recompute", "prefix", "dual", "block_causal"])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_kept(rule, policy, temperature, number):
    """200 prompts each: 5 prompts, 40 samples or 40 seeds of the toy."""
    alignment = "shifted" if number == 4 else "same"
    assert is_exact(*pair(rule, policy, temperature, number, alignment, n=40))


def test_refused_arguments():
    with pytest.raises(MethodError, match="branches=0"):
        freedave.scheduler(0)
    with pytest.raises(MethodError, match="match='half'"):
        freedave.scheduler(match="half")
