"""Decode a text in the terminal, round by round, and print its statistics.

python -m experiments.generate --model=tiny --method=token_recycling \\
    --prompt="def main(" --max_new_tokens=64

A search prints its texts when it ends, the best first (--n). A terminal colours
accepted drafts by depth. The host runs the rounds one by one, to print each as it ends;
`experiments.run` measures speed.
"""

import argparse
import ast
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from rich.text import Text

import decoding
import models
from decoding import Method, Spec, recipes
from decoding.prompts import specpc
from decoding.serving.prefix_store import PrefixStore
from experiments import console
from models import cpu_host
from models.errors import PromptError
from models.heads.formats import native
from models.surgery import lora
from training import command_line

MODULE = "experiments.generate"
COLOURS = ("", "blue", "cyan", "green", "yellow", "red", "magenta")


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command's flags."""
    parser = command_line.Parser(MODULE, __doc__)
    add = parser.add_argument
    method = "a recipe, by name or path; by default the heads' own, or plain"
    transform = "beside the method's: transforms/min_p(p=0.1) or my_package.my_file"
    mesh = 'devices as in "data=2,tensor=4"; auto: by the model\'s size'
    model = "a shipped model, a directory, or owner/name; by default the method's own"
    add("--model", help=f"{model}, or tiny")
    add("--method", help=method)
    add("--prompt", help="the text to continue")
    add("--suffix", help="of a diffusion model: the text behind --max_new_tokens")
    add("--mesh", default="auto", help=mesh)
    add("--draft", help="draft model; by default the method's own")
    add("--heads", help="trained heads: tiny-fspad, tiny-eagle2, or as --model")
    add("--max_new_tokens", type=int, default=128, help="tokens to write")
    add("--temperature", type=float, default=0.0, help="0 decodes greedily")
    add("--n", type=int, default=1, help="texts of a search to print")
    add("--seed", type=int, default=0, help="seed of the sampled text")
    add("--transform", action="append", help=f"{transform}; repeatable")
    add("--stop", action="append", help="a text that ends decoding; repeatable")
    add(
        "--width",
        type=lambda text: int(text) if text.isdigit() else text,
        help="auto, the default: the fastest blocks here; paper: the method's own; or "
        "a number of nodes",
    )
    add(
        "--tune",
        action="store_true",
        help="measure rounds by width anew, print the times, and use them",
    )
    add(
        "--stop_token_ids",
        type=int,
        action="append",
        help="a token that ends decoding, beside EOS; repeatable",
    )
    add(
        "--top_logprobs",
        type=int,
        default=0,
        help="print this many of the best tokens in the place of each token",
    )
    add("--policy", help="of the cache: h2o, with --policy.budget=128, say")
    prefixes = "folder of stored prefixes (experiments.prefixes) to load from"
    add("--prefixes", help=prefixes)
    for kind in ("json_schema", "gbnf", "lark", "ebnf"):
        add(f"--{kind}", help=f"file of a {kind} that the text is one of")
    add("--regex", help="a pattern that the text matches in full")
    add("--after", help="a marker: any text may stand before it, then the grammar's")
    add("--whitespace", help="of JSON: flexible, the default, or compact")
    add(
        "--finish",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="end a grammar's text within --max_new_tokens",
    )
    add(
        "--jump_forward",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="draft what a grammar determines at once",
    )
    cap = "tokens of the prompt that --draft keeps (SpecPC), 64 or more"
    add("--compress_prompt", type=int, help=cap)
    add(
        "--echo",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="print the prompt, too",
    )
    own = [text for text in arguments if text.startswith("--policy.")]
    values = parser.read([text for text in arguments if text not in own])
    values.policy = policy(values.policy, own)
    return values


def policy(name: str | None, arguments: Sequence[str]) -> Spec | None:
    """Read a cache policy and its arguments, each as in --policy.budget=128.

    Raises:
        PromptError: arguments without a policy, or one that is no literal.
    """
    if name is None:
        if arguments:
            raise PromptError(f"{arguments[0]} without --policy: name one, as h2o")
        return None
    spec = Spec.parse(name if "/" in name or "." in name else f"caches/{name}")
    given: dict[str, Any] = {}
    for text in arguments:
        key, _, value = text.removeprefix("--policy.").partition("=")
        try:
            given[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError) as error:
            raise PromptError(
                f"{text}: give a number or a quoted text, as --policy.budget=128"
            ) from error
    return Spec(spec.name, **{**spec.arguments, **given})


def constraint(values: argparse.Namespace) -> dict[str, Any] | None:
    """Read the grammar that the flags name.

    Raises:
        PromptError: a file that cannot be read, or options without a grammar.
    """
    named: dict[str, Any] = {}
    for kind in ("json_schema", "gbnf", "lark", "ebnf"):
        if (name := getattr(values, kind)) is not None:
            try:
                named[kind] = pathlib.Path(name).read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise PromptError(
                    f"--{kind}={name} cannot be read ({error}): give a text file"
                ) from error
    named |= {} if values.regex is None else {"regex": values.regex}
    options = {
        name: getattr(values, name)
        for name in ("after", "whitespace")
        if getattr(values, name) is not None
    }
    if options and not named:
        raise PromptError(
            f"{sorted(options)} without a grammar: give --json_schema, --gbnf, --lark, "
            "--ebnf or --regex"
        )
    return named | options or None


class Streamer:
    """Show the tokens of row 0 as they are committed."""

    def __init__(
        self,
        lm: Any,
        length: int,
        show: Callable[[str, int], None],
        stops: Sequence[int] = (),
    ):
        self.ends = {*lm.model.config.eos, *stops}  # tokens that are not shown
        self.show, self.shown = show, length
        self.stream = lm.tokenizer.stream()

    def __call__(self, step: Callable, state: Any) -> Any:
        """Run rounds to the end, as the `loop` of `decoding.generate`."""
        while not bool(state.done.all()):
            state, _ = step(state)
            end = int(state.length[0])
            row = jax.device_get((state.tokens[0], state.origin[0]))
            for i in range(self.shown, end):
                token, depth = int(row[0][i]), int(row[1][i])
                if token not in self.ends:
                    self.show(self.stream.push(token), depth)
            self.shown = end
        self.show(self.stream.flush(), 0)
        return state


def generate(values: argparse.Namespace, out: Any) -> decoding.api.Output:
    """Load the models, then decode and stream; `out` is a rich console."""
    recipe: Any = {}
    if values.heads and not values.method:
        method = Method.from_config(native.method(values.heads))
    else:
        recipe = recipes.config(values.method or "plain")
        method = Method.from_config(recipe["method"])
    if values.policy is not None:
        method = dataclasses.replace(method, policy=values.policy)
    if values.prompt is None:
        raise PromptError('no prompt: give one, e.g. --prompt="def main("')
    cpu_host.settle()
    needs = method.needs
    drafts: dict[str, Any] = {}
    if "draft" in needs:
        default = recipe.get("drafts", {}).get("draft", "tiny-draft")
        drafts["draft"] = models.load(values.draft or default)
    target = values.model or recipe.get("model", "tiny")
    lm = models.load(target, mesh=values.mesh)
    if lm.tokenizer is None:
        raise PromptError(
            f"--model={target} has no tokenizer.json: add it to encode texts"
        )
    prompt = lm.tokenizer.encode(values.prompt)
    if values.compress_prompt is not None:
        judge = drafts.get("draft") or models.load(values.draft or "tiny-draft")
        short = specpc.compress(judge, [prompt], values.compress_prompt)
        told = f"SpecPC keeps {short.kept[0]} of {short.whole[0]} tokens of the prompt"
        out.print(Text(f"{told}\n", "dim"), soft_wrap=True)
        prompt = short.prompts[0]

    if "heads" in needs:
        if not values.heads:
            raise PromptError(
                f"--method={values.method} needs trained heads: give --heads=FOLDER, "
                "the export of a run of its recipe"
            )
        lm, drafts["heads"] = lora.model(lm, native.load(values.heads, lm))

    def show(piece: str, depth: int) -> None:
        style = COLOURS[min(depth, len(COLOURS) - 1)]
        out.print(Text(piece, style), end="", soft_wrap=True)

    transforms = [Spec.parse(text) for text in values.transform or ()]
    if values.tune:
        sizes = len(prompt), values.max_new_tokens, values.temperature
        times = decoding.tune(lm, method, 1, *sizes, drafts, transforms)
        out.print(Text(f"{times}\n", "dim"), soft_wrap=True)
    if values.echo:
        out.print(Text(values.prompt, "dim"), end="", soft_wrap=True)
    stops = values.stop_token_ids or ()
    search = method.search
    searches = search is not None and search.card.kind != "prefill"
    if values.n != 1 and not searches:
        raise PromptError(f"--n={values.n} prints texts of a search: leave it out")
    kept = None
    if values.prefixes:
        kept = PrefixStore(values.prefixes, lm, method, drafts=drafts)
    grammar = constraint(values)
    jumps = values.jump_forward and grammar is not None and search is None
    found = decoding.generate(
        lm,
        [prompt],
        method=method,
        max_new_tokens=values.max_new_tokens,
        temperature=values.temperature,
        seed=values.seed,
        transforms=transforms,
        stop=values.stop,
        drafts=drafts,
        n=values.n,
        loop=None if searches else Streamer(lm, len(prompt), show, stops),
        stop_token_ids=stops,
        top_logprobs=values.top_logprobs,
        width=values.width,
        prefixes=kept,
        constraint=grammar,
        finish=values.finish and grammar is not None,
        suffix=None if values.suffix is None else [values.suffix],
        jump_forward=jumps,
    )
    if values.suffix and values.echo:
        out.print(Text(values.suffix, "dim"), end="", soft_wrap=True)
    if searches:
        out.print(Text(listed(found, values.n)), soft_wrap=True)
    if values.top_logprobs:
        out.print("\n")
        for line in alternatives(lm.tokenizer, found):
            out.print(Text(line, "dim"), soft_wrap=True)
    return found


def listed(found: decoding.api.Output, n: int) -> str:
    """Join the texts of a search; of several each begins with its score."""
    assert found.texts is not None and found.scores is not None
    if n == 1:
        return found.texts[0]
    pairs = zip(found.texts[0], found.scores[0])
    return "\n".join(f"\n[{score:.4f}] {text}" for text, score in pairs)


def figures(found: decoding.api.Output) -> list[str]:
    """Format the statistics of one text, a line each."""
    stats = found.stats
    new, calls = int(stats.new_tokens.sum()), int(stats.target_calls.sum())
    spent = f"{stats.seconds:.2f} s, and {stats.compile_seconds:.1f} s of compilation"
    if stats.nodes_run is not None and stats.most_slots is not None:
        run, most = int(stats.nodes_run.sum()), int(stats.most_slots.max())
        return [
            f"{new} tokens of the best text; {stats.rounds} rounds ran {run} nodes in "
            f"at most {most} slots ({found.guarantee})",
            spent,
        ]
    if stats.wide_calls is not None and stats.nodes_run is not None:
        run, whole = int(stats.nodes_run.sum()), int(stats.wide_calls.sum())
        return [
            f"{new} tokens in {calls} target calls: {stats.tokens_per_call:.2f} a call "
            f"({found.guarantee}); {run} nodes ran, the whole canvas in {whole} calls",
            spent,
        ]
    depths = " ".join(f"{100 * x:.0f}%" for x in stats.accepted_by_depth) or "–"
    return [
        f"{new} tokens in {calls} target calls: {stats.tokens_per_call:.2f} a call "
        f"({found.guarantee})",
        f"accepted by depth: {depths}; draft calls: {stats.draft_calls}",
        spent,
        *memory(stats),
        *prefixes(found),
        *verdict(found),
    ]


def memory(stats: Any) -> list[str]:
    """Format the bytes of a cache that a policy keeps a part of."""
    if stats.keys_read is None:
        return []
    now, before = f"{stats.kv_bytes:,.0f}", f"{stats.kv_bytes_prefill:,.0f}"
    return [
        f"cache of {now} bytes, {before} while the prompt was read; a token read "
        f"{stats.keys_read:.1f} slots a layer"
    ]


def prefixes(found: decoding.api.Output) -> list[str]:
    """Format what a prefix store gave for the prompt."""
    if found.prefixes is None:
        return []
    one = found.prefixes[0]
    level = f" ({one.level}, {one.seconds:.3f} s)" if one.tokens else ""
    why = f"; {one.reason}" if one.reason else ""
    return [f"{found.stats.loaded} tokens of the prompt loaded{level}{why}"]


def verdict(found: decoding.api.Output) -> list[str]:
    """Format whether the text is a whole one of its grammar."""
    if found.accepted is None:
        return []
    is_whole = (
        "a whole text" if found.accepted[0] else "no whole text, but its beginning"
    )
    assert found.engine is not None and found.forced is not None
    return [
        f"{is_whole} of the grammar; engine: {found.engine[0]}; host syncs: "
        f"{found.stats.host_syncs}; forced tokens: {found.forced[0]}"
    ]


def alternatives(tokenizer: Any, found: decoding.api.Output) -> list[str]:
    """Format a line for each token: its log-probability, then the best in its place."""
    assert found.top_logprobs is not None, "generate asked for them"
    lines = []
    for token, value, best in zip(
        found.tokens[0], found.logprobs[0], found.top_logprobs[0]
    ):
        others = "  ".join(f"{tokenizer.decode([i])!r} {x:.2f}" for i, x in best)
        lines.append(f"{tokenizer.decode([token])!r} {value:.2f}:  {others}")
    return lines


def body(arguments: list[str]) -> int:
    """Stream the text of a command line, and print its statistics."""
    values, out = read(arguments), console.terminal()
    output = generate(values, out)
    out.print("\n")
    for line in figures(output):
        out.print(line, style="dim", highlight=False)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    return command_line.call(MODULE, body, arguments)


if __name__ == "__main__":
    sys.exit(main())
