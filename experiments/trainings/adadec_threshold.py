"""The stage `adadec_threshold`: AdaDec's entropy threshold for a model.

He, Liu, Wang, Li, Wang, Peng, Zheng, *Towards Better Code Generation: Adaptive Decoding
with Uncertainty Guidance*, 2025, arXiv 2506.08980. The model reads held-out text; the
fit is training/objectives/predictors/entropy_threshold.py. At random places the token
that the search chooses is compared with the most probable one.

Cost: one forward pass of the text, and a search of six tokens at every pause compared.
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
from training.evaluation import language_model
from training.objectives.predictors import entropy_threshold
from training.runs import scaffold


def run(config: Any, folder: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Fit the threshold if none is stored, and tabulate what it separates."""
    common.provenance(folder)

    def compute() -> dict[str, Any]:
        target = scaffold.target(config, lm)
        tokens = read(config, target, folder.path)
        return entropy_threshold.measured(tokens, config.test, config.seed)

    trained = folder.make("parts", "threshold", compute)
    theta = trained["threshold"]

    def compare() -> dict[str, Any]:
        return compared(config, scaffold.target(config, lm), folder.path, theta)

    trained["choices"] = folder.make("parts", "choices", compare)
    tables = [_about(trained), _bins(trained), _choices(trained["choices"])]
    console.terminal().print(tables[0]["notes"][0], markup=False)
    return common.study(folder, trained=trained, tables=tables)


def texts(
    config: Any, lm: Any, folder: storage.Path
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the held-out documents int32[n], and which tokens are counted, bool[n].

    Each begins as a prompt does, with the tokenizer's BOS, or else behind the EOS that
    ended the one before. Where documents have loss masks, the tokens in the loss are
    counted.
    """
    data = scaffold.data_folder(config, folder)
    held = documents.read(lm, config.data.source, sources.SPLITS[1], data, folder)
    held = documents.begun(lm, held)
    start = lm.config.eos[: not lm.tokenizer.encode("")]
    for document, mask in zip(held.tokens, held.masks or itertools.repeat(None)):
        ids = np.concatenate([start, document]).astype(np.int32)
        learnt = np.ones(len(ids), bool)
        if mask is not None:
            learnt[len(start) :] = mask[: len(document)]
        yield ids, learnt


def read(config: Any, lm: Any, folder: storage.Path) -> entropy_threshold.Tokens:
    """Run the model over the first `data.tokens` held-out tokens, document by document.

    A pass holds `data.window` tokens, and past a document's first a quarter of them are
    context.
    """
    c = config.data

    @jax.jit
    def laws(params: Any, tokens: jax.Array) -> tuple:
        logits: Any = transformer.forward(lm.config, params, tokens[None, :-1]).logits
        return vocab.entropy(logits[0]), vocab.argmax(logits[0]) == tokens[1:]

    parts, room = [], int(c.tokens)
    for ids, learnt in texts(config, lm, folder):
        for tokens, place, counted in language_model.pieces(
            ids, c.window, c.window // 4
        ):
            counted &= learnt[np.minimum(place, len(ids) - 1)]
            parts.append([np.asarray(x)[counted] for x in laws(lm.params, tokens)])
            room -= int(counted.sum())
        if room <= 0:
            break
    entropy, best = (np.concatenate(x)[: max(c.tokens, 0)] for x in zip(*parts))
    return entropy_threshold.Tokens(entropy.astype(np.float64), best)


class Choices(NamedTuple):
    """What was chosen at the pauses among `places` places of held-out text."""

    places: int
    true: np.ndarray  # int32[n]: the text's own token
    greedy: np.ndarray  # int32[n]: the most probable token
    search: np.ndarray  # int32[n]: that of the search


def choices(config: Any, lm: Any, folder: storage.Path, theta: float) -> Choices:
    """Let the search choose a token at the pauses among random held-out places.

    The model reads the `evaluate.prompt_tokens` tokens before each place.

    Raises:
        DataError: too few documents are long enough.
    """
    c, size = config.evaluate, config.evaluate.prompt_tokens
    places = [
        (ids, i)
        for ids, learnt in texts(config, lm, folder)
        for i in size + np.flatnonzero(learnt[size:])
    ]
    if len(places) < c.prompts:
        raise DataError(
            f"evaluate.prompts={c.prompts}: {len(places)} held-out tokens come after "
            f"{size} others: use fewer, or more text"
        )
    order = np.random.default_rng(config.seed).permutation(len(places))
    rows = np.stack(
        [places[i][0][places[i][1] - size :][: size + 1] for i in order[: c.prompts]]
    )

    @jax.jit
    def last(params: Any, tokens: jax.Array) -> tuple:
        logits: Any = transformer.forward(lm.config, params, tokens).logits
        return vocab.entropy(logits[:, -1]), vocab.argmax(logits[:, -1])

    laws = [last(lm.params, part[:, :-1]) for part in batches(rows, c.batch)]
    entropy, best = (np.concatenate(x)[: len(rows)] for x in zip(*laws))
    at = entropy >= theta
    spec = decoding.Spec(
        "search/adadec", threshold=theta, beams=c.beams, lookahead=c.lookahead
    )
    method = decoding.Method(search=spec)
    chosen: list[int] = []
    for part in batches(rows[at], c.batch):
        asked = part[:, :-1].tolist()
        out = decoding.generate(lm, asked, method, max_new_tokens=1 + c.lookahead)
        chosen += [text[0] for text in out.tokens]
    search = np.asarray(chosen[: int(at.sum())], int)
    return Choices(len(rows), rows[at, -1], best[at], search)


def compared(
    config: Any, lm: Any, folder: storage.Path, theta: float
) -> dict[str, Any]:
    """Compare the search's choice with the best token (`choices`).

    Returns:
        `places`, and the `pauses` among them; at these the tokens that the search
        `changed`, the shares of true tokens of `greedy` and `search`, and the `margin`
        of their difference, 95 %.
    """
    places, true, best, own = choices(config, lm, folder, theta)
    gain = (own == true).astype(float) - (best == true)
    count = max(len(true), 1)
    return {
        "places": places,
        "pauses": len(true),
        "changed": float((own != best).sum() / count),
        "greedy": float((best == true).sum() / count),
        "search": float((own == true).sum() / count),
        "margin": float(1.96 * gain.std() / np.sqrt(count)) if len(true) else 0.0,
    }


def batches(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Cut rows into batches of one size; the last repeats its last row."""
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        yield np.concatenate([part, np.repeat(part[-1:], size - len(part), 0)])


def _choices(found: dict[str, Any]) -> dict[str, Any]:
    """Make the table of the choices at pauses."""
    gain = 100 * (found["search"] - found["greedy"])
    heads = ["places", "pauses", "changed", "greedy is right", "the search is right"]
    shares = (f"{100 * found[x]:.1f} %" for x in ("changed", "greedy", "search"))
    difference = f"{gain:+.1f} ± {100 * found['margin']:.1f} %"
    return {
        "title": "Choices at pauses",
        "heads": [*heads, "difference"],
        "lines": [[f"{found['places']}", f"{found['pauses']}", *shares, difference]],
        "notes": ["right: the true token of the text is chosen."],
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
            itertools.pairwise(entropy_threshold.EDGES), trained["bins"]
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
    tokens = entropy_threshold.Tokens(entropy, entropy < np.median(entropy))

    def decode(line: Any) -> Any:
        theta = entropy_threshold.threshold(line, entropy_threshold.cut(line, tokens))
        spec = decoding.Spec("search/adadec", threshold=theta)
        method = decoding.Method(search=spec)
        return decoding.generate(lm, [[1, 2, 3]], method, max_new_tokens=4)

    train = lambda: entropy_threshold.fit(tokens)
    yield Trial(
        "threshold",
        entropy_threshold.Line(0.0, 0.0),
        train,
        decode,
        folder,
        optimised=False,
    )


STAGE = Stage(
    run, "The entropy at which {} looks ahead", parts=("trained",), trials=trials
)
