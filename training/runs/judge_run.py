"""Judge decoding from a config: mismatches labelled, a judge fitted, and decoded with.

Two baselines decode beside the judge: a judge of shuffled labels, and the training-free
rule by divergence.
"""

import json
import os
from typing import Any

import jax.numpy as jnp
import numpy as np
from absl import logging

import decoding
import models
from models import storage
from models.distributed import processes
from models.heads.formats import native
from models.predictors import judge_predictor
from models.text import hf_tokenizer
from training.data import documents, sources
from training.evaluation import calibration, lossy_quality
from training.objectives.predictors import judge
from training.runs import scaffold


def run(
    config: Any, workdir: str | os.PathLike, lm: Any = None, draft: Any = None
) -> dict[str, Any]:
    """Label, train, judge and decode; resumable.

    `workdir/export` holds the judge, `workdir/figures.json` the figures.

    Args:
        config: the recipe.
        workdir: the folder of the run.
        lm: the loaded target; None loads `config.model`.
        draft: the loaded draft; None loads `config.draft`.

    Returns:
        The figures.
    """
    workdir, lm = storage.path(workdir), scaffold.target(config, lm)
    draft = models.load(config.draft) if draft is None else draft
    hf_tokenizer.check_same(
        f"config.draft={config.draft!r}", draft.tokenizer, lm.tokenizer
    )
    c = config.data
    states, good = [], []
    both = scaffold.both_splits(config, lm, workdir)
    new = max(c.new_tokens, 1 + c.horizon, config.evaluate.new_tokens)
    prompts = [
        documents.requests(lm, texts, count, c.prompt_tokens, new, config.seed)
        for texts, count in zip(both, (c.prompts, c.held))
    ]
    for split, requests in zip(sources.SPLITS, prompts):
        file = workdir / f"cases-{split}.json"
        cases = _labelled(config, file, lm, draft, requests)
        states.append(judge.states(lm, [case.tokens for case in cases], c.batch))
        good.append([case.good for case in cases])
    params = judge.fit(states[0], good[0], config.reject, config.decay)
    predictions = np.asarray(
        judge_predictor.probability(params, jnp.asarray(states[1]))
    )
    share = float(np.mean(good[1]))
    e = config.evaluate
    trained = {"draft": draft, "judge": params}
    # A baseline without information: as lenient on average, at random mismatches.
    labels = np.random.default_rng(config.seed).permutation(good[0]).tolist()
    by_chance = judge.fit(states[0], labels, config.reject, config.decay)
    shuffled = {"draft": draft, "judge": by_chance}
    results = lossy_quality.compared(
        lm,
        prompts[1][: e.prompts],
        {
            name: (method, shuffled if name.startswith("lot") else trained)
            for name, method in rules(e).items()
        },
        e.new_tokens,
        e.temperature,
    )
    figures: dict[str, Any] = {
        "cases": [len(states[0]), len(states[1])],
        "good": share,
        "accuracy": judge.accuracy(params, states[1], good[1]),
        "guess": max(share, 1 - share),
        "calibration": calibration.bins(predictions, good[1])._asdict(),
        "decoding": {
            name: {k: v for k, v in row.items() if k != "exits"}
            for name, row in results.items()
        },
    }
    about = {
        "head": "judge",
        "target": config.model,
        "draft": config.draft,
        "fingerprint": native.fingerprint(lm.params),
        "accuracy": figures["accuracy"],
    }
    scaffold.write_export(config, workdir, lambda at: native.save(at, params, about))
    scaffold.write_figures(workdir, figures)
    return figures


def rules(c: Any) -> dict[str, decoding.Method]:
    """Build the methods: the judge, one of shuffled labels (lot), and the training-free
    rule at every threshold, and exact verification.
    """
    drafter = decoding.Spec("drafters/model")
    chain = decoding.Spec("topologies/chain", length=c.length)
    methods = {"exact": decoding.Method(drafter, topology=chain)}
    for name, verifier, thresholds in (
        ("judge", "judge", c.thresholds),
        ("lot", "judge", c.thresholds),
        ("kl_threshold", "kl_threshold", c.divergences),
    ):
        for threshold in thresholds:
            spec = decoding.Spec(f"verifiers/{verifier}", threshold=float(threshold))
            methods[f"{name} {threshold:g}"] = decoding.Method(drafter, spec, chain)
    return methods


def _labelled(config, file, lm, draft, prompts) -> list[judge.Case]:
    """Return the cases of `prompts`, from `file` if it exists."""
    c = config.data
    if not processes.agreed(file.exists()):
        cases = judge.cases(
            lm,
            draft,
            prompts,
            c.new_tokens,
            c.horizon,
            c.most,
            config.seed,
            batch=c.batch,
        )
        processes.written(lambda: storage.write(file, json.dumps(cases)))
        logging.info("%s: %d mismatches", file.name, len(cases))
    rows = processes.told(lambda: json.loads(file.read_text()))
    return [judge.Case(*row) for row in rows]
