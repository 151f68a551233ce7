"""Store prefixes of prompts on disk, for `generate(prefixes=)` to load.

python -m experiments.prefixes save --folder=runs/prefixes --file=system.txt
python -m experiments.prefixes list --folder=runs/prefixes
python -m experiments.prefixes verify --folder=runs/prefixes
python -m experiments.prefixes evict --folder=runs/prefixes --most_bytes=1000000000
python -m experiments.prefixes calibrate --folder=runs/prefixes --data=texts/

`save` stores the longest prefix of a text that ends with a chunk of 128 tokens, for one
method. `--level` 3, 2 or 1 stores it in fewer bits, by tables that `calibrate` has
written once for a model: texts from such entries are LOSSY. `verify` reads every file
and ends with status 1 if one is damaged. `evict` removes what was not used for longest.
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import models
from decoding import Method, recipes
from decoding.serving.cachegen import codec, tables
from decoding.serving.prefix_folder import LINK, Entry, PrefixFolder
from decoding.serving.prefix_store import PrefixStore
from experiments import console, datastore
from models import storage
from models.errors import ConfigError, PromptError
from models.heads.formats import native
from models.surgery import lora
from training import command_line

MODULE = "experiments.prefixes"
DAY = 86_400


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command's flags."""
    parser = command_line.Parser(MODULE, __doc__)
    add = parser.add_argument
    add("action", choices=list(ACTIONS), help="what to do")
    add("--folder", default="runs/prefixes", help="of the store")
    add("--model", default="tiny", help="a shipped model, a directory, or owner/name")
    add("--method", help="a recipe, by name or path; by default plain")
    add("--draft", help="draft model; by default the method's own")
    add("--heads", help="trained heads of the method")
    add("--prompt", help="save: the text")
    add("--file", help="save: a file with the text")
    level = f"save: raw, or a level of the codec: {', '.join(codec.LEVELS)}"
    add("--level", default=codec.RAW, help=level)
    longest = "save: tokens of the longest prompt of later calls; 0: as the text"
    add("--prompt_tokens", type=int, default=0, help=longest)
    add("--new", type=int, default=128, help="save: tokens that later calls write")
    rows = "save: rows of the calls whose texts should be equal to the last bit"
    add("--rows", type=int, default=1, help=rows)
    chunk = "save: tokens of a chunk of the prompt, as in the calls; by default theirs"
    add("--prefill_chunk", type=int, help=chunk)
    add("--most_bytes", type=int, help="evict: of the files that stay")
    add("--most_days", type=float, help="evict: since a file was written or loaded")
    data = "calibrate: file or directory of texts; repeatable"
    add("--data", action="append", default=[], help=data)
    suffix = "calibrate: suffix of the files taken from a directory"
    add("--suffix", default=".txt", help=suffix)
    fields = "calibrate: fields of JSON rows to join, with commas; none: plain text"
    add("--fields", type=lambda text: text.split(","), default=[], help=fields)
    add("--texts", type=int, default=16, help="calibrate: texts to read")
    add("--tokens", type=int, default=512, help="calibrate: tokens of each")
    deltas = "calibrate: code differences to one token in ten (larger on tiny)"
    add("--deltas", action="store_true", help=deltas)
    return parser.read(arguments)


def save(values: argparse.Namespace, out: Any) -> int:
    """Store the longest prefix of a text."""
    if (values.prompt is None) == (values.file is None):
        raise PromptError("give the text once, as --prompt=TEXT or --file=FILE")
    text = values.prompt
    if text is None:
        text = storage.path(values.file).read_text(encoding="utf-8")
    kept, lm = opened(values)
    entry = kept.add(lm.tokenizer.encode(text))
    out.print(line(entry), highlight=False)
    return 0


def opened(values: argparse.Namespace) -> tuple[PrefixStore, Any]:
    """Return the store of the flags' model and method, and the model."""
    lm = models.load(values.model)
    if lm.tokenizer is None:
        raise PromptError(
            f"--model={values.model} has no tokenizer.json: choose one that has"
        )
    recipe: Any = {}
    if values.heads and not values.method:
        method = Method.from_config(native.method(values.heads))
    else:
        recipe = recipes.config(values.method or "plain")
        method = Method.from_config(recipe["method"])
    drafts: dict[str, Any] = {}
    if "draft" in method.needs:
        default = recipe.get("drafts", {}).get("draft", "tiny-draft")
        drafts["draft"] = models.load(values.draft or default)
    if "heads" in method.needs:
        if not values.heads:
            raise PromptError(f"--method={values.method} needs --heads=FOLDER")
        lm, drafts["heads"] = lora.model(lm, native.load(values.heads, lm))
    kept = PrefixStore(
        *(values.folder, lm, method),
        drafts=drafts,
        level=values.level,
        prompt_tokens=values.prompt_tokens,
        new=values.new,
        rows=values.rows,
        prefill_chunk=values.prefill_chunk,
    )
    return kept, lm


def show(values: argparse.Namespace, out: Any) -> int:
    """List the entries, the last used first."""
    entries = PrefixFolder(values.folder).entries()
    for entry in entries:
        out.print(line(entry), highlight=False, soft_wrap=True)
    total = sum(entry.bytes for entry in entries)
    out.print(f"{len(entries)} entries, {total:,} bytes", highlight=False)
    return 0


def verify(values: argparse.Namespace, out: Any) -> int:
    """Read every file; status 1 if one is damaged."""
    entries = PrefixFolder(values.folder).verify()
    for entry in entries:
        out.print(line(entry), highlight=False, soft_wrap=True)
    wrong = sum(bool(entry.reason) for entry in entries)
    out.print(f"{len(entries)} files, {wrong} damaged", highlight=False)
    return int(wrong > 0)


def evict(values: argparse.Namespace, out: Any) -> int:
    """Remove the entries that were not used for longest."""
    if values.most_bytes is None and values.most_days is None:
        raise ConfigError("give a bound: --most_bytes=N or --most_days=N")
    days = values.most_days
    seconds = None if days is None else days * DAY
    for entry in PrefixFolder(values.folder).evict(values.most_bytes, seconds):
        out.print(f"removed {line(entry)}", highlight=False, soft_wrap=True)
    return 0


def calibrate(values: argparse.Namespace, out: Any) -> int:
    """Count the symbols of a model's keys and values, and write its tables."""
    if not values.data:
        raise PromptError("no data: give texts, e.g. --data=texts/")
    if values.tokens <= LINK:
        raise PromptError(f"--tokens={values.tokens}: use more than {LINK}")
    kept, lm = opened(argparse.Namespace(**{**vars(values), "level": codec.RAW}))
    paths = datastore.files(values.data, values.suffix, "--data")
    documents = datastore.documents(paths, values.fields)
    encoded = (lm.tokenizer.encode(text)[: values.tokens] for text in documents)
    chosen = itertools.islice((t for t in encoded if len(t) > LINK), values.texts)
    rows = [kept.row(tokens).arrays for tokens in chosen]
    made = tables.counted(rows, list(codec.LEVELS), values.deltas)
    file = tables.path(kept.folder)
    tables.save(file, made, kept.weights)
    out.print(f"{len(rows)} texts counted; tables in {file}", highlight=False)
    return 0


def line(entry: Entry) -> str:
    """Format an entry."""
    about = entry.reason or f"{entry.tokens} tokens, {entry.level}"
    return (
        f"{about}, {entry.bytes:,} bytes, used {entry.age / DAY:.1f} days ago: "
        f"{entry.file.name}"
    )


ACTIONS = {
    "save": save,
    "list": show,
    "verify": verify,
    "evict": evict,
    "calibrate": calibrate,
}


def body(arguments: list[str]) -> int:
    """Run the action of a command line."""
    values = read(arguments)
    return ACTIONS[values.action](values, console.terminal())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    return command_line.call(MODULE, body, arguments)


if __name__ == "__main__":
    sys.exit(main())
