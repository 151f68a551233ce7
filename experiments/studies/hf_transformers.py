"""The same weights through decodax and through HF transformers."""

import dataclasses
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import decoding
import models
from decoding import Method, recipes
from decoding.catalogue import Spec
from experiments import console
from experiments.measurement import block_width_cost, machine, measured_row
from experiments.measurement.measured_row import Cell
from experiments.measurement.workbench import Bench
from experiments.reporting import plots
from experiments.run_folder import RunFolder
from experiments.stage import Section, Stage
from experiments.studies import common
from models import transformer
from models.errors import ConfigError

LOOKUP, DRAFTED = 10, 5  # tokens that prompt lookup and a draft model propose

# Our method, and the arguments with which HF's `generate` decodes the same way.
PAIRS: dict[str, tuple[Method, dict[str, Any]]] = {
    "plain": (Method(), {}),
    "model_chain": (
        Method(
            Spec("drafters/model"), topology=Spec("topologies/chain", length=DRAFTED)
        ),
        {"assistant_model": None},  # filled in
    ),
    "prompt_lookup": (
        Method(Spec("drafters/prompt_lookup", k=LOOKUP)),
        {"prompt_lookup_num_tokens": LOOKUP},
    ),
}


def libraries() -> tuple[Any, Any]:
    """Import torch and transformers; ConfigError names the extra if one is missing."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ConfigError(
            f"the stage 'hf_transformers' needs the extra `peers` ({error}): "
            'pip install "decodax[peers]"'
        ) from error
    return torch, transformers


def run(config: Any, store: RunFolder) -> dict[str, Any]:
    """Measure missing pieces, size by size, and return all of them."""
    torch, transformers = libraries()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    hardware, versions = common.provenance(store)
    peers = {"torch": torch.__version__, "transformers": transformers.__version__}
    report: dict[str, Any] = {
        "hardware": hardware,
        "versions": {**versions, **peers},
        "rows": [],
        "samples": {},
        "peers": [],
        "curve": {},
    }
    with console.bar(1 + 3 * len(config.sizes), "read bandwidth") as bar:
        report["bandwidth"] = store.make("parts", "bandwidth", machine.bandwidth)
        bar.done()
        rate = report["bandwidth"]["gb_s"]
        for size, shape in config.sizes.items():
            study = _Size(config, store, size, shape)
            bar.doing(f"{size}: against HF transformers")
            pairs = store.make("pairs", size, study.pairs)
            for row in pairs:
                aim = config.aims.get(row["method"], {}).get(size)
                report["peers"].append({**row, "aim": aim})
            bar.done("\n".join(_line(row) for row in pairs))
            bar.doing(f"{size}: methods beside plain decoding")
            for row in study.rows(rate):
                report["rows"].append(
                    {**row, "expected": {}, "tolerance": {}, "within": {}}
                )
            bar.done()
            bar.doing(f"{size}: cost of a block")
            report["curve"][size] = store.make("parts", f"curve-{size}", study.curve)
            bar.done()
    report["figures"] = figures(config, report)
    return report


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['size']} {row['method']:14} {row['ours_ms']:7.2f} ms/token, HF "
        f"{row['theirs_ms']:7.2f}: {row['ratio']:.2f}x"
    )


def random_model(shape: Mapping[str, int], key: int, **changes: int) -> models.Loaded:
    """Make a Llama-layout model of this shape with random weights and no EOS."""
    fields: dict[str, Any] = {**shape, **changes}
    dim = fields["d_model"] // fields["n_heads"]
    config = transformer.Config(
        **fields,
        head_dim=dim,
        max_positions=4096,
        ropes=(transformer.rope(dim, 10000.0),),
    )
    model = transformer.transformer(config)
    return models.Loaded(model, jax.jit(model.init)(jax.random.key(key)))


class _Size:
    """One size of the study; its models are made on first use."""

    def __init__(self, config: Any, store: RunFolder, size: str, shape: Any):
        self.config, self.store, self.size = config, store, size
        self.shape = dict(shape)
        self._made: tuple[Any, Any] | None = None

    def models(self) -> tuple[Any, Any]:
        """Return (target, draft)."""
        if self._made is None:
            vocab = self.shape["vocab_size"]
            lm = random_model(self.shape, 0)
            draft = random_model(dict(self.config.draft), 1, vocab_size=vocab)
            self._made = lm, draft
        return self._made

    def prompt(self) -> list[int]:
        """Draw a prompt of random token ids."""
        rng = np.random.default_rng(self.config.seed)
        size = self.config.prompt_tokens
        return rng.integers(1, self.shape["vocab_size"], size).tolist()

    def pairs(self) -> list[dict[str, Any]]:
        """Time each pair in turns: median milliseconds per token, prefill included."""
        torch, _ = libraries()
        lm, draft = self.models()
        prompt, new = self.prompt(), self.config.max_new_tokens
        theirs = {n: self._peer(n, m) for n, m in (("target", lm), ("draft", draft))}
        ids = torch.tensor([prompt])
        calls: dict[tuple[str, str], Callable[[], list[int]]] = {}
        for name, (method, arguments) in PAIRS.items():
            if "assistant_model" in arguments:
                arguments = {"assistant_model": theirs["draft"]}

            def ours(method: Method = method) -> list[int]:
                drafts = {"draft": draft} if method.topology is not None else None
                out = decoding.generate(
                    lm, [prompt], method, new, drafts=drafts, width="paper"
                )
                return out.tokens[0]

            def hf(arguments: dict[str, Any] = arguments) -> list[int]:
                with torch.inference_mode():
                    out = theirs["target"].generate(
                        ids,
                        attention_mask=torch.ones_like(ids),
                        do_sample=False,
                        max_new_tokens=new,
                        min_new_tokens=new,
                        pad_token_id=0,
                        **arguments,
                    )
                return out[0, len(prompt) :].tolist()

            calls[name, "ours"], calls[name, "theirs"] = ours, hf
        texts = {key: call() for key, call in calls.items()}  # compile, warm up
        times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
        for _ in range(self.config.repeats):
            for key, call in calls.items():
                begun = time.perf_counter()
                text = call()
                times[key].append(1e3 * (time.perf_counter() - begun) / len(text))
        medians = {key: statistics.median(t) for key, t in times.items()}
        return [
            {
                "size": self.size,
                "method": name,
                "ours_ms": medians[name, "ours"],
                "theirs_ms": medians[name, "theirs"],
                "ratio": medians[name, "theirs"] / medians[name, "ours"],
                "same_tokens": _agree(texts[name, "ours"], texts[name, "theirs"]),
                "new_tokens": len(texts[name, "ours"]),
            }
            for name in PAIRS
        ]

    def _peer(self, name: str, lm: Any) -> Any:
        """Save the model and load it with HF transformers, in float32."""
        torch, transformers = libraries()
        folder = self.store.path / "models" / f"{self.size}-{name}"
        models.save(lm, folder)
        peer = transformers.AutoModelForCausalLM.from_pretrained(folder)
        peer = peer.to(torch.float32).eval()
        peer.generation_config.eos_token_id = None
        peer.generation_config.num_assistant_tokens = DRAFTED
        peer.generation_config.num_assistant_tokens_schedule = "constant"
        peer.generation_config.assistant_confidence_threshold = 0.0
        return peer

    def rows(self, rate: float) -> list[dict[str, Any]]:
        """Measure plain decoding and the drafters at this size; `rate` in GB/s."""
        config = self.config
        named = {"plain": Method()}
        named |= {name: recipes.method(name) for name in config.methods}
        measured = []
        for name, method in named.items():
            cell = Cell(name, method, f"random@{self.size}", 0.0, config.seed, 1)

            def compute(cell: Cell = cell) -> Any:
                sizes = (config.prompt_tokens, config.max_new_tokens)
                bench = Bench(self.models()[0], {}, *sizes)
                texts = [self.prompt()]
                plain = named["plain"]
                return measured_row.row(bench, cell, plain, texts, config.repeats, rate)

            measured.append(self.store.make("rows", cell.key, compute)["row"])
        return measured

    def curve(self) -> list[dict[str, float]]:
        """Time a call by block width."""
        lm, _ = self.models()
        context, widths = self.config.prompt_tokens, tuple(self.config.widths)
        size = context + self.config.max_new_tokens
        return block_width_cost.call_times(
            lm, widths, context, size, self.config.repeats
        )


def _agree(a: list[int], b: list[int]) -> int:
    """Count equal tokens before the first difference."""
    same = (i for i, (x, y) in enumerate(zip(a, b)) if x != y)
    return next(same, min(len(a), len(b)))


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure and its aim: a lower bound if `least`, else an upper bound."""

    what: str
    value: float
    aim: float
    least: bool

    @property
    def met(self) -> bool:
        return self.value >= self.aim if self.least else self.value <= self.aim


def figures(config: Any, found: dict[str, Any]) -> list[dict[str, Any]]:
    """List every aim of the config with its measured figure."""
    every = []
    for row in found["peers"]:
        if row["aim"] is not None:
            what = f"{row['size']}: {row['method']}, times HF"
            every.append(Figure(what, row["ratio"], row["aim"], True))
    rows = {(r["task"].split("@")[1], r["method"]): r for r in found["rows"]}
    kinds = ("mbu", "block_of_8", "draft_share")
    aims = {kind: dict(config.aims.get(kind, {})) for kind in kinds}
    for size in config.sizes:
        if size in aims["mbu"]:
            what, value = f"{size}: MBU of plain decoding", rows[size, "plain"]["mbu"]
            every.append(Figure(what, value, aims["mbu"][size], True))
        times = {t["width"]: t["plain_calls"] for t in found["curve"][size]}
        if size in aims["block_of_8"] and 8 in times:
            what = f"{size}: a block of 8, in plain calls"
            every.append(Figure(what, times[8], aims["block_of_8"][size], False))
        for name in config.methods if size in aims["draft_share"] else ():
            what = f"{size}: {name}, share of a round outside the call"
            value = rows[size, name]["draft_share"]
            every.append(Figure(what, value, aims["draft_share"][size], False))
    return [{**dataclasses.asdict(f), "met": f.met} for f in every]


HEADS = ("size", "method", "ours ms/token", "HF ms/token", "ratio", "aim", "met")
FIGURE_HEADS = ("figure", "measured", "aim", "met")


def cells(row: dict[str, Any]) -> list[str]:
    """Format a row's cells, in the order of HEADS."""
    aim = row.get("aim")
    return [
        row["size"],
        row["method"],
        f"{row['ours_ms']:.2f}",
        f"{row['theirs_ms']:.2f}",
        f"{row['ratio']:.2f}×",
        "–" if aim is None else f"{aim:g}×",
        "–" if aim is None else "yes" if row["ratio"] >= aim else "no",
    ]


def figure_cells(figure: dict[str, Any]) -> list[str]:
    """Format a figure's cells, in the order of FIGURE_HEADS."""
    aim = f"{'≥' if figure['least'] else '≤'} {figure['aim']:g}"
    met = "yes" if figure["met"] else "no"
    return [figure["what"], f"{figure['value']:.2f}", aim, met]


def sections(report: dict[str, Any]) -> list[Section]:
    """Build the tables of the pairs and of the figures to reach."""
    rows, figures = report["peers"], report["figures"]

    def faster(i: int, j: int) -> str:
        if HEADS[j] != "met" or not rows[i].get("aim"):
            return ""
        return "good" if rows[i]["ratio"] >= rows[i]["aim"] else "bad"

    def met(i: int, j: int) -> str:
        if FIGURE_HEADS[j] != "met":
            return ""
        return "good" if figures[i]["met"] else "bad"

    pairs = [cells(row) for row in rows]
    aims = [figure_cells(figure) for figure in figures]
    return [
        Section("Against HF transformers", HEADS, pairs, words=2, mark=faster),
        Section("Figures to reach", FIGURE_HEADS, aims, mark=met),
    ]


def draw(report: dict[str, Any], folder: pathlib.Path) -> None:
    """Draw how many times HF transformers' speed each method has."""
    rows = report["peers"]
    figure, axes = plots.plt.subplots(figsize=(5, 0.32 * len(rows) + 1))
    names = [f"{r['size']} {r['method']}" for r in rows]
    axes.barh(names, [r["ratio"] for r in rows], color=plots.COLOURS[1])
    for i, row in enumerate(rows):
        if row.get("aim"):
            axes.plot([row["aim"]] * 2, [i - 0.4, i + 0.4], color="#dc2626")
    axes.axvline(1, color="#888", lw=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("times HF transformers (red: aim)")
    plots.save(figure, folder, "peers")


STAGE = Stage(
    run,
    "decodax and HF transformers on the same weights",
    ("methods", "sizes"),
    parts=("peers", "figures"),
    sections=sections,
    draw=draw,
)
