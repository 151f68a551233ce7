"""RPG beside other penalties: how much of a greedy text repeats, and at what price.

Prompts that make models repeat themselves are continued greedily under every arm. All
arms have the same prompts, so that differences are taken prompt by prompt.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import decoding
import models
from decoding import Spec
from decoding.automata import line_types
from experiments import console
from experiments.run_folder import RunFolder
from experiments.stage import Stage
from experiments.studies import common, sampler_texts
from experiments.studies.search_tables import Row, compared, read, table
from models.errors import ConfigError

GREEDY, PAPER = "greedy", "rpg"
LINES = 32  # longest block of lines that counts as a repetition


def run(config: Any, store: RunFolder, lm: Any = None) -> dict[str, Any]:
    """Measure what is missing and return everything; `lm` is loaded unless given."""
    lm = lm or models.load(config.model)
    prompts = prompts_of(config, lm)
    arms = {name: _specs(parts) for name, parts in config.arms.items()}
    if GREEDY not in arms or PAPER not in arms:
        raise ConfigError(f"config.arms needs {GREEDY!r} and {PAPER!r}")
    rows, every = [], [prompt for part in prompts.values() for prompt in part]
    with console.bar(len(arms) + 1, "rpg") as bar:
        for name, parts in arms.items():
            bar.doing(name)
            work = functools.partial(written, config, lm, every, parts)
            rows.append({"arm": name, **store.make("rows", name, work)})
            bar.done(name)
        bar.doing("unchanged")
        texts = {row["arm"]: row["tokens"] for row in rows}
        (part,) = arms[PAPER]
        work = functools.partial(
            unchanged, lm, part, every, texts[GREEDY], texts[PAPER]
        )
        same = store.make("rows", "unchanged", work)
        bar.done("unchanged")
    counts = {name: len(texts) for name, texts in prompts.items()}
    shown = [
        table_of(f"Prompts of {name}", rows, range(*span))
        for name, span in spans(counts).items()
    ]
    shown += [directions(rows), table_of_unchanged(same)]
    return common.study(store, tables=shown)


def prompts_of(config: Any, lm: Any) -> dict[str, list[list[int]]]:
    """Return the ends of the files' prompts, or of held-out code without files."""
    if not config.data:
        return common.texts(config, lm)
    prompts = {}
    for name in config.files:
        rows = read(config.data, name, lambda row: row["prompt"])[: config.prompts]
        tokens = [lm.tokenizer.encode(text) for text in rows]
        prompts[name.partition(".")[0]] = [t[-config.prompt_tokens :] for t in tokens]
    return prompts


def spans(counts: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return where each file's prompts lie among all."""
    ends = np.cumsum(list(counts.values())).tolist()
    return {
        name: (end - count, end) for (name, count), end in zip(counts.items(), ends)
    }


def _specs(parts: Any) -> tuple[Spec, ...]:
    """Build the transforms of an arm: dicts of a name and arguments."""
    return tuple(Spec(**dict(part)) for part in parts)


def written(config: Any, lm: Any, prompts: list, parts: tuple[Spec, ...]) -> Row:
    """Write the texts of one arm, and measure them."""
    texts, ended = [], []
    for first in range(0, len(prompts), config.batch):
        batch = prompts[first : first + config.batch]
        out = decoding.generate(
            lm, batch, transforms=parts, max_new_tokens=config.max_new_tokens
        )
        ended += [reason != "length" for reason in out.finish_reason]
        texts += [
            sampler_texts.Text(prompt, tokens, logprobs, 1.0, None)
            for prompt, tokens, logprobs in zip(batch, out.tokens, out.logprobs)
        ]
    spelled, lexer = lm.tokenizer.token_bytes(), line_types.lexer()
    return {
        "tokens": [text.tokens for text in texts],
        "grams": [repeated(text) for text in texts],
        "lines": [lines(lexer, spelled, text) for text in texts],
        "loops": [float(sampler_texts.FIGURES["loops"](text) or 0) for text in texts],
        "nats": [-float(np.mean(text.logprobs)) for text in texts],
        "ended": [float(end) for end in ended],
        "size": [float(len(text.tokens)) for text in texts],
    }


def repeated(text: sampler_texts.Text, n: int = 4) -> float:
    """Return the share of the new n-grams that the prompt or the text had before."""
    tokens, begin = [*text.prompt, *text.tokens], len(text.prompt)
    seen: set[tuple[int, ...]] = set()
    again = 0
    for end in range(n, len(tokens) + 1):
        gram = tuple(tokens[end - n : end])
        again += end > begin and gram in seen
        seen.add(gram)
    return again / max(len(text.tokens), 1)


def lines(
    lexer: line_types.Lexer, spelled: Sequence[bytes], text: sampler_texts.Text
) -> float:
    """Return the share of the new lines that end a repeated block of lines by types.

    A line without types is none; a text without new lines has the share 0.
    """
    spell = lambda tokens: b"".join(spelled[token] for token in tokens)
    every = lambda tokens: [x for x in line_types.hashes(lexer, spell(tokens))[0] if x]
    known, new = len(every(text.prompt)), every([*text.prompt, *text.tokens])
    ends = range(known + 1, len(new) + 1)
    repeats = lambda end: any(
        new[end - size : end] == new[end - 2 * size : end - size]
        for size in range(1, min(LINES, end // 2) + 1)
    )
    return sum(map(repeats, ends)) / max(len(ends), 1)


def unchanged(lm: Any, part: Spec, prompts: list, greedy: list, texts: list) -> Row:
    """Count the tokens up to the first repetition, and those that agree with greedy.

    The law of the next token is unchanged until something repeats, so that a text of
    greedy decoding stays as it is at least until then.
    """
    available = {
        "vocab_size": lm.config.vocab_size,
        "eos": tuple(lm.config.eos),
        "tokenizer": lm.tokenizer,
    }
    transform = part.build(available)
    zeros = jnp.zeros(lm.config.vocab_size)

    @jax.jit
    def penalised(prompt: Any, size: Any, text: Any) -> Any:
        def step(state: Any, token: Any) -> tuple:
            changed = (transform.apply(state, zeros, {}) != 0).any()
            return transform.advance(state, token, zeros, {}), changed

        return jax.lax.scan(step, transform.init(prompt, size), text)[1]

    room = [max(map(len, column)) for column in (prompts, greedy)]
    fill = lambda tokens, size: np.pad(np.asarray(tokens, np.int32), (0, size))
    first, agreed = [], []
    for prompt, old, new in zip(prompts, greedy, texts):
        padded = fill(prompt, room[0] - len(prompt)), fill(old, room[1] - len(old))
        flags = np.asarray(penalised(padded[0], np.int32(len(prompt)), padded[1]))
        flags = np.append(flags[: len(old)], True)
        first.append(int(flags.argmax()))
        pairs = list(zip(old, new))
        agreed.append(next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs)))
    return {"first": first, "agreed": agreed, "size": [len(text) for text in greedy]}


COLUMNS = ("grams", "lines", "loops", "nats", "ended", "size")
HEADS = (
    "repeated 4-grams",
    "lines that repeat by types",
    "loop share",
    "nats a token",
    "ended",
    "tokens",
)


def table_of(title: str, rows: list[Row], at: range) -> dict[str, Any]:
    """Make a line for every arm, over some of the prompts."""

    def cell(row: Row, name: str) -> str:
        values = np.asarray(row[name])[list(at)]
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        digits = 1 if name == "size" else 3
        return f"{values.mean():.{digits}f} ± {error:.{digits}f}"

    body = [[row["arm"], *(cell(row, name) for name in COLUMNS)] for row in rows]
    notes = (
        f"{len(at)} prompts, greedy. ±: standard error of the mean. Repeated 4-grams: "
        "of the new ones, those that prompt or text had before. Lines: new ones that "
        f"end a repeated block of at most {LINES} lines, compared by types.",
        "Nats: of the text under the model's own law.",
    )
    return table(title, ("arm", *HEADS), body, *notes)


def directions(rows: list[Row]) -> dict[str, Any]:
    """Compare greedy decoding with every other arm, over all prompts."""
    first = next(row for row in rows if row["arm"] == GREEDY)
    body = []
    for row in rows:
        if row["arm"] != GREEDY:
            for name, head in zip(COLUMNS[:2], HEADS):
                pair = np.asarray(first[name]), np.asarray(row[name])
                body.append(compared(f"{head}: greedy − {row['arm']}", *pair))
    note = (
        "difference: with its 95 % bootstrap interval over prompts, in pairs. holds: "
        "*yes* if the interval is above 0, *no* if below, else *even*."
    )
    heads = ("claim", "difference", "holds")
    return table("Less repetition than greedy", heads, body, note)


def table_of_unchanged(same: Row) -> dict[str, Any]:
    """Say how long texts are unchanged, and that they are until something repeats."""
    first, agreed = np.asarray(same["first"]), np.asarray(same["agreed"])
    whole = first >= np.asarray(same["size"])
    body = [
        [
            f"{(agreed >= first).sum()}/{len(first)}",
            f"{np.median(first):.0f}",
            f"{np.median(agreed):.0f}",
            f"{whole.sum()}",
            f"{(agreed >= first)[whole].sum()}/{whole.sum()}",
        ]
    ]
    heads = (
        "equal until something repeats",
        "tokens until then",
        "tokens until texts differ",
        "texts without repetition",
        "of them equal",
    )
    return table(f"{PAPER} against greedy", heads, body, "tokens: medians.")


STAGE = Stage(run, "RPG on {}", ("arms",))
