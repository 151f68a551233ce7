"""The contract of lossless verifiers: the law of the first tokens, enumerated.

A draft model with other weights drafts for an exact table model of 4 tokens; topologies
that a draft model cannot serve have random heads on a block. The joint law of the first
3 tokens (64 cells) is enumerated in float64. A chi-square test compares it with `N`
texts, at temperature 0.9 alone and under a transform, for every draw that the verifier
lists. One impossible token fails the test.
"""

import numpy as np

from decoding import base
from decoding.catalogue import Spec
from decoding.conformance import kit, laws, topologies, toy_heads
from decoding.conformance.require import require
from decoding.method import Method
from models.synthetic import toy

ROWS, CALLS, LENGTH = 4096, 6, 3
N = ROWS * CALLS
TEMPERATURE, TOP, NUCLEUS = 0.9, 3, 0.95
PROMPT = [1, 2]
TREE = ((0,), (1,), (0, 0), (0, 1), (1, 0))
TARGET, DRAFT = kit.model(0, vocab=4), kit.model(1, vocab=4)
CHAINS = ("verifiers/rejection", "verifiers/rapid")  # one draft a node
TOP_K, TOP_P = Spec("transforms/top_k", k=TOP), Spec("transforms/top_p", p=NUCLEUS)
LEVEL = 2.5e-5  # 10^-3 over the 40 cases that the suite holds


def check(spec: Spec) -> None:
    """Check a verifier that declares `LAW` against the target's law, for all its draws.

    Raises:
        AssertionError: the texts have another law; the message gives draw and p-value.
    """
    verifier = spec.build({})
    if verifier.guarantee != base.LAW:
        return
    for draw in verifier.draws:
        for under in ((TOP_K,), ()):
            keeps_the_law(spec, draw, None, under)


def keeps_the_law(
    spec: Spec, draw: str, topology: str | Spec | None, under: tuple[Spec, ...]
) -> kit.Run:
    """Check one draw, under `(TOP_K,)` or no transform; return the run for reuse."""
    run = a_run(spec.name, draw, topology, under)
    p = laws.chi_square(sample(run), LAW if under else WARM)
    require(p > LEVEL, spec, f"another law of {draw} drafts, p = {p:.1e}")
    return run


def method(
    verifier: str,
    draw: str,
    topology: str | Spec | None = None,
    under: tuple[Spec, ...] = (TOP_K,),
    drafter: str = "",
) -> Method:
    """Compose drafts with `verifier`, by default in a tree if it takes trees.

    They are a draft model's, or a block's where the topology asks for heads.
    """
    default = "topologies/chain" if verifier in CHAINS else "topologies/static"
    arguments: dict[str, dict] = {
        "topologies/chain": {"length": 2},
        "topologies/static": {"choices": TREE},
    }
    grown = topology or default
    if isinstance(grown, str):
        grown = Spec(grown, **arguments.get(grown, {}))
    shape = kit.spec(grown.name, **{**grown.arguments, "draw": draw})
    usual = "drafters/dspark" if topologies.headed(shape) else "drafters/model"
    return Method(
        kit.spec(drafter or usual),
        verifier=Spec(verifier),
        topology=shape,
        transforms=under,
    )


def warm(logits: np.ndarray, context: list[int]) -> np.ndarray:
    """Apply the temperature."""
    return logits / TEMPERATURE


def top_k(logits: np.ndarray, context: list[int]) -> np.ndarray:
    """Apply the temperature, then top-k."""
    logits = logits / TEMPERATURE
    return np.where(logits >= np.sort(logits)[-TOP], logits, -np.inf)


def top_p(logits: np.ndarray, context: list[int]) -> np.ndarray:
    """Apply the temperature, then top-p."""
    logits = logits / TEMPERATURE
    p = np.exp(logits) / np.exp(logits).sum()
    above = (p * (p > p[:, None])).sum(1)  # the mass of likelier tokens
    return np.where(above < NUCLEUS, logits, -np.inf)


LAW, UNDER_TOP_P, WARM = (
    toy.sequence_law(TARGET.params, PROMPT, LENGTH, warp)
    for warp in (top_k, top_p, warm)
)


def sample(run: kit.Run, calls: int = CALLS) -> np.ndarray:
    """Count the first `LENGTH` tokens of `calls` x ROWS texts, int64[V] * LENGTH."""
    counts = np.zeros((4,) * LENGTH, np.int64)
    for seed in range(calls):
        state = run.start([PROMPT], new=LENGTH, n=ROWS, seed=seed, size=16)
        tokens = np.asarray(run.advance(state).tokens)[:, len(PROMPT) :][:, :LENGTH]
        np.add.at(counts, tuple(tokens.T), 1)
    return counts


def a_run(
    name: str,
    draw: str,
    topology: str | Spec | None = None,
    under: tuple[Spec, ...] = (TOP_K,),
    drafter: str = "",
    /,
    **changes,
) -> kit.Run:
    """Make a run with a narrow prefill, for 4096 rows and prompts of 2 tokens."""
    chosen = method(name, draw, topology, under, drafter)
    beside = kit.models(chosen, DRAFT)
    if "heads" in beside and chosen.drafter is not None:  # the kit's are of its target
        beside["heads"] = toy_heads.heads(chosen.drafter.name, TARGET)
    run = kit.Run(chosen, TEMPERATURE, lm=TARGET, beside=beside)
    return run.alter(chunk=2, **changes)
