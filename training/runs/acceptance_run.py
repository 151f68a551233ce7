"""SpecDec++ from a config: a head trained for a pair of models, calibrated, priced.

Its chains, chains of every fixed length and chains that end where the draft is not sure
are decoded from the same prompts, and the calls of both models counted. The verifier is
`verifiers/rejection`, whose acceptance the head learns.
"""

import pathlib
from typing import Any

import jax
import numpy as np

import decoding
import models
from decoding import Method
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
    """One pair of models: what a config says, resolved."""

    def __init__(
        self, config: Any, workdir: str | pathlib.Path, lm: Any = None, own: Any = None
    ):
        self.config, self.workdir = config, pathlib.Path(workdir)
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

    def fit(self) -> fit.Result:
        """Train, or resume; checkpoints hold the head alone."""
        c, t, o = self.config.data, self.config.train, self.config.objective
        train = documents.of_texts(self.written.train)
        stream = scaffold.stream(self.config, self.lm, train, c.tokens)
        key = jax.random.key(self.config.seed)
        return fit.fit(
            acceptance_predictor.init(key, self.draft.config.d_model),
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
        """What the head says of drafts on held-out text, and their acceptance."""
        o = self.config.objective

        @jax.jit
        def one(params: Any, frozen: Any, batch: Any) -> Any:
            found = self.labels(frozen, batch)
            said = acceptance_predictor.probability(params, found.states, o.blocks)
            return said, found.accepted, found.weights

        kept: list[list[np.ndarray]] = [[], []]
        for number, batch in enumerate(documents.padded(self.written.held)):
            batch["row"] = np.asarray([-1 - number], np.int32)  # rows of no training
            said, came, weight = sharding.fetch(one(params, self.frozen, batch))
            kept[0].append(said[weight > 0])
            kept[1].append(came[weight > 0])
        return np.concatenate(kept[0]), np.concatenate(kept[1])

    def prompts(self) -> list[list[int]]:
        """The beginnings of held-out documents."""
        return scaffold.held_out_prompts(self.config, self.lm, self.documents[1])

    def calls(self, params: Any, topology: decoding.Spec) -> dict[str, list[int]]:
        """New tokens of each prompt, and calls of both models, of the decode loop."""
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
        )
        return {
            "tokens": out.stats.new_tokens.tolist(),
            "target": out.stats.target_calls.tolist(),
            "draft": out.stats.row_draft_calls.tolist(),
        }

    def priced(self, params: Any) -> dict[str, dict[str, list[int]]]:
        """The calls of every fixed length and of every threshold, and confidence's."""
        c, blocks = self.config.evaluate, self.config.objective.blocks
        found = {}
        for length in c.lengths:
            spec = decoding.Spec("topologies/chain", length=length)
            found[f"fixed {length}"] = self.calls(params, spec)
        for threshold in c.confidences:
            spec = decoding.Spec(
                "topologies/confidence_stop",
                length=c.most,
                threshold=float(threshold),
            )
            found[f"confidence {threshold:g}"] = self.calls(params, spec)
        for threshold in c.thresholds:
            spec = decoding.Spec(
                "topologies/specdec_pp",
                length=c.most,
                least=c.least,
                threshold=float(threshold),
                blocks=blocks,
            )
            found[f"h {threshold:g}"] = self.calls(params, spec)
        return found


def unweighted(said: np.ndarray, reject: float) -> np.ndarray:
    """The acceptance a for which the weighted loss is least at `said`.

    said = a / (a + w (1 - a)), solved for a.
    """
    return reject * said / (1.0 - said + reject * said)


def run(
    config: Any, workdir: str | pathlib.Path, lm: Any = None, own: Any = None
) -> dict[str, Any]:
    """Train, calibrate, decode and export; resumes where it stopped."""
    training = Training(config, workdir, lm, own)
    training.prompts()  # too few are an error before anything is trained
    result = training.fit()
    params = sharding.fetch(result.params)
    said, came = training.judged(params)
    reject = config.objective.reject
    raw = calibration.bins(said, came)
    true = calibration.bins(unweighted(said, reject), came)
    figures: dict[str, Any] = {
        "parameters": scaffold.num_params(params),
        **scaffold.effort(config, result),
        "accepted": float(came.mean()),
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
