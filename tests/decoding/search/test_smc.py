"""decoding/search/smc.py, against the enumeration of a small language."""

import functools
import itertools
import re

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import decoding
from decoding import Method, Spec, transform_chain
from decoding.conformance import kit
from decoding.loops import engines
from decoding.search import smc
from models.errors import MethodError
from models.synthetic import toy

LM = kit.model(0, ending=0.0)
PROMPT, HEAT, RUNS = [1, 2], 0.9, 512
PATTERN = "[a-g]?[ab]([a-e]g?){1,2}"
NEW = 7  # tokens of the longest texts: six letters and EOS
LANGUAGE = {
    tuple(ord(c) - 97 for c in text)
    for size in range(NEW)
    for letters in itertools.product("abcdefg", repeat=size)
    if re.fullmatch(PATTERN, text := "".join(letters))
}
STARTS = {text[:i] for text in LANGUAGE for i in range(len(text) + 1)}
REGEX = Spec("constraints/regex", pattern=PATTERN)


def searched(particles=4, threshold=0.5, transforms=(REGEX,), runs=RUNS, **fields):
    """Searches behind one prompt, each with a seed of its own."""
    call = {"temperature": HEAT, "max_new_tokens": NEW, "n": particles, **fields}
    search = Spec("search/smc", particles=particles, threshold=threshold)
    method = Method(search=search, transforms=transforms)
    seeds = [*range(runs)]
    return decoding.generate(LM, [PROMPT] * runs, method, seed=seeds, **call)


def texts_of(out) -> tuple[list, np.ndarray]:
    """The texts of every run, and their weights [runs, N]."""
    scores = np.asarray(out.scores, np.float64).reshape(len(out.scores), -1)
    texts = (
        out.tokens
        if out.scores and np.ndim(out.scores[0])
        else [[text] for text in out.tokens]
    )
    return texts, np.exp(scores)


@functools.cache
def step(text: tuple, k: int, heat: float) -> tuple[dict[int, float], float]:
    """The target's factors at the tokens that may follow, and their sum, the mass.

    With z' the logits under the mask and z all, each cut to its k best: exp z' / sum
    exp z.
    """
    logits = np.float64(toy.logits(LM.params, [*PROMPT, *text])) / heat
    allowed = [t for t in range(kit.EOS) if (*text, t) in STARTS]
    allowed += [kit.EOS] * (text in LANGUAGE)
    best = sorted(allowed, key=lambda t: -logits[t])[:k]
    whole = np.exp(np.sort(logits)[-k:]).sum()
    found = {t: np.exp(logits[t]) / whole for t in best}
    return found, sum(found.values())


def factors(text, heat: float = HEAT) -> list[tuple[float, float]]:
    """The factor of every token of a text, and the mass there."""
    steps = [step(tuple(text[:i]), kit.VOCAB, heat) for i in range(len(text))]
    return [(found[token], mass) for token, (found, mass) in zip(text, steps)]


@functools.cache
def target(
    k: int = kit.VOCAB, heat: float = HEAT, new: int = NEW
) -> dict[tuple, float]:
    """The measure g of every whole text; its sum is Z."""
    found, todo = {}, [((), 1.0)]
    while todo:
        text, given = todo.pop()
        for token, factor in step(text, k, heat)[0].items():
            longer = ((*text, token), given * factor)
            if token == kit.EOS or len(text) + 1 == new:
                found[longer[0]] = longer[1]
            else:
                todo.append(longer)
    return found


def total(**fields) -> float:
    return sum(target(**fields).values())


def strays(out, wanted: float) -> float:
    """By how many standard errors the mean estimate of Z strays."""
    z = texts_of(out)[1].mean(1)
    return abs(z.mean() - wanted) / max(z.std() / len(z) ** 0.5, 1e-9)


def p_value(out, measure: dict[tuple, float]) -> float:
    """Hotelling's test: the estimates of g at its greatest texts have the mean g."""
    common = sorted(measure, key=measure.__getitem__)[-10:]
    texts, weights = texts_of(out)
    estimates = np.zeros((len(texts), len(common)))
    for run, row in enumerate(texts):
        for text, weight in zip(row, weights[run]):
            assert tuple(text) in measure
            if tuple(text) in common:
                estimates[run, common.index(tuple(text))] += weight / len(row)
    gap = estimates.mean(0) - [measure[text] for text in common]
    spread = np.cov(estimates.T) / len(texts)
    return float(stats.chi2.sf(gap @ np.linalg.solve(spread, gap), len(common)))


@functools.cache
def usual(particles: int):
    return searched(particles)


@pytest.mark.parametrize("particles", [4, 8])
def test_the_estimates_are_unbiased(particles):
    """Z within 3 standard errors, g by Hotelling's test at level 1e-3; 512 runs."""
    out, g = usual(particles), target()
    assert strays(out, total()) < 3 and p_value(out, g) > 1e-3
    # Planted: the law under the mask, which is not weighed, times the same Z.
    masked = {text: np.prod([x[0] / x[1] for x in factors(text)]) for text in g}
    assert sum(masked.values()) == pytest.approx(1)
    assert p_value(out, {text: masked[text] * total() for text in g}) < 1e-6


def test_at_another_temperature():
    """Half of it; planted: the law of temperature 1."""
    out = searched(temperature=0.45)
    assert strays(out, total(heat=0.45)) < 3
    assert p_value(out, target(heat=0.45)) > 1e-3
    assert strays(out, total(heat=1.0)) > 3


def keeps_weights(key, weight, ended, threshold):
    source, _ = SOUND(key, weight, ended, threshold)
    return source, weight[source]


SOUND = smc.resampled


def no_mass(transform, state, logits, aux):
    return jnp.zeros(())


@pytest.mark.parametrize(
    ("module", "name", "fault"),
    [
        (smc, "resampled", keeps_weights),
        (transform_chain, "mass", no_mass),
    ],
)
def test_fault_weights(monkeypatch, module, name, fault):
    """Planted: weights that are kept after resampling; a mass that is left out."""
    monkeypatch.setattr(module, name, fault)
    with engines.apart():
        out = searched()
    assert strays(out, total()) > 3


@pytest.mark.long
@pytest.mark.parametrize("particles", [1, 4])
def test_without_resampling_particles_are_independent_samples(particles):
    """Those of `generate(n=)`, each with the masses along its text."""
    runs = RUNS // particles
    plain = decoding.generate(
        LM,
        [PROMPT] * runs,
        Method(transforms=(REGEX,)),
        temperature=HEAT,
        max_new_tokens=NEW,
        n=particles,
        seed=[*range(runs)],
    )
    rows = plain.tokens if particles > 1 else [[text] for text in plain.tokens]
    texts, weights = texts_of(searched(particles, threshold=0.0))
    for row, found, given in zip(rows, texts, weights):
        assert sorted(found) == sorted(row)
        for text, weight in zip(found, given):
            masses = np.prod([x[1] for x in factors(text)])
            assert weight == pytest.approx(masses, rel=1e-4)
            # Planted: the masses of the law before the temperature.
            early = np.prod([x[1] for x in factors(text, heat=1.0)])
            assert weight != pytest.approx(early, rel=1e-4)
    again = texts_of(searched(particles, threshold=1.0))[0]
    assert (again == texts) == (particles == 1)  # planted: they are drawn anew


def test_every_particle_has_a_place_of_its_own():
    """Also one that ended and is drawn twice; planted: each text once."""
    out = searched(threshold=1.0)
    texts, weights = texts_of(out)
    assert weights.shape == (RUNS, 4) and out.guarantee == "LOSSY"
    ended = lambda row: len(set(map(tuple, row))) < 4
    assert sum(map(ended, texts)) > 10
    assert strays(out, total()) < 3
    once = [len(set(map(tuple, row))) / 4 for row in texts]
    z = weights.mean(1) * once
    assert abs(z.mean() - total()) > 3 * z.std() / len(z) ** 0.5


def test_a_truncation_sees_the_masked_law():
    """top_k=3 behind the constraint: Z of the target that `mass` describes."""
    out = searched(transforms=(REGEX, Spec("transforms/top_k", k=3)))
    assert strays(out, total(k=3)) < 3 and p_value(out, target(k=3)) > 1e-3
    assert strays(out, total()) > 3  # planted: without the truncation


def test_a_text_that_the_limit_ends_counts_as_it_is():
    out = searched(max_new_tokens=[3] * (RUNS - 1) + [NEW])
    assert out.finish_reason[0].count("length") > 0
    z = texts_of(out)[1].mean(1)[:-1]
    assert abs(z.mean() - total(new=3)) < 3 * z.std() / len(z) ** 0.5
    assert abs(z.mean() - total()) > 3 * z.std() / len(z) ** 0.5  # planted


def test_refuses():
    for fields, words in (
        ({"particles": 0}, "particles=0"),
        ({"threshold": 1.5}, "threshold=1.5"),
        ({"temperature": 0.0}, "temperature=0 with search/smc"),
    ):
        with pytest.raises(MethodError, match=words):
            searched(**{"runs": 2, "n": 1, **fields})
