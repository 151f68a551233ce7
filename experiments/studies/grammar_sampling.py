"""ASAp and AWRS: distances from the conditional law, and questions to an oracle."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import decoding
import models
from decoding.automata.mass_trie import MassTrie
from decoding.automata.oracle import GrammarOracle
from decoding.constraints import awrs
from decoding.serving import aligned
from experiments.measurement.sentences import Sentences
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common

Row = dict[str, Any]


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    toys = store.make("parts", "toys", lambda: languages(config))
    lm = lm or models.load(config.model)
    curve = store.make("parts", "curve", lambda: model_curve(config, lm))
    asked = store.make("parts", "questions", lambda: questions(config, lm))
    return common.study(store, tables=tables(config, toys, curve, asked))


def languages(config: Any) -> list[Row]:
    """Follow ASAp's law on languages that are known in full."""
    rows = []
    for form, spread, preference in config.forms:
        toy = Sentences(form, spread, preference)
        distances = []
        for seed in range(config.runs):
            trie, rng = MassTrie(), np.random.default_rng([config.seed, seed])
            row = []
            for count in range(config.marks[-1] + 1):
                if count in config.marks:
                    row.append(toy.distance(trie))
                trie.add(0, *toy.draw(trie, rng))
            distances.append(row)
        mass = float(toy.future(()))
        rows.append({"form": form, "mass": mass, "distances": distances})
    return rows


def model_curve(config: Any, lm: Any) -> Row:
    """Draw texts of a model by ASAp; bound the distance after each.

    A text x that was visited has ASAp's law p(x) / c, with c the root's bound, and the
    conditional one p(x) / P(L). So the total variation is at most 1 - P(visited) / c,
    and at least P(visited) (1 / P(L) - 1 / c). The mask's is that of its law on all
    visited texts from p(x) / c at the end.
    """
    constraint = {"gbnf": config.gbnf}
    asked: dict[str, Any] = {"max_new_tokens": config.tokens, "seed": config.seed}
    asked |= {"samples": config.samples, "finish": True}
    out = aligned.sample(lm, [config.prompt], constraint, **asked)
    scores, accepted = out.scores or [[]], out.accepted or [[]]
    trie, visited, seen = out.memory, [], {}
    for text in out.tokens[0]:
        seen[tuple(text)] = path_figures(trie, text)
        visited.append(float(np.exp([p for p, _ in seen.values()]).sum()))
    bounds = np.exp(scores[0])
    p, mask = (np.exp(x) for x in np.array(list(seen.values())).T)
    rest = 1 - visited[-1] / bounds[-1]
    gap = np.abs(p / bounds[-1] - mask).sum() / 2
    return {
        "bounds": bounds.tolist(),
        "visited": visited,
        "texts": len(seen),
        "accepted": int(np.sum(accepted[0])),
        "mask": [float(gap), float(gap + max(rest, 1 - mask.sum()) / 2)],
    }


def path_figures(trie: MassTrie, text: list[int]) -> tuple[float, float]:
    """Return the logs of p and of the mask's law of a visited text."""
    at, logprob, masked = trie.root(0), 0.0, 0.0
    for token in text:
        child = trie.children[at][token]
        logprob += trie.logprob[child]
        masked += trie.logprob[child] - trie.mass[at]
        at = child
    return logprob, masked


def questions(config: Any, lm: Any) -> list[Row]:
    """Count what each scheme asks along texts of the model, and compare its weights."""
    size = lm.model.config.vocab_size
    out = decoding.generate(
        lm,
        [config.prompt] * config.laws,
        temperature=1.0,
        max_new_tokens=config.tokens,
        constraint={"gbnf": config.gbnf},
        seed=config.seed + 1,
        finish=True,
        top_logprobs=size,
    )
    oracle = GrammarOracle(
        {"gbnf": config.gbnf}, lm.tokenizer, tuple(lm.model.config.eos), size
    )
    laws = {}
    for text, best in zip(out.tokens, out.top_logprobs or []):
        for i, pairs in enumerate(best):
            law = np.full(size, -np.inf)
            law[[t for t, _ in pairs]] = [p for _, p in pairs]
            laws[tuple(text[:i])] = law
    rows = []
    for scheme, accepts in (("two_loop", 2), ("recursive", 2), ("geometric", 2)):
        behind = [
            drawn(config, oracle, prefix, law, scheme, accepts)
            for prefix, law in laws.items()
        ]
        rows.append({"scheme": scheme, "vocabulary": size, "prefixes": behind})
    return rows


def drawn(
    config: Any,
    oracle: GrammarOracle,
    prefix: tuple[int, ...],
    law: np.ndarray,
    scheme: str,
    accepts: int,
) -> Row:
    """Draw tokens behind one prefix; weights are divided by the exact mass."""
    allowed = np.array([oracle(prefix, token) for token in range(len(law))])
    mass = np.exp(law[allowed]).sum()
    rng = np.random.default_rng([config.seed, *prefix])
    keys = law + rng.gumbel(size=(config.draws, len(law)))
    ids = np.argsort(-keys, 1)
    counts = np.zeros(config.draws)

    def ask(rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        counts[rows] += 1
        return allowed[tokens]

    order = awrs.Order(ids, law[ids], np.full(len(ids), -np.inf))
    every = np.ones(len(ids), bool)
    found = awrs.draw(order, ask, scheme, accepts, [config.seed, 1], every)
    weight = np.exp(found.log_weight) / mass
    return {
        "mass": float(mass),
        "asked": counts.tolist(),
        "weight": float(weight.mean()),
        "deviation": float(weight.std()),
    }


def tables(
    config: Any, toys: list[Row], curve: Row, asked: list[Row]
) -> list[dict[str, Any]]:
    """Make a table of each part."""
    found = [_toys(config, toys), _curve(config, curve), _asked(config, asked)]
    return found


def _toys(config: Any, toys: list[Row]) -> dict[str, Any]:
    lines = []
    for row in toys:
        mean = np.mean(row["distances"], 0)
        lines.append([row["form"], f"{row['mass']:.4f}", *(f"{x:.4f}" for x in mean)])
    return {
        "title": "ASAp: distance from the conditional law, by texts drawn before",
        "heads": ["language", "P(L)", *map(str, config.marks)],
        "lines": lines,
        "notes": [
            f"Total variation of the next text's law, computed from the bounds; means "
            f"of {config.runs} runs. After 0 texts it is the mask's."
        ],
    }


def _curve(config: Any, curve: Row) -> dict[str, Any]:
    lines, end = [], curve["bounds"][-1]
    for mark in sorted({*config.marks, config.samples}):
        if 0 < mark <= config.samples:
            bound, mass = curve["bounds"][mark - 1], curve["visited"][mark - 1]
            distances = (mass / end - mass / bound, 1 - mass / bound)
            masses = (f"{bound:.3e}", f"{mass:.3e}")
            lines.append([f"{mark}", *masses, *(f"{x:.3f}" for x in distances)])
    low, high = curve["mask"]
    return {
        "title": "ASAp on a model",
        "heads": ["texts", "P(L) ≤", "P(L) ≥", "distance ≥", "distance ≤"],
        "lines": lines,
        "notes": [
            f"{curve['texts']} distinct texts, {curve['accepted']} of "
            f"{config.samples} whole ones. P(L) lies between the mass of the visited "
            "texts and the root's bound. distance: total variation of the next text's "
            "law from the conditional one; the visited texts have too little of it.",
            f"The mask's distance is {low:.3f} to {high:.3f}.",
        ],
    }


def _asked(config: Any, asked: list[Row]) -> dict[str, Any]:
    lines = []
    for row in asked:
        behind: list[Mapping[str, Any]] = row["prefixes"]
        counts = np.concatenate([x["asked"] for x in behind])
        weights = np.array([x["weight"] for x in behind])
        deviation = np.array([x["deviation"] for x in behind])
        # Of all prefixes: the mean of weight ÷ mass is 1, or its error shows.
        error = np.sqrt((deviation**2).sum() / config.draws) / len(behind)
        lines.append(
            [
                row["scheme"],
                f"{counts.mean():.1f}",
                f"{np.median(counts):.0f}",
                f"{np.quantile(counts, 0.99):.0f}",
                f"{counts.mean() / row['vocabulary']:.2%}",
                f"{(counts > config.shipped).mean():.2%}",
                f"{weights.mean():.3f} ± {error:.3f}",
                f"{deviation.mean():.3f}",
            ]
        )
    masses = [x["mass"] for x in asked[0]["prefixes"]]
    return {
        "title": "AWRS: questions a token",
        "heads": [
            *("scheme", "mean", "median", "99 %", "of V"),
            *("over the shipped", "weight ÷ mass", "deviation"),
        ],
        "lines": lines,
        "notes": [
            f"{len(masses)} prefixes of {config.laws} texts, {config.draws} draws "
            f"behind each; V = {asked[0]['vocabulary']}. The allowed mass is "
            f"{np.min(masses):.4f} to {np.max(masses):.4f}, median "
            f"{np.median(masses):.4f}. deviation: of weight ÷ mass, mean over "
            "prefixes; the exact mass has none."
        ],
    }


STAGE = Stage(run, "Sampling under grammars: {}", ())
