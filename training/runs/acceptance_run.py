"""SpecDec++ from a config: a head trained for a pair of models, calibrated, priced.

Its chains, chains of every fixed length and chains that end where the draft is not sure
are decoded from the same prompts, and the calls of both models counted. The verifier is
`verifiers/rejection`, whose acceptance the head learns.
"""

import json
import pathlib
from typing import Any

import jax
import numpy as np

import decoding
import models
from decoding import Method
from models.distributed import processes, sharding
from models.errors import ConfigError
from models.heads.formats import native
from models.predictors import acceptance_predictor
from models.text import hf_tokenizer
from training.data import documents, text_corpus
from training.evaluation import calibration
from training.loop import fit, optimizers
from training.objectives.predictors import specdec_pp
from training.runs import draft_model_run


class Training:
    """One pair of models: what a config says, resolved."""

    def __init__(
        self, config: Any, workdir: str | pathlib.Path, lm: Any = None, own: Any = None
    ):
        self.config, self.workdir = config, pathlib.Path(workdir)
        if lm is None:
            lm = models.load(config.model, mesh=config.mesh, rules=config.rules)
        self.lm = lm
        self.plan = sharding.training(lm.model.plan, config.rules)
        self.draft = models.load(config.draft) if own is None else own
        if self.lm.tokenizer is None or not self.lm.config.eos:
            raise ConfigError(
                f"config.model={config.model!r} needs a tokenizer.json and an EOS"
            )
        hf_tokenizer.check_same(
            f"config.draft={config.draft!r}", self.draft.tokenizer, self.lm.tokenizer
        )
        self.workdir.mkdir(parents=True, exist_ok=True)
        c = config.data
        folder = c.directory or self.workdir / "data"
        self.documents = documents.both(self.lm, c, folder, self.workdir)
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
        texts = self.written.train
        corpus = text_corpus.Corpus(
            [text.tokens for text in texts],
            self.lm.config.eos[0],
            [text.mask for text in texts],
        )
        steps = -(-c.tokens // (c.batch * c.window))
        stage = text_corpus.Stage(steps, c.batch, c.window)
        stream = text_corpus.Stream(corpus, (stage,), self.config.seed, numbered=True)
        schedule = optimizers.warmup_stable_decay(
            t.rate, steps, min(t.warmup, steps // 4), steps // 4
        )
        key = jax.random.key(self.config.seed)
        return fit.fit(
            acceptance_predictor.init(key, self.draft.config.d_model),
            specdec_pp.objective(o.reject, o.blocks),
            optimizers.adamw(schedule, weight_decay=t.weight_decay),
            text_corpus.DataIterator(stream, *sharding.share(self.plan)),
            self.workdir,
            fit.FitConfig.from_recipe(t, steps),
            plan=self.plan,
            target=self.labels,
            frozen=self.frozen,
        )

    def judged(self, params: Any) -> tuple[np.ndarray, np.ndarray]:
        """What the head says of drafts on held-out text, and their acceptance."""
        o = self.config.objective
        texts = self.written.held
        size = max(len(text.tokens) for text in texts)

        @jax.jit
        def one(params: Any, frozen: Any, batch: Any) -> Any:
            found = self.labels(frozen, batch)
            said = acceptance_predictor.probability(params, found.states, o.blocks)
            return said, found.accepted, found.weights

        kept: list[list[np.ndarray]] = [[], []]
        for number, text in enumerate(texts):
            short = size - len(text.tokens)
            batch = {
                "tokens": np.pad(text.tokens, (0, short))[None],
                "loss_mask": np.pad(text.mask[:-1], (0, short))[None],
                "row": np.asarray([-1 - number], np.int32),  # rows of no training
            }
            said, came, weight = sharding.fetch(one(params, self.frozen, batch))
            kept[0].append(said[weight > 0])
            kept[1].append(came[weight > 0])
        return np.concatenate(kept[0]), np.concatenate(kept[1])

    def prompts(self) -> list[list[int]]:
        """The beginnings of held-out documents."""
        c = self.config.evaluate
        sizes = (c.prompts, c.prompt_tokens, c.new_tokens)
        return documents.prompts(self.lm, self.documents[1], *sizes)

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
        "parameters": int(sum(x.size for x in jax.tree.leaves(params))),
        "steps": result.step,
        "seen_tokens": result.step * config.data.batch * config.data.window,
        "seconds": result.seconds,
        "accepted": float(came.mean()),
        "calibration": {"raw": raw._asdict(), "unweighted": true._asdict()},
        "calls": training.priced(params),
    }
    folder = pathlib.Path(config.export or training.workdir / "export")
    about = {
        "head": "acceptance",
        "target": config.model,
        "draft": config.draft,
        "fingerprint": native.fingerprint(training.lm.params),
        "blocks": config.objective.blocks,
        "reject": reject,
        "auc": raw.auc,
    }
    processes.written(lambda: native.save(folder, params, about), "export")
    path = training.workdir / "figures.json"
    text = json.dumps(figures, indent=2) + "\n"
    processes.written(lambda: path.write_text(text), "figures")
    return figures
