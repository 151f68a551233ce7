"""SpecDec++ from a config: an acceptance head for a pair of models, and its measures.

The head's chains are decoded from held-out prompts, and the calls of both models
counted. Two baselines decode the same prompts: chains of each fixed length, and chains
that end where the draft's confidence is low. The verifier is `verifiers/rejection`,
whose acceptance the head predicts.
"""

import os
from typing import Any

import jax
import numpy as np

import decoding
import models
from decoding import Method
from models import storage
from models.distributed import sharding
from models.heads.formats import native
from models.predictors import acceptance_predictor
from models.text import hf_tokenizer
from training.data import documents, text_corpus
from training.evaluation import calibration
from training.loop import fit
from training.objectives.predictors import specdec_pp
from training.runs import draft_model_run, scaffold


class Training:
    """One pair of models with the data and labels of a config."""

    def __init__(
        self, config: Any, workdir: str | os.PathLike, lm: Any = None, own: Any = None
    ):
        self.config, self.workdir = config, storage.path(workdir)
        self.lm = lm = scaffold.target(config, lm)
        self.plan = sharding.training(lm.model.plan, config.rules)
        self.draft = models.load(config.draft) if own is None else own
        hf_tokenizer.check_same(
            f"config.draft={config.draft!r}", self.draft.tokenizer, self.lm.tokenizer
        )
        self.documents = scaffold.both_splits(config, lm, self.workdir)
        self.written = draft_model_run.write(
            self.lm, self.documents, config.distill, self.workdir / "written", 0
        )
        o = config.objective
        self.labels = specdec_pp.drafts(
            self.lm.model, self.draft.model, o.mix, o.temperature, config.seed, o.part
        )
        frozen = {"target": self.lm.params, "draft": self.draft.params}
        self.frozen = sharding.placed(lm.model.plan, frozen)

    def first(self) -> Any:
        """Draw the params of an untrained head."""
        key = jax.random.key(self.config.seed)
        return acceptance_predictor.init(key, self.draft.config.d_model)

    def fit(self) -> fit.Result:
        """Train, or resume; checkpoints hold the head alone."""
        c, t, o = self.config.data, self.config.train, self.config.objective
        train = documents.of_texts(self.written.train)
        stream = scaffold.stream(self.config, self.lm, train, c.tokens)
        return fit.fit(
            self.first(),
            specdec_pp.objective(o.reject, o.blocks),
            scaffold.optimizer(t, stream.steps),
            text_corpus.DataIterator(stream, *sharding.share(self.plan)),
            self.workdir,
            fit.FitConfig.from_recipe(t, stream.steps),
            plan=self.plan,
            target=self.labels,
            frozen=self.frozen,
        )

    def judged(self, params: Any) -> tuple[np.ndarray, np.ndarray]:
        """Predict the acceptance of drafts on held-out text, beside the true one.

        Returns float32[n] twice: the head's predictions, and min(1, p / q).
        """
        o = self.config.objective

        @jax.jit
        def one(params: Any, frozen: Any, batch: Any) -> Any:
            drafted = self.labels(frozen, batch)
            predicted = acceptance_predictor.probability(
                params, drafted.states, o.blocks
            )
            return predicted, drafted.accepted, drafted.weights

        columns: list[list[np.ndarray]] = [[], []]
        for number, batch in enumerate(documents.padded(self.written.held)):
            batch["row"] = np.asarray([-1 - number], np.int32)  # rows of no training
            predicted, accepted, weight = sharding.fetch(
                one(params, self.frozen, batch)
            )
            columns[0].append(predicted[weight > 0])
            columns[1].append(accepted[weight > 0])
        return np.concatenate(columns[0]), np.concatenate(columns[1])

    def prompts(self) -> list[list[int]]:
        """Return the beginnings of held-out documents."""
        return scaffold.held_out_prompts(self.config, self.lm, self.documents[1])

    def calls(self, params: Any, topology: decoding.Spec) -> dict[str, list[int]]:
        """Decode the prompts; count new tokens and both models' calls, by prompt."""
        c = self.config.evaluate
        method = Method(
            decoding.Spec("drafters/model"),
            decoding.Spec("verifiers/rejection"),
            topology,
        )
        out = decoding.generate(
            self.lm,
            self.prompts(),
            method,
            max_new_tokens=c.new_tokens,
            temperature=self.config.objective.temperature,
            drafts={"draft": self.draft, "acceptance": params},
            width="paper",
        )
        return {
            "tokens": out.stats.new_tokens.tolist(),
            "target": out.stats.target_calls.tolist(),
            "draft": out.stats.row_draft_calls.tolist(),
        }

    def priced(self, params: Any) -> dict[str, dict[str, list[int]]]:
        """Count the calls of every fixed length, confidence and threshold."""
        c, blocks = self.config.evaluate, self.config.objective.blocks
        counts = {}
        for length in c.lengths:
            spec = decoding.Spec("topologies/chain", length=length)
            counts[f"fixed {length}"] = self.calls(params, spec)
        for threshold in c.confidences:
            spec = decoding.Spec(
                "topologies/confidence_stop",
                length=c.most,
                threshold=float(threshold),
            )
            counts[f"confidence {threshold:g}"] = self.calls(params, spec)
        for threshold in c.thresholds:
            spec = decoding.Spec(
                "topologies/specdec_pp",
                length=c.most,
                least=c.least,
                threshold=float(threshold),
                blocks=blocks,
            )
            counts[f"h {threshold:g}"] = self.calls(params, spec)
        return counts


def unweighted(said: np.ndarray, reject: float) -> np.ndarray:
    """Return the acceptance a whose weighted loss is least at prediction f = `said`.

    f = a / (a + w (1 - a)), solved for a; w is `reject`.
    """
    return reject * said / (1.0 - said + reject * said)


def run(
    config: Any, workdir: str | os.PathLike, lm: Any = None, own: Any = None
) -> dict[str, Any]:
    """Train, calibrate, decode and export; resumable.

    Args:
        config: the recipe.
        workdir: the folder of the run.
        lm: the loaded target; None loads `config.model`.
        own: the loaded draft; None loads `config.draft`.

    Returns:
        The figures.
    """
    training = Training(config, workdir, lm, own)
    training.prompts()  # raises before any training where there are too few
    result = training.fit()
    params = sharding.fetch(result.params)
    predicted, accepted = training.judged(params)
    reject = config.objective.reject
    raw = calibration.bins(predicted, accepted)
    true = calibration.bins(unweighted(predicted, reject), accepted)
    figures: dict[str, Any] = {
        "parameters": scaffold.num_params(params),
        **scaffold.effort(config, result),
        "accepted": float(accepted.mean()),
        "calibration": {"raw": raw._asdict(), "unweighted": true._asdict()},
        "calls": training.priced(params),
    }
    about = {
        "head": "acceptance",
        "target": config.model,
        "draft": config.draft,
        "fingerprint": native.fingerprint(training.lm.params),
        "blocks": config.objective.blocks,
        "reject": reject,
        "auc": raw.auc,
    }
    save = lambda folder: native.save(folder, params, about)
    scaffold.write_export(config, training.workdir, save)
    scaffold.write_figures(training.workdir, figures)
    return figures
