"""The stage `adadec_threshold`: AdaDec's entropy threshold for a model.

He, Liu, Wang, Li, Wang, Peng, Zheng, *Towards Better Code Generation: Adaptive Decoding
with Uncertainty Guidance*, 2025, arXiv 2506.08980. The model reads held-out text. For
every token, H is the entropy of its law in nats, and y = 1 where the true token is the
most probable one:

    P(y = 1 | H) = sigmoid(w H + b),   least  w^2 / 2 + C sum_i s_i bce_i,   C = 1
    theta = (logit(cut) - b) / w,      cut of .01, .02 .. .99 with the best accuracy

s_i = n / (2 n of the class of i): scikit-learn's `class_weight="balanced"`, its default
L2 penalty, and its free intercept.

Deviations: the authors' code balances by leaving tokens of the larger class out, and
chooses the cut on the test tokens; here it is chosen on those of the fit, so that the
accuracy on the test tokens is of tokens that chose nothing.
Cost: one forward pass of the text; the fit itself takes milliseconds.
"""

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

import decoding
from decoding import vocab
from experiments import console
from experiments.run_folder import RunFolder
from experiments.stage import Stage, Trial
from experiments.studies import common
from models import storage, transformer
from models.errors import DataError
from training.data import documents, sources
from training.evaluation import calibration, language_model
from training.runs import scaffold

CUTS = np.arange(1, 100) / 100
PENALTY = 1.0  # C of scikit-learn's LogisticRegression
EDGES = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, np.inf)  # nats, of the report's rows


class Tokens(NamedTuple):
    """Tokens of a text under the model's laws."""

    entropy: np.ndarray  # float64[n], in nats
    best: np.ndarray  # bool[n]: the true token is the most probable one


class Line(NamedTuple):
    """Log-odds that the most probable token is the true one: weight H + bias."""

    weight: float
    bias: float


def run(config: Any, folder: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Fit the threshold if none is stored, and tabulate what it separates."""
    common.provenance(folder)

    def compute() -> dict[str, Any]:
        target = scaffold.target(config, lm)
        tokens = read(config, target, folder.path)
        return measured(tokens, config.test, config.seed)

    trained = folder.make("parts", "threshold", compute)
    tables = [_about(trained), _bins(trained)]
    console.terminal().print(tables[0]["notes"][0], markup=False)
    return common.study(folder, trained=trained, tables=tables)


def read(config: Any, lm: Any, folder: storage.Path) -> Tokens:
    """Run the model over the first `data.tokens` held-out tokens, document by document.

    Each document begins as a prompt does, with the tokenizer's BOS, or else behind the
    EOS that ended the one before. Where documents have loss masks, the tokens in the
    loss are counted. A pass holds `data.window` tokens, and past a document's first a
    quarter of them are context.
    """
    c = config.data
    data = scaffold.data_folder(config, folder)
    held = documents.read(lm, c.source, sources.SPLITS[1], data, folder)
    held = documents.begun(lm, held)
    start = lm.config.eos[: not lm.tokenizer.encode("")]

    @jax.jit
    def laws(params: Any, tokens: jax.Array) -> tuple:
        logits: Any = transformer.forward(lm.config, params, tokens[None, :-1]).logits
        return vocab.entropy(logits[0]), vocab.argmax(logits[0]) == tokens[1:]

    parts, room = [], int(c.tokens)
    for document, mask in zip(held.tokens, held.masks or itertools.repeat(None)):
        ids = np.concatenate([start, document]).astype(np.int32)
        learnt = np.ones(len(ids), bool)
        if mask is not None:
            learnt[len(start) :] = mask[: len(document)]
        for tokens, place, counted in language_model.pieces(
            ids, c.window, c.window // 4
        ):
            counted &= learnt[np.minimum(place, len(ids) - 1)]
            parts.append([np.asarray(x)[counted] for x in laws(lm.params, tokens)])
            room -= int(counted.sum())
        if room <= 0:
            break
    entropy, best = (np.concatenate(x)[: max(c.tokens, 0)] for x in zip(*parts))
    return Tokens(entropy.astype(np.float64), best)


def fit(tokens: Tokens, steps: int = 100) -> Line:
    """Fit the regression by Newton's method, from 0.

    Raises:
        DataError: all tokens are of one class, or the entropy does not fall where the
            most probable token is the true one.
    """
    x = np.stack([tokens.entropy, np.ones(len(tokens.entropy))], 1)
    sign = np.where(tokens.best, 1.0, -1.0)
    counts = np.array([np.sum(~tokens.best), np.sum(tokens.best)])
    if not counts.all():
        raise DataError(
            f"the most probable token is the true one at {counts[1]} of {counts.sum()} "
            "tokens: use a text with both kinds, or more data.tokens"
        )
    share = PENALTY * counts.sum() / (2 * counts[tokens.best.astype(int)])
    ridge = np.diag([1.0, 0.0])

    def loss(theta: np.ndarray) -> float:
        return theta @ ridge @ theta / 2 + share @ np.logaddexp(0, -sign * (x @ theta))

    theta = np.zeros(2)
    for _ in range(steps):
        wrong = 1 / (1 + np.exp(np.minimum(sign * (x @ theta), 500)))
        slope = ridge @ theta - x.T @ (share * sign * wrong)
        curve = ridge + (x.T * (share * wrong * (1 - wrong))) @ x
        step = np.linalg.solve(curve, slope)
        while loss(theta - step) > loss(theta) and np.abs(step).max() > 1e-12:
            step = step / 2
        theta = theta - step
        if np.abs(step).max() < 1e-10:
            break
    if not theta[0] < 0:
        raise DataError(
            f"weight={theta[0]:.4g}: the entropy is not lower where the most probable "
            "token is the true one, so no threshold separates them: use another text, "
            "or more data.tokens"
        )
    return Line(float(theta[0]), float(theta[1]))


def cut(line: Line, tokens: Tokens) -> float:
    """Return the cut of the best accuracy; of equal ones the lowest, with most sure."""
    odds = line.weight * tokens.entropy + line.bias
    return float(max(CUTS, key=lambda c: np.mean((odds >= logit(c)) == tokens.best)))


def threshold(line: Line, chance: float) -> float:
    """Return the entropy in nats at which P(y = 1) is `chance`."""
    return (logit(chance) - line.bias) / line.weight


def logit(chance: float) -> float:
    """Return the log-odds of a probability."""
    return float(np.log(chance) - np.log1p(-chance))


def measured(tokens: Tokens, test: float, seed: int) -> dict[str, Any]:
    """Fit on one part of the tokens, and measure on the other.

    Args:
        tokens: all of them.
        test: share of the part for the measurement, rounded up.
        seed: of the division.

    Returns:
        `threshold` and the fit; on the test tokens `accuracy`, `always` (that of a rule
        that is always sure) and the `margin` of their difference, 95 %; `pauses`, the
        share of tokens at H >= threshold; `wrong`, the share of these whose true token
        is another; `caught`, the share of such tokens that are among the pauses; and
        `bins`, all tokens by entropy.

    Raises:
        DataError: see `fit`; or a part has no tokens.
    """
    n = len(tokens.entropy)
    size = int(np.ceil(test * n))
    if not 0 < size < n:
        raise DataError(
            f"test={test} of {n} tokens: a part is empty: use a share between 0 and 1, "
            "or more data.tokens"
        )
    order = np.random.default_rng(seed).permutation(n)
    own, held = (
        Tokens(*(x[at] for x in tokens)) for at in (order[size:], order[:size])
    )
    line = fit(own)
    chance = cut(line, own)
    theta = threshold(line, chance)
    sure = held.entropy < theta
    # 1, 0 or -1 a token: what the rule is right about and "always best" is not.
    gain = (sure == held.best).astype(float) - held.best
    weights = np.ones(size)
    return {
        "threshold": theta,
        **line._asdict(),
        "cut": chance,
        "tokens": [n - size, size],
        "accuracy": float(np.mean(sure == held.best)),
        "always": float(np.mean(held.best)),
        "margin": float(1.96 * gain.std() / np.sqrt(size)),
        "pauses": float(np.mean(~sure)),
        "wrong": float(np.mean(~held.best[~sure])) if not sure.all() else 0.0,
        "caught": float(np.mean(~sure[~held.best])) if not held.best.all() else 0.0,
        "auc": calibration.auc(-held.entropy, held.best.astype(float), weights),
        "bins": [
            [int(inside.sum()), float(tokens.best[inside].mean())]
            if inside.any()
            else [0, 0.0]
            for low, high in itertools.pairwise(EDGES)
            for inside in [(low <= tokens.entropy) & (tokens.entropy < high)]
        ],
    }


def _about(trained: dict[str, Any]) -> dict[str, Any]:
    """Make the table of the threshold, its use in the first note."""
    theta = trained["threshold"]
    fitted, held = trained["tokens"]
    gain = 100 * (trained["accuracy"] - trained["always"])
    percent = (f"{100 * trained[x]:.1f} %" for x in ("accuracy", "always"))
    rest = (f"{100 * trained[x]:.1f} %" for x in ("pauses", "wrong", "caught"))
    return {
        "title": "Threshold",
        "heads": [
            "threshold",
            "w",
            "b",
            "cut",
            "tokens fitted",
            "tested",
            "right",
            "always sure",
            "difference",
            "AUC",
            "pauses",
            "best is wrong there",
            "of all such",
        ],
        "lines": [
            [
                f"{theta:.3f}",
                f"{trained['weight']:.3f}",
                f"{trained['bias']:.3f}",
                f"{trained['cut']:.2f}",
                f"{fitted}",
                f"{held}",
                *percent,
                f"{gain:+.2f} ± {100 * trained['margin']:.2f} %",
                f"{trained['auc']:.3f}",
                *rest,
            ]
        ],
        "notes": [
            f'Use: Spec("search/adadec", threshold={theta:.3f}).',
            "On the test tokens. right: of the rule that the best token is the true "
            "one below the threshold (nats) and another from it on; always sure: of "
            "the rule that it always is. pauses: tokens from the threshold on, where "
            "the search looks ahead. of all such: the share of the tokens whose best "
            "is wrong that are among the pauses.",
        ],
    }


def _bins(trained: dict[str, Any]) -> dict[str, Any]:
    """Make the table of all tokens by their entropy."""
    total = sum(count for count, _ in trained["bins"])
    lines = [
        [f"{low:g} to {high:g}", f"{100 * count / total:.1f} %", f"{100 * right:.1f} %"]
        for (low, high), (count, right) in zip(
            itertools.pairwise(EDGES), trained["bins"]
        )
        if count
    ]
    heads = ["entropy, nats", "tokens", "the best is the true one"]
    return {"title": "Tokens by entropy", "heads": heads, "lines": lines, "notes": []}


def trials(
    config: Any, folder: pathlib.Path, lm: Any, draft: Any = None
) -> Iterator[Trial]:
    """Read the text, and prepare the fit, which has no optimiser.

    A random model's entropy says nothing of what comes, so that the best token is set
    to be the true one where the entropy is below the median.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entropy = read(config, lm, folder).entropy
    tokens = Tokens(entropy, entropy < np.median(entropy))

    def decode(line: Any) -> Any:
        theta = threshold(line, cut(line, tokens))
        spec = decoding.Spec("search/adadec", threshold=theta)
        method = decoding.Method(search=spec)
        return decoding.generate(lm, [[1, 2, 3]], method, max_new_tokens=4)

    train = lambda: fit(tokens)
    yield Trial("threshold", Line(0.0, 0.0), train, decode, folder, optimised=False)


STAGE = Stage(
    run, "The entropy at which {} looks ahead", parts=("trained",), trials=trials
)
