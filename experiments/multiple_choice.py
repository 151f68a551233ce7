"""Measure how often a model finds the right answer of a question the likeliest.

python -m experiments.multiple_choice --model=tiny --questions=64

A diffusion model scores each answer by a bound, from `--draws` draws of its masks; an
autoregressive one exactly. `--data` is a file of JSON lines with the fields `question`,
`answers` and `right`, the index of the right answer. Without it the questions are which
of four passages of a held-out file of code goes on with a beginning.
"""

import argparse
import sys
from collections.abc import Sequence

import models
from experiments import console
from experiments.benchmarks import multiple_choice as questions_of
from experiments.prompts import builtin_tasks
from models.errors import PromptError
from training import command_line
from training.evaluation import multiple_choice

MODULE = "experiments.multiple_choice"


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command's flags."""
    parser = command_line.Parser(MODULE, __doc__)
    add = parser.add_argument
    add("--model", default="tiny", help="the model that is asked")
    add("--data", default="", help="file of questions, or hf://...; none: code")
    add("--questions", type=int, default=64, help="the first ones; 0: all of --data")
    add("--draws", type=int, default=128, help="draws of an answer's bound")
    add("--batch", type=int, default=16, help="rows of a forward pass")
    add("--seed", type=int, default=0, help="of draws, and of questions on code")
    sees = "attention of a diffusion model; none: what it was trained for first"
    add("--visibility", default="", help=sees)
    return parser.read(arguments)


def measure(options: argparse.Namespace) -> multiple_choice.Accuracy:
    """Ask the questions of a command line.

    Raises:
        PromptError: a model without a tokenizer.
        DataError: questions, counts or a visibility that do not fit.
    """
    lm = models.load(options.model)
    if lm.tokenizer is None:
        raise PromptError(
            f"--model={options.model} has no tokenizer.json, which the questions need"
        )
    if options.data:
        asked = questions_of.read(lm, options.data, options.questions)
    else:
        files = builtin_tasks.held_out()
        sizes = {"seed": options.seed}
        asked = questions_of.continuations(lm, files, options.questions, **sizes)
    about = (options.draws, options.batch, options.seed, options.visibility)
    return multiple_choice.accuracy(asked, multiple_choice.answered(lm, asked, *about))


def body(arguments: list[str]) -> int:
    """Print the accuracy of a command line."""
    found = measure(read(arguments))
    console.terminal().print(
        f"accuracy {found.total:.3f} ± {found.error:.3f} of {found.questions} "
        f"questions, {found.per_token:.3f} by nats a token, {found.chance:.3f} by "
        f"chance; {found.clear:.2f} of the choices are clear of the draws' error"
    )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    return command_line.call(MODULE, body, arguments)


if __name__ == "__main__":
    sys.exit(main())
