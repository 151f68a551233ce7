"""What `experiments.launch --dry_run` prints: `python tests/golden/make_launch.py`.

Writes tests/golden/launch/<name>.txt for every command below.
"""

import contextlib
import io
import os
import pathlib
import sys
import tempfile
from unittest import mock

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "launch"

QUICK = ["--config=configs/quickstart.py", "--workdir=runs/quick"]
HEADS = ["--config=configs/heads/eagle.py", "--workdir=/nfs/eagle"]
COMMANDS = {
    "local": [*QUICK, "--num_processes=2", "--devices_per_process=2"],
    "local_sweep": [
        *QUICK,
        "--config.prompts=2",
        "--sweep=seed=1,2",
        "--sweep=config.tasks=('code',),('text', 'copy')",
    ],
    "slurm": [
        *HEADS,
        "--backend=slurm",
        "--nodes=4",
        "--tasks_per_node=8",
        "--sweep=train.rate=1e-3,1e-4",
        "--extra=--partition=gpu",
        "--accelerator=h100",
        "--directory=/nfs/decodax",
        "--setup=module load cuda/12.6",
        "--setup=. .venv/bin/activate",
        "--time=2-00:00:00",
    ],
    "gcluster": [
        *HEADS,
        "--backend=gcluster",
        "--image=europe-docker.pkg.dev/lab/images/decodax:1",
        "--cluster=pods",
        "--location=europe-west4-b",
        "--project=lab",
        "--accelerator=v5litepod-16",
        "--topology=4x4",
        "--config.seed=3",
    ],
    "gcloud": [
        *HEADS,
        "--backend=gcloud",
        "--location=europe-west4-b",
        "--accelerator=v5litepod-16",
        "--runtime=v2-alpha-tpuv5-lite",
        "--sweep=seed=1,2",
        "--extra=--spot",
        "--setup=. .venv/bin/activate",
        "--time=08:00:00",
    ],
}


@contextlib.contextmanager
def somewhere():
    """A folder of its own in which `configs/` is this project's."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(ROOT / "configs", pathlib.Path(folder) / "configs")
        os.chdir(folder)
        try:
            yield pathlib.Path(folder)
        finally:
            os.chdir(before)


def printed(arguments: list[str]) -> str:
    """The output of a dry run; absolute folders are put below the present one."""
    from experiments.launch import command

    here = os.getcwd()
    others = {n: v for n, v in os.environ.items() if not n.startswith("DECODAX_")}
    told = {**others, "DECODAX_CACHE": "/scratch/compiled programs"}
    given = [a.replace("=/nfs", f"={here}/nfs") for a in arguments]
    said = io.StringIO()
    exact = mock.patch.dict(os.environ, told, clear=True)
    with exact, contextlib.redirect_stdout(said):
        assert command.main([*given, "--dry_run"]) == 0
    return said.getvalue().replace(here, "")


def main() -> None:
    sys.path.insert(0, str(ROOT))
    GOLDEN.mkdir(exist_ok=True)
    for name, arguments in COMMANDS.items():
        with somewhere():
            text = printed(arguments)
        (GOLDEN / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main()
