"""Tokens a call beside the authors' code, on the same weights and prompts.

The stage writes the target, its draft model and its heads in the layouts that the
official codes load, with the prompts as token ids, and counts our target calls, prompt
by prompt. The official codes run elsewhere. `config.peers` names a file of what they
did, for every method or for some:

    {"lookup_2": {"code": "transformers 4.53.1", "runs": [RUN, ...]}, ...}
    RUN = {"calls": [calls of prompt 0, ...], "tokens": [text of prompt 0, ...]}

Several runs are several seeds. A name may have a form of the code behind it, as in
`lookahead/repaired`; such a row has our calls of `lookahead`.

A call is one of the target that can commit a token: the prompt's own forward counts
where it gives the text's first token, and not where it ends before the prompt's last
token, which the first round then reads. Calls are those until the text has
`max_new_tokens` tokens; a text may be longer and is cut there.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import models
from decoding import Method, generate
from decoding.loops import stats
from experiments import console, run_folder
from experiments.measurement import measured_row
from experiments.run_folder import RunFolder
from experiments.stage import Section, Stage
from experiments.studies import common
from models.errors import CheckpointError, ConfigError
from models.heads.formats import native, published

FOLDER = "official"  # of the run folder: what the official codes load
HYDRA_BLOCKS = 4
SHARD = 1 << 20  # bytes: small, because EAGLE's code reads the index of the shards
HEADS = (
    "method",
    "official code",
    "prompts",
    "runs (official, ours)",
    "official",
    "ours",
    "ratio",
    "text",
)
NOTES = (
    "official, ours: new tokens a target call over all prompts and runs; ratio: ours "
    "by official.",
    "text: whether every text, of both, is plain decoding's.",
    "loop-free: prompts whose text of plain decoding has a loop share below "
    f"{measured_row.LOOPING}.",
)

Run = dict[str, list]


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    common.provenance(store)
    named = common.methods(config)
    lm = lm or models.load(config.model)
    prompts = _prompts(config, lm)
    drafts = write(config, store.path / FOLDER, lm, named, prompts)
    rows = {}
    with console.bar(len(named), "method") as bar:
        for name, method in named.items():
            bar.doing(name)

            def count(name: str = name, method: Method = method) -> Any:
                parts = _parts(method, drafts)
                return counted(config, lm, prompts, name, method, parts)

            rows[name] = store.make("rows", name, count)
            bar.done(f"{name}: {_rate(rows[name], range(len(prompts))):.3f}")
    plain = rows.pop(common.PLAIN)[0]["tokens"]
    peers = read(config.peers, tuple(rows), plain) if config.peers else {}
    return common.study(store, official=compared(rows, peers, plain))


def _prompts(config: Any, lm: Any) -> list[list[int]]:
    """Return the prompts of all tasks, in one list."""
    return [prompt for task in common.texts(config, lm).values() for prompt in task]


def _parts(method: Method, drafts: dict[str, Any]) -> dict[str, Any]:
    """Return what `generate` takes as `drafts` for the method."""
    kind = method.drafter.name.rpartition("/")[2] if method.drafter else ""
    parts = {"heads": drafts[kind]} if "heads" in method.needs else {}
    return parts | ({"draft": drafts["draft"]} if "draft" in method.needs else {})


def write(
    config: Any,
    folder: pathlib.Path,
    lm: Any,
    named: dict[str, Method],
    prompts: list[list[int]],
) -> dict[str, Any]:
    """Write what the official codes load; return our draft model and heads.

    `target` and `draft` are in HF's layout. `eagle3` and `hydra` hold
    model.safetensors and a config.json as the official code reads it. prompts.json
    has the prompts, and the number of new tokens.
    """
    needed = {need for method in named.values() for need in method.needs}
    drafts: dict[str, Any] = {}
    models.save(lm, folder / "target", SHARD)
    if "draft" in needed:
        drafts["draft"] = models.load(config.draft)
        models.save(drafts["draft"], folder / "draft", SHARD)
    for kind, name in config.heads.items():
        drafts[kind] = native.load(name, lm)
        at = folder / kind
        at.mkdir(parents=True, exist_ok=True)
        path = at / "model.safetensors"
        published.save(kind, path, drafts[kind], lm.config, HYDRA_BLOCKS)
        if kind == "hydra":
            run_folder.write(at / "config.json", _hydra_config())
    about = {"prompts": prompts, "max_new_tokens": config.max_new_tokens}
    run_folder.write(folder / "prompts.json", about)
    return drafts


def _hydra_config() -> dict[str, Any]:
    return {
        "hydra_num_heads": 4,
        "hydra_num_layers": HYDRA_BLOCKS,
        "hydra_head_arch": "prefix-mlp",
        "grounded_heads": True,
        "hidden_state_offset": 0,
    }


def counted(
    config: Any,
    lm: Any,
    prompts: list[list[int]],
    name: str,
    method: Method,
    drafts: dict[str, Any],
) -> list[Run]:
    """Decode the prompts one by one, a run a seed."""
    runs: list[Run] = []
    for seed in config.seeds.get(name, (config.seed,)):
        calls: list[int] = []
        tokens: list[list[int]] = []
        memory = None
        for prompt in prompts:
            out = generate(
                lm,
                [prompt],
                method,
                config.max_new_tokens,
                seed=seed,
                drafts=drafts or None,
                memory=memory,
                width="paper",
            )
            calls.append(int(out.stats.target_calls[0]))
            tokens.append([int(token) for token in out.tokens[0]])
            memory = out.memory if name in config.kept else None
        runs.append({"calls": calls, "tokens": tokens})
    return runs


def read(path: str, names: Sequence[str], plain: list[list[int]]) -> dict[str, Any]:
    """Read the official codes' file, and cut its texts to plain decoding's lengths.

    Raises:
        CheckpointError: the file cannot be read.
        ConfigError: it names a method that is not measured, or has no or other
            prompts, or texts that end early.
    """
    try:
        peers = json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error
    for name, peer in peers.items():
        if _method(name) not in names:
            raise ConfigError(f"{path}: no method {name!r}; there are {list(names)}")
        if not peer["runs"]:
            raise ConfigError(f"{path}: {name} has no run: leave the method out")
        for one in peer["runs"]:
            lengths = (len(one["calls"]), len(one["tokens"]))
            if lengths != (len(plain), len(plain)):
                raise ConfigError(
                    f"{path}: {name} has {lengths} calls and texts for {len(plain)} "
                    "prompts: count every prompt of prompts.json, in its order"
                )
            pairs = list(zip(one["tokens"], plain))
            short = [i for i, (a, b) in enumerate(pairs) if len(a) < len(b)]
            if short:
                raise ConfigError(
                    f"{path}: the text of {name} for prompt {short[0]} is shorter than "
                    "plain decoding's: let it write all new tokens, past its EOS too"
                )
            one["tokens"] = [text[: len(whole)] for text, whole in pairs]
    return peers


def compared(
    rows: dict[str, list[Run]], peers: dict[str, Any], plain: list[list[int]]
) -> list[dict[str, Any]]:
    """Make a row a method and choice of prompts: all, and the loop-free ones."""
    loops = [stats.loop_share(text) for text in plain]
    free = [i for i, share in enumerate(loops) if share < measured_row.LOOPING]
    chosen = {"all": list(range(len(plain)))}
    if free:
        chosen["loop-free"] = free
    table = []
    order = list(rows)
    names = [name for name in dict.fromkeys((*rows, *peers)) if _method(name) in rows]
    for name in sorted(names, key=lambda name: order.index(_method(name))):
        runs, peer = rows[_method(name)], peers.get(name)
        theirs = peer["runs"] if peer else []
        is_plain = all(one["tokens"] == plain for one in (*runs, *theirs))
        for label, indices in chosen.items():
            mine = _rate(runs, indices)
            other = _rate(theirs, indices) if peer else None
            table.append(
                {
                    "method": name,
                    "code": peer["code"] if peer else "",
                    "prompts": f"{label} ({len(indices)})",
                    "runs": [len(theirs), len(runs)],
                    "official": other,
                    "ours": mine,
                    "ratio": mine / other if other else None,
                    "same_calls": _equal_calls(runs, theirs, indices),
                    "is_plain": is_plain,
                }
            )
    return table


def _method(name: str) -> str:
    """Return the method of a name that may have a form of the code behind it."""
    return name.partition("/")[0]


def _rate(runs: list[Run], indices: Sequence[int]) -> float:
    """Return the new tokens a target call, over runs and the chosen prompts."""
    calls = sum(one["calls"][i] for one in runs for i in indices)
    return sum(len(one["tokens"][i]) for one in runs for i in indices) / calls


def _equal_calls(ours: list[Run], theirs: list[Run], indices: Sequence[int]) -> int:
    """Count the prompts on which both make the same calls, in single runs."""
    if len(ours) != 1 or len(theirs) != 1:
        return 0
    return sum(ours[0]["calls"][i] == theirs[0]["calls"][i] for i in indices)


def cells(row: dict[str, Any]) -> list[str]:
    """Format a row's cells, in the order of HEADS."""
    has_peer = row["official"] is not None
    theirs, ours = row["runs"]
    return [
        row["method"],
        row["code"] or "–",
        row["prompts"],
        f"{theirs}, {ours}" if has_peer else f"–, {ours}",
        f"{row['official']:.3f}" if has_peer else "–",
        f"{row['ours']:.3f}",
        f"{row['ratio']:.3f}" if has_peer else "–",
        "plain decoding's" if row["is_plain"] else "DIFFERENT",
    ]


def sections(report: dict[str, Any]) -> list[Section]:
    """Build the table; ratios of 1 or more are good."""
    rows = report["official"]

    def mark(i: int, j: int) -> str:
        if HEADS[j] == "text":
            return "" if rows[i]["is_plain"] else "bad"
        if HEADS[j] != "ratio" or rows[i]["ratio"] is None:
            return ""
        return "good" if rows[i]["ratio"] >= 1 else "bad"

    lines = [cells(row) for row in rows]
    return [Section("Tokens a call", HEADS, lines, NOTES, words=3, mark=mark)]


STAGE = Stage(
    run,
    "{} through decodax and through the official codes",
    ("methods", "peers"),
    parts=("official",),
    sections=sections,
)
