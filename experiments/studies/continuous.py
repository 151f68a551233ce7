"""Continuous speculative decoding of profiles of land: rounds, and the law of tokens.

Two sizes of an autoregressive model with a Gaussian head are trained on heights, one
with one step a token and one with several (a trajectory). The small one drafts for the
large one, by the exact rule and by lossy ones. All series begin with held-out profiles,
`samples` of each.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from decoding import Spec, base, noise
from decoding.real_valued import loop
from experiments import console
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common
from experiments.studies.search_tables import Row, table
from models.errors import ConfigError
from models.real_valued import gaussian_series
from training.data import elevations
from training.loop import fit, optimizers
from training.objectives import gaussian_series as objectives

PLAIN = "plain"
SIZES = ("target", "draft")


class Pair(NamedTuple):
    """Target and draft of one number of steps, and their params by size."""

    target: gaussian_series.Model
    draft: gaussian_series.Model
    params: dict[str, Any]


def run(config: Any, store: RunFolder) -> dict[str, Any]:
    """Train and measure what is missing, and return everything."""
    check(config)
    profiles = elevations.load(config.held)
    arms = config.arms.to_dict()
    kinds = sorted({arm["steps"] for arm in arms.values()})
    trained, rows = [], {}
    with console.bar(len(kinds) + len(arms), "continuous") as bar:
        pairs = {}
        for steps in kinds:
            bar.doing(f"train, {steps} steps a token")
            pairs[steps] = fitted(config, store, profiles, steps)
            work = functools.partial(judged, config, profiles, pairs[steps])
            trained.append(store.make("rows", f"nats-{steps}", work))
            bar.done(f"train, {steps} steps a token")

        @functools.cache
        def plain(steps: int) -> np.ndarray:
            return written(config, profiles, pairs[steps], PLAIN, {}, 1)[0]

        for name, arm in arms.items():
            bar.doing(name)
            rest = (config, profiles, pairs[arm["steps"]], name, arm, plain)
            key = re.sub("[^a-z0-9]+", "-", name.lower())
            work = functools.partial(measured, *rest)
            rows[name] = store.make("rows", f"arm-{key}", work)
            bar.done(name)
    return common.study(store, tables=[model_table(trained), arm_table(rows)])


def check(config: Any) -> None:
    """Raise ConfigError for what would fail later, before anything is trained."""
    for name, arm in config.arms.to_dict().items():
        if arm["steps"] < 1 or arm["length"] < 0:
            raise ConfigError(f"{name}: use steps of at least 1 and a length of 0 up")
        Spec("verifiers/continuous", **arm.get("verifier", {})).build({})
    small = min(config.prompts, config.samples, config.new, *config.places)
    if small < 1 or max(config.places) > config.new:
        raise ConfigError(
            f"prompts={config.prompts}, samples={config.samples}, new={config.new}, "
            f"places={config.places}: use at least 1 of each, and places up to new"
        )


def fitted(
    config: Any, store: RunFolder, profiles: elevations.Profiles, steps: int
) -> Pair:
    """Train both sizes, or go on with what the folder holds."""
    models, params = {}, {}
    for size in SIZES:
        shape, t = config[size], config.train
        shape = gaussian_series.Config(
            shape.window, shape.width, shape.layers, steps=steps
        )
        model = gaussian_series.model(shape)
        data = elevations.Stream(
            profiles, shape.window, steps, t.batch, config.seed + 1
        )
        schedule = optimizers.warmup_stable_decay(t.rate, t.steps, t.warmup, t.decay)
        optimizer = optimizers.adamw(schedule, weight_decay=t.weight_decay)
        result = fit.fit(
            model.init(jax.random.key(config.seed)),
            objectives.objective(model),
            optimizer,
            data,
            store.path / f"{size}-{steps}",
            fit.FitConfig.from_recipe(t, t.steps),
        )
        models[size], params[size] = model, result.params
    return Pair(models["target"], models["draft"], params)


def judged(config: Any, profiles: elevations.Profiles, pair: Pair) -> Row:
    """Compute the held-out loss of both sizes, with its standard error."""
    steps = pair.target.config.steps
    row: Row = {"steps": steps}
    for size, model in zip(SIZES, (pair.target, pair.draft)):
        count = sum(x.size for x in jax.tree.leaves(pair.params[size]))
        loss = jax.jit(objectives.objective(model).loss)
        data = elevations.Stream(
            profiles, model.config.window, steps, config.train.batch, config.seed
        )
        losses = [
            float(loss(pair.params[size], data.batch(profiles.held, number), None)[0])
            for number in range(config.judged)
        ]
        error = np.std(losses, ddof=1) / np.sqrt(len(losses))
        row[size] = [count, float(np.mean(losses)), float(error)]
    return row


def written(
    config: Any,
    profiles: elevations.Profiles,
    pair: Pair,
    name: str,
    arm: dict[str, Any],
    seed: int,
) -> tuple[np.ndarray, loop.Series]:
    """Write the series of an arm.

    Returns:
        New tokens float32[prompts, samples, new] in units of the data, less the
        prompt's last, and the loop's last state.
    """
    size = max(pair.target.config.window, pair.draft.config.window)
    rows = np.linspace(0, len(profiles.held) - 1, config.prompts).astype(int)
    prompts = profiles.held[rows, :size, None].repeat(config.samples, 0)
    count = config.prompts * config.samples
    which = jnp.arange(count, dtype=jnp.int32)
    keys = noise.request_keys(2 * config.seed + seed, which, jnp.zeros_like(which))
    length = 0 if name == PLAIN else arm["length"]
    verifier = Spec("verifiers/continuous", **arm.get("verifier", {})).build({})
    out = loop.decode(
        pair.target,
        pair.draft,
        verifier,
        pair.params,
        jnp.asarray(prompts),
        keys,
        config.new,
        length,
        arm.get("aligned", True),
    )
    tokens = np.asarray(out.tokens)[:, : size + config.new, 0]
    new = tokens[:, size:] - tokens[:, size - 1 : size]
    return new.reshape(config.prompts, config.samples, config.new), out


def measured(
    config: Any,
    profiles: elevations.Profiles,
    pair: Pair,
    name: str,
    arm: dict[str, Any],
    plain: Callable[[int], np.ndarray],
) -> Row:
    """Count an arm's calls, and compare its tokens with plain decoding's."""
    new, out = written(config, profiles, pair, name, arm, 0)
    other = plain(arm["steps"])
    counts = {x: np.asarray(getattr(out, x), float) for x in ("calls", "tested")}
    accepted, tries = np.asarray(out.accepted, float), np.asarray(out.tries, float)
    made = counts["calls"] + accepted
    per_call = made / counts["calls"]
    rejected = counts["tested"] - accepted
    distances = [
        stats.ks_2samp(new[i, :, at - 1], other[i, :, at - 1])
        for i in range(config.prompts)
        for at in config.places
    ]
    p = min(1.0, min(x.pvalue for x in distances) * len(distances))
    verifier = Spec("verifiers/continuous", **arm.get("verifier", {})).build({})
    row = {
        "name": name,
        "guarantee": verifier.guarantee,
        "steps": arm["steps"],
        "length": arm["length"],
        "tokens_per_call": float(made.sum() / counts["calls"].sum()),
        "error": float(per_call.std(ddof=1) / np.sqrt(per_call.size)),
        "acceptance": float(accepted.sum() / max(1.0, counts["tested"].sum())),
        "tries": float(tries.sum() / rejected.sum()) if rejected.sum() else None,
        "ks": float(max(x.statistic for x in distances)),
        "p": float(p),
        "mean": float(new[..., -1].mean()),
        "deviation": float(new[..., -1].std(1).mean()),
    }
    if pair.target.config.steps == 1:
        size = np.asarray(out.tokens).shape[1] - config.new - arm["length"]
        tokens = np.asarray(out.tokens)[:, : size + config.new]
        row["uniform"] = uniform(pair, tokens, size)
    return row


def uniform(pair: Pair, tokens: np.ndarray, size: int) -> list[float]:
    """Test all new tokens against the target's own conditional law, which is normal.

    Returns:
        The Kolmogorov-Smirnov distance and p-value of (x - m) / s of all tokens.
    """
    width = pair.target.config.window
    law = jax.jit(pair.target.law)
    values = []
    for at in range(size, tokens.shape[1]):
        window = jnp.asarray(tokens[:, at - width : at])
        here = law(pair.params["target"], window, jnp.zeros((len(tokens), 1, 1)))
        values.append(np.asarray((tokens[:, at] - here.mean) / here.deviation).ravel())
    found = stats.kstest(np.concatenate(values), "norm")
    return [float(found.statistic), float(found.pvalue)]


def model_table(trained: list[Row]) -> dict[str, Any]:
    """Make a line for each pair."""
    lines = [
        [
            f"{row['steps']}",
            *(f"{row[size][0]:,}" for size in SIZES),
            *(f"{row[size][1]:.4f} ± {row[size][2]:.4f}" for size in SIZES),
        ]
        for row in trained
    ]
    heads = ("steps a token", "target, params", "draft, params")
    note = (
        "nats: held-out loss of a token in units of a step's deviation, lower is "
        "better; with several steps it is their sum, which compares with nothing else."
    )
    return table("Models", (*heads, "target, nats", "draft, nats"), lines, note)


def arm_table(rows: dict[str, Row]) -> dict[str, Any]:
    """Make a line for each arm."""
    lines = []
    for name, row in rows.items():
        one = row.get("uniform")
        lines.append(
            [
                name,
                row["guarantee"],
                f"{row['steps']}",
                f"{row['length']}",
                f"{row['tokens_per_call']:.3f} ± {row['error']:.3f}",
                f"{row['acceptance']:.3f}",
                "–" if row["tries"] is None else f"{row['tries']:.2f}",
                f"{row['ks']:.4f}",
                f"{row['p']:.1e}",
                "–" if one is None else f"{one[0]:.4f}",
                "–" if one is None else f"{one[1]:.1e}",
                verdict(row),
            ]
        )
    heads = ("arm", "guarantee", "steps", "γ", "tokens a call", "acceptance", "tries")
    tests = ("KS, plain", "p, plain", "KS, target", "p, target", "law")
    note = (
        "acceptance: of tested drafts. tries: proposals of the residual a rejection. "
        "KS, plain: the largest two-sample distance between an arm's token and plain "
        "sampling's, over prompts and places; p has Bonferroni's factor. KS, target: "
        "all tokens against the target's conditional law, which is known for one step. "
        "law: *kept* if both p exceed 0.001."
    )
    return table("Arms", (*heads, *tests), lines, note)


def verdict(row: Row) -> str:
    """Name whether the tests see another law; a broken LAW stands out."""
    is_kept = min(row["p"], row.get("uniform", [0.0, 1.0])[1]) > 1e-3
    if is_kept:
        return "kept"
    return "BROKEN" if row["guarantee"] == base.LAW else "another"


STAGE = Stage(run, "Continuous speculative decoding of heights", ("arms",))
