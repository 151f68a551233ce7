"""The stage `vocab_trim`: draft models with a smaller output vocabulary.

The papers' figures, by the number of tokens kept: the share of the target's own text
that they cover, tokens a call, and the memory-bound speed-up (VocabTrim, arXiv
2506.22694, section 4)

    MBSU = tokens a call / (length r + 1),   r = bytes a draft's call reads / target's
"""

import functools
from typing import Any

import jax

import models
from decoding import Method
from experiments import console
from experiments.measurement import bootstrap, workbench
from experiments.measurement.workbench import Bench
from experiments.prompts import builtin_tasks
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common, tree_budget
from models.errors import ConfigError
from models.surgery import vocab_trim
from training.data import documents
from training.runs import draft_model_run

WHOLE = "whole"


def run(
    config: Any, store: RunFolder, lm: Any = None, draft: Any = None
) -> dict[str, Any]:
    """Measure missing pieces, return all of them; load models that are not passed."""
    if lm is None:
        lm, draft = models.load(config.model), models.load(config.draft)
    if config.prompts % config.batch:
        raise ConfigError(
            f"config.prompts={config.prompts} is no multiple of config.batch="
            f"{config.batch}: change one of them"
        )
    vocab = lm.config.vocab_size
    sizes = tuple(int(size) for size in config.sizes)
    if not sizes or not len(lm.config.eos) < min(sizes) <= max(sizes) < vocab:
        raise ConfigError(
            f"config.sizes={sizes}: keep more tokens than the {len(lm.config.eos)} "
            f"that end a text, and fewer than all {vocab}"
        )
    counts, held = counted(config, store, lm)
    prompts = builtin_tasks.build(
        lm, config.tasks, config.prompts, config.prompt_tokens
    )
    bench = Bench(lm, {}, config.prompt_tokens, config.max_new_tokens, config.batch)
    chain = {"name": "topologies/chain", "length": config.length}
    method = Method.from_config({"drafter": "drafters/model", "topology": chain})
    cells = [(WHOLE, vocab), *((name, n) for name in counts for n in sizes)]
    points = [(task, float(t)) for t in config.temperatures for task in config.tasks]
    rows = []
    with console.bar(len(cells) * len(points), "draft vocabularies") as bar:
        for name, size in cells:
            if name == WHOLE:
                trimmed, coverage = draft, 1.0
            else:
                ids = vocab_trim.frequent(counts[name], size, lm.config.eos)
                trimmed = vocab_trim.trim(draft, ids)
                coverage = vocab_trim.coverage(held, ids)
            share = read(trimmed) / read(lm)
            beside, entry = (
                bench.beside(lm, draft=trimmed),
                tree_budget.Entry(name, config.length, method),
            )
            for task, t in points:
                key = f"{name}-{size}-{task}-t{t:g}"
                bar.doing(key)
                work = functools.partial(
                    tree_budget.row, beside, entry, task, t, prompts[task], config.seed
                )
                row = store.make("rows", key, work)
                rows.append({**row, "size": size, "covered": coverage, "read": share})
                bar.done(f"{key:36} {row['tokens_per_call']:5.2f} tokens/call")
    tables = [table(rows, t, config.length) for t in config.temperatures]
    return common.study(store, trims=rows, tables=tables)


def counted(config: Any, store: RunFolder, lm: Any) -> tuple[dict[str, Any], Any]:
    """Count tokens: ({"target": int[V], "corpus": int[V]}, int[V] of held-out text).

    Vocabularies are chosen by the first two; the last measures their coverage.
    """
    folder = config.data.directory or store.path / "data"
    corpora = documents.both(lm, config.data, folder, store.path)
    written = draft_model_run.write(
        lm, corpora, config.distill, store.path / "written", config.seed
    )
    vocab = lm.config.vocab_size

    def answers(texts: Any) -> Any:  # the target's answers, without prompts
        parts = ([t for t, m in zip(x.tokens, x.mask) if m] for x in texts)
        return vocab_trim.counts(parts, vocab)

    corpus = vocab_trim.counts((x.tolist() for x in corpora[0].tokens), vocab)
    return {"target": answers(written.train), "corpus": corpus}, answers(written.held)


def read(lm: Any) -> int:
    """Count the bytes of weights that one call reads; an embedding's are left out."""
    if "trimmed" not in lm.params:
        return workbench.weight_bytes(lm)
    rest = {k: v for k, v in lm.params.items() if k not in ("embedding", "place")}
    return sum(x.nbytes for x in jax.tree.leaves(rest))


def table(rows: list[dict[str, Any]], t: float, length: int) -> dict[str, Any]:
    """Make a line for each draft, over all tasks, in the form of `report.markdown`."""
    lines = []
    mine = [row for row in rows if row["temperature"] == t]
    for name, size in dict.fromkeys((row["tree"], row["size"]) for row in mine):
        cells = [row for row in mine if (row["tree"], row["size"]) == (name, size)]
        new, calls = bootstrap.pooled(cells)
        low, high = bootstrap.tokens_per_call_interval(new.tolist(), calls.tolist())
        rate = new.sum() / calls.sum()
        share = cells[0]["read"]
        line = [name, f"{size}", f"{100 * cells[0]['covered']:.1f} %", f"{share:.3f}"]
        line += [f"{rate:.2f} ({low:.2f}–{high:.2f})"]
        line += [f"{row['tokens_per_call']:.2f}" for row in cells]
        lines.append([*line, f"{rate / (length * share + 1):.2f}"])
    columns = list(dict.fromkeys(row["task"] for row in mine))
    notes = [
        "counts: the most frequent tokens of the target's own text, or of the corpus. "
        "covered: the share of the target's text on held-out prompts. r: bytes that a "
        "draft's call reads of weights ÷ the target's. MBSU: tokens a call ÷ "
        "(length r + 1)."
    ]
    notes += tree_budget.identical(mine)
    heads = ["counts", "tokens kept", "covered", "r", "tokens/call", *columns, "MBSU"]
    return {"title": f"T = {t:g}", "heads": heads, "lines": lines, "notes": notes}


STAGE = Stage(
    run, "Decoding with {}", ("tasks", "temperatures", "sizes"), parts=("trims",)
)
