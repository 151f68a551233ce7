"""Commands: unknown flags, mistakes, and interruptions that name the way on."""

import os
import signal

import pytest

from experiments import datastore, generate, readme_tables, run
from experiments.launch import command as launch
from experiments.preflight import command as preflight
from models.errors import ConfigError
from training import command_line, distill
from training.loop import preemption

QUICK = "--config=configs/quickstart.py"
MISTAKES = (
    (run, ["--confg=configs/quickstart.py"], "did you mean '--config'?"),
    (run, [QUICK, "--worksdir=w"], "did you mean '--workdir'?"),
    (run, [QUICK, "--workdir=w", "--config.repeat=3"], "did you mean 'repeats'?"),
    (run, [QUICK, "--workdir=w", "--config.draft=x"], "did you mean 'drafts'?"),
    (run, [QUICK], "no --workdir"),
    (run, ["--workdir=w"], "no --config"),
    (run, [QUICK, "stray"], "unrecognized arguments: stray"),
    (preflight, [QUICK, "--topolgy=v5e:2x2"], "did you mean '--topology'?"),
    (preflight, [QUICK], "no --topology"),
    (launch, [QUICK, "--backnd=slurm"], "did you mean '--backend'?"),
    (launch, [QUICK, "--backend=slrum"], "invalid choice: 'slrum'"),
    (generate, ["--promt=a"], "did you mean '--prompt'?"),
    (generate, ["--prompt=a", "--max_new_tokens=many"], "invalid int value: 'many'"),
    (distill, ["--modle=tiny"], "did you mean '--model'?"),
    (distill, ["--model=tiny"], "required: --prompts, --out"),
    (datastore, ["--txt=a"], "did you mean '--text'?"),
    (readme_tables, ["--reame=README.md"], "did you mean '--readme'?"),
)


@pytest.mark.parametrize(("module", "arguments", "said"), MISTAKES)
def test_a_mistake_is_one_line(module, arguments, said, capsys):
    assert module.main(arguments) == command_line.MISTAKE
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
    assert error.startswith("ConfigError: ") and error.count("\n") == 1


def test_a_group_that_was_forgotten_is_found(capsys):
    heads = "--config=configs/heads/hydra.py"
    assert run.main([heads, "--workdir=w", "--config.save_every=3"]) == 2
    assert "did you mean 'train.save_every'?" in capsys.readouterr().err


def test_flags_are_read_in_both_forms():
    parser = command_line.Parser("m", "about")
    parser.add_argument("--number", type=int)
    assert parser.read(["--number", "3"]).number == 3
    assert parser.read(["--number=3"]).number == 3
    with pytest.raises(ConfigError, match="unknown flag --numb"):
        parser.read(["--numb=3"])  # planted: argparse takes an abbreviation


@pytest.mark.parametrize("module", [run, preflight, launch, generate, distill])
def test_help(module, capsys):
    assert module.main(["--help"]) == 0
    assert "usage: python -m" in capsys.readouterr().out


def interrupted(number: int, arguments: list[str]) -> int:
    """The status of a command that gets a signal."""

    def body(_: list[str]) -> int:
        with preemption.watch():
            os.kill(os.getpid(), number)
        return 0

    return command_line.call("experiments.run", body, arguments, resumes=True)


def test_an_interruption_names_the_command_that_resumes(capsys, monkeypatch):
    """Quoted for a shell. Planted: joined by blanks."""
    line = "resume: python -m experiments.run '--workdir=a b' --config=c.py\n"
    arguments = ["--workdir=a b", "--config=c.py"]
    assert interrupted(signal.SIGINT, arguments) == 130
    assert capsys.readouterr().err == f"interrupted; {line}"
    assert interrupted(signal.SIGTERM, arguments) == 75
    error = capsys.readouterr().err
    assert error == f"SIGTERM: finished files are kept; {line}"
    assert " ".join(arguments) not in error
    monkeypatch.setenv(command_line.LAUNCHED, "1")  # its launcher prints the line
    assert interrupted(signal.SIGINT, arguments) == 130
    assert capsys.readouterr().err == ""
