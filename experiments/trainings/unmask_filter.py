"""The stage `unmask_filter`: a filter of final guesses beside confidence thresholds."""

import pathlib
from collections.abc import Iterator
from typing import Any

from experiments.run_folder import RunFolder
from experiments.stage import Stage, Trial
from experiments.studies import common
from models.distributed import processes
from training.data import documents
from training.objectives.predictors import learn2pd
from training.runs import scaffold, unmask_filter_run


def run(config: Any, folder: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Train a filter if none is stored, and tabulate its figures."""
    if not processes.agreed((folder.path / "figures.json").exists()):
        unmask_filter_run.run(config, folder.path, lm)
    trained = scaffold.read_figures(folder.path)
    common.provenance(folder)
    return common.study(folder, trained=trained, tables=tables(trained))


def tables(trained: dict[str, Any]) -> list[dict[str, Any]]:
    """Tabulate the filter, and the texts of every method."""
    per_cent = lambda share: f"{100 * share:.1f} %"
    train, held = trained["cases"]
    judged = [
        [threshold, per_cent(row["recall"]), per_cent(row["wrong"])]
        for threshold, row in trained["judged"].items()
    ]
    texts = [
        [
            name,
            f"{row['tokens_per_call']:.2f}",
            per_cent(row["same"]),
            per_cent(row["shared"]),
        ]
        for name, row in trained["decoding"].items()
    ]
    return [
        {
            "title": "Filter",
            "heads": ["threshold", "final guesses taken", "wrong among the taken"],
            "lines": judged,
            "notes": [
                f"{train} forwards for training, {held} held out; "
                f"{per_cent(trained['final'])} of the open guesses are final. Loss "
                f"{trained['held_loss']:.3f} nats a guess, held out."
            ],
        },
        {
            "title": "Texts",
            "heads": ["", "tokens a call", "texts as one a step", "before they part"],
            "lines": texts,
            "notes": [
                f"An oracle that knows the text: {trained['oracle']:.2f} tokens a "
                "call, the bound of every filter. Blocks of 32, no cache."
            ],
        },
    ]


def trials(config: Any, folder: pathlib.Path, lm: Any, draft: Any) -> Iterator[Trial]:
    """Log cases, and prepare the fit, which writes no metrics."""
    c = config.data
    texts, _ = scaffold.both_splits(config, lm, folder)
    sizes = (c.prompts, c.prompt_tokens, c.new_tokens, config.seed)
    prompts = documents.requests(lm, texts, *sizes)
    logged = learn2pd.cases(lm, prompts, c.new_tokens, config.block, c.batch)
    # What random models write may be all final or not at all: every other one is.
    half = logged._replace(final=logged.open & (logged.conf.argsort(1) % 2 > 0))
    first = unmask_filter_run.first(config)
    train = lambda: learn2pd.fit(first, half, config.rate, 2)[0]
    decode = lambda params: unmask_filter_run.compared(config, lm, prompts, params)
    yield Trial("filter", first, train, decode, folder, optimised=False)


STAGE = Stage(run, "A filter of final guesses for {}", trials=trials)
