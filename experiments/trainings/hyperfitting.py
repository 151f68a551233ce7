"""The stage `hyperfitting`: a model trained by heart, and its texts beside others.

The model before training writes the texts of every arm of the config; the hyperfitted
model writes greedily. All arms have the same held-out prompts, so that differences are
taken prompt by prompt. Every text has the same length. Each arm is a piece of the
run's folder.
"""

import functools
from typing import Any

import numpy as np

import decoding
import models
from decoding import Spec
from decoding.loops import stats
from experiments import console
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common, sampler_texts
from experiments.studies.search_tables import Row, compared, table
from models.distributed import processes
from models.errors import ConfigError
from training.evaluation import diversity
from training.runs import hyperfitting_run, scaffold

GREEDY, TOP_P, OWN = "greedy", "top_p", "hyperfitted"
LEARNED = 0.1  # nats a token: a loss on the samples below it counts as near zero


def run(config: Any, folder: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Train if no figures are stored, write the missing texts, and tabulate them."""
    missing = {GREEDY, TOP_P} - {*config.arms}
    if missing or OWN in config.arms:
        raise ConfigError(
            f"config.arms has {[*config.arms]}: it needs {GREEDY!r} and {TOP_P!r}, and "
            f"{OWN!r} is the trained model's"
        )
    common.provenance(folder)
    if not processes.agreed((folder.path / "figures.json").exists()):
        hyperfitting_run.run(config, folder.path, lm)
    trained = scaffold.read_figures(folder.path)
    training = hyperfitting_run.Training(config, folder.path, lm)
    own = models.load(str(config.export or folder.path / "export"))
    rows, arms = {}, {**config.arms, OWN: {}}
    with console.bar(len(arms), "arm") as bar:
        for name, arm in arms.items():
            bar.doing(name)
            writer = own if name == OWN else training.lm
            work = functools.partial(written, training, writer, arm)
            rows[name] = folder.make("rows", name, work)
            bar.done(name)
    tables = [
        directions(rows, trained),
        table_of_texts(rows, config),
        table_of_models(trained),
        table_of_training(trained),
    ]
    return common.study(folder, trained={"figures": trained, **rows}, tables=tables)


def written(training: hyperfitting_run.Training, writer: Any, arm: Any) -> Row:
    """Write the texts of one arm, and measure them.

    Args:
        training: gives the prompts, the samples, and the model before training.
        writer: the model.
        arm: `transforms`, dicts of a name and arguments, and a `temperature`; at one
            above 0 a prompt has a text for each of `evaluate.seeds`.

    Returns:
        Of every prompt, the mean over its texts: `ttr`, `grams`, `loops`, `nats` under
        the model before training, `cited`; and the `tokens` of its texts.
    """
    e, fields = training.config.evaluate, dict(arm)
    temperature = fields.get("temperature", 0.0)
    specs = [Spec(**dict(part)) for part in fields.get("transforms", ())]
    repeats: list[list[Row]] = []
    for seed in range(e.seeds if temperature else 1):
        out = decoding.generate(
            writer,
            training.prompts,
            transforms=(hyperfitting_run.endless(training.config), *specs),
            temperature=temperature,
            max_new_tokens=e.new_tokens,
            seed=training.config.seed + seed,
        )
        repeats.append(measured(training, out))
    together = list(zip(*repeats))
    figures = {
        name: [float(np.mean([row[name] for row in rows])) for rows in together]
        for name in COLUMNS
    }
    return {**figures, "tokens": [[row["tokens"] for row in x] for x in together]}


def measured(training: hyperfitting_run.Training, out: Any) -> list[Row]:
    """Measure the texts of one call of `generate`, in the prompts' order."""
    e, prompts = training.config.evaluate, training.prompts
    texts = [
        sampler_texts.Text(prompt, tokens, logprobs, 1.0, None)
        for prompt, tokens, logprobs in zip(prompts, out.tokens, out.logprobs)
    ]
    size = e.prompt_tokens + e.new_tokens
    nats = sampler_texts.nats(training.lm, texts, size, min(8, len(texts)))
    return [
        {
            "ttr": diversity.type_token_ratio(text.tokens, e.last),
            "grams": sampler_texts.repeated(text) or 0.0,
            "loops": stats.loop_share(text.tokens),
            "nats": loss,
            "cited": diversity.longest_citation(text.tokens, training.samples),
            "tokens": text.tokens,
        }
        for text, loss in zip(texts, nats)
    ]


COLUMNS = {
    "ttr": "type-token ratio",
    "grams": "repeated 4-grams",
    "loops": "loop share",
    "nats": "nats a token",
    "cited": "longest citation",
}


def cell(values: list[float], digits: int = 3) -> str:
    """Write a mean with its standard error."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.{digits}f} ± {error:.{digits}f}"


def directions(rows: dict[str, Row], trained: dict[str, Any]) -> dict[str, Any]:
    """Compare the hyperfitted model with the one before, and with top-p sampling."""
    of = lambda arm, name: np.asarray(rows[arm][name])
    held = lambda when, name: np.asarray(trained[when][name])
    lines = [
        compared(f"{COLUMNS['ttr']}: {OWN} − {arm}", of(OWN, "ttr"), of(arm, "ttr"))
        for arm in (GREEDY, TOP_P)
    ]
    lines += [
        compared(f"{COLUMNS[name]}: {GREEDY} − {OWN}", of(GREEDY, name), of(OWN, name))
        for name in ("grams", "loops")
    ]
    lines += [
        compared(
            "held-out nats: after − before",
            held("after", "nats"),
            held("before", "nats"),
        ),
        compared(
            "held-out entropy: before − after",
            held("before", "entropy"),
            held("after", "entropy"),
        ),
    ]
    loss = trained["after"]["loss"]
    near = "near zero" if loss < LEARNED else f"not near zero (below {LEARNED})"
    notes = (
        "difference: with its 95 % bootstrap interval over prompts, or over held-out "
        "samples, in pairs. holds: *yes* if the interval is above 0, *no* if below, "
        "else *even*.",
        f"The loss on the training samples ended at {loss:.3f} nats, {near}.",
    )
    return table("Directions", ("claim", "difference", "holds"), lines, *notes)


def table_of_texts(rows: dict[str, Row], config: Any) -> dict[str, Any]:
    """Make a line for every arm."""
    lines = [
        [name, *(cell(row[x], 1 if x == "cited" else 3) for x in COLUMNS)]
        for name, row in rows.items()
    ]
    e = config.evaluate
    notes = (
        f"{e.prompts} held-out prompts of {e.prompt_tokens} tokens, continued by "
        f"{e.new_tokens} each, without EOS. ±: standard error over prompts. {OWN}: "
        "greedy; the others are of the model before training.",
        f"Type-token ratio: of a text's last {e.last} tokens. Repeated 4-grams: those "
        "that the text had before. Loop share: of a text inside one exact repetition. "
        "Nats: of the text, under the model before training. Longest citation: tokens "
        "in a row that lie in one training sample.",
    )
    return table("Texts", ("arm", *COLUMNS.values()), lines, *notes)


def table_of_models(trained: dict[str, Any]) -> dict[str, Any]:
    """Make a line for the model before training and one for it after."""
    lines = []
    for name in ("before", "after"):
        row = trained[name]
        perplexity = f"{np.exp(np.mean(row['nats'])):.1f}"
        figures = [cell(row["nats"]), perplexity, cell(row["entropy"])]
        lines.append([name, f"{row['loss']:.3f}", *figures, cell(row["hits"])])
    heads = ("training", "nats of the samples", "held-out nats", "perplexity")
    note = (
        "Held-out: samples of the same size, of documents that were not trained on. "
        "Entropy: of the laws, nats. Hits: the likeliest token is the text's."
    )
    return table("Loss", (*heads, "entropy", "hits"), lines, note)


def table_of_training(trained: dict[str, Any]) -> dict[str, Any]:
    """Make a line for every evaluation of the training."""
    names = ("nats", "entropy", "hits", "ttr", "loops")
    lines = [
        [f"{row['step']:.0f}", *(f"{row[name]:.3f}" for name in names)]
        for row in trained["curve"]
    ]
    heads = ("step", "held-out nats", "entropy", "hits", "type-token ratio", "loops")
    note = f"{trained['steps']} steps, {trained['seconds'] / 60:.0f} minutes."
    return table("Training", heads, lines, note)


STAGE = Stage(run, "Hyperfitting of {}", parts=("trained",))
