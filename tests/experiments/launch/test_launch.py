"""Launching: points of a sweep, dry runs word for word, processes that end together."""

import json
import os
import pathlib
import shlex
import signal
import subprocess
import threading
import time

import pytest

from experiments import run_folder
from experiments.launch import command, local_processes, schedulers, sweep
from experiments.reporting import sweep_report
from models.errors import ConfigError
from tests.golden import make_launch

CHILD = "tests.experiments.launch.local_child"
QUICK = str(make_launch.ROOT / "configs" / "quickstart.py")


@pytest.mark.parametrize("name", make_launch.COMMANDS)
def test_dry_runs(name):
    """Word for word; remade by `python tests/golden/make_launch.py`."""
    with make_launch.somewhere() as folder:
        said = make_launch.printed(make_launch.COMMANDS[name])
        written = [p.name for p in folder.rglob("*.s*") if p.is_file()]
    assert said == (make_launch.GOLDEN / f"{name}.txt").read_text()
    assert ("submit.sh" in written) == (not name.startswith("local"))


@pytest.mark.parametrize("name", ["slurm", "gcloud", "gcluster"])
def test_dry_runs_are_shell(name, tmp_path):
    """bash reads them, and finds the arguments of every point as they were."""
    text = (make_launch.GOLDEN / f"{name}.txt").read_text()
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    if name != "slurm":
        return
    script = text[text.index("#!/bin/bash") : text.index("# /nfs/eagle/submit.sh")]
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text("echo activated\n")
    stub = (
        "cd() { echo cd $@; }; module() { echo module $@; }; scontrol() { echo $@; }\n"
    )
    stub += "srun() { echo $DECODAX_CACHE; printf '%s\\n' \"$@\"; return 75; }\n"
    for i, rate in enumerate(("1e-3", "1e-4")):
        told = {"SLURM_ARRAY_TASK_ID": str(i), "SLURM_ARRAY_JOB_ID": "9"}
        done = subprocess.run(
            ["bash", "-c", stub + script],
            cwd=tmp_path,
            env={**os.environ, **told},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 75, done.stderr
        lines = done.stdout.splitlines()
        assert lines[:3] == ["cd /nfs/decodax", "module load cuda/12.6", "activated"]
        assert lines[3] == "/scratch/compiled programs"
        assert f"--config.train.rate={rate}" in lines and f"requeue 9_{i}" in lines
        assert f"--workdir=/nfs/eagle/train.rate={rate}" in lines


WANTED = {
    "slurm": ("cd ", "activate", "DECODAX_CACHE=", "--time=", "--gpus-per-node="),
    "gcloud": ("cd ", "activate", "DECODAX_CACHE=", "timeout ", "--accelerator-type="),
    "gcluster": ("DECODAX_CACHE=", "exec timeout ", "--compute-type="),
}


def lacking(name: str, text: str) -> list[str]:
    """What a job's script leaves to chance."""
    return [words for words in WANTED[name] if words not in text]


@pytest.mark.parametrize("name", WANTED)
def test_jobs_carry_their_environment(name):
    """Planted: a script without one of these lines."""
    text = (make_launch.GOLDEN / f"{name}.txt").read_text()
    assert lacking(name, text) == []
    for words in WANTED[name]:
        assert lacking(name, text.replace(words, "")) == [words]


def test_defaults_of_a_job(tmp_path, monkeypatch):
    """This folder, the active environment, a day, and a GPU for each task."""
    monkeypatch.setenv("VIRTUAL_ENV", "/opt/my env")
    arguments = [f"--config={QUICK}", "--backend=slurm", "--tasks_per_node=2"]
    flags, _ = command.parse(arguments)
    runs = sweep.points(QUICK, "w", [], [])
    text = schedulers.slurm(runs, flags).files["job.sbatch"]
    for line in (
        f"cd {os.getcwd()} || exit 1",
        ". '/opt/my env'/bin/activate",
        "#SBATCH --time=1-00:00:00",
        "#SBATCH --gpus-per-node=2",
    ):
        assert line in text.splitlines()
    flags, _ = command.parse([*arguments, "--gpus_per_node=0", "--setup=true"])
    text = schedulers.slurm(runs, flags).files["job.sbatch"]
    assert "gpus" not in text and "my env" not in text
    assert schedulers.seconds("1-02:03:04") == 93784
    for wrong in ("90", "1:00", "00:00:00", "1 day"):
        with pytest.raises(ConfigError, match="--time"):
            schedulers.seconds(wrong)


def test_points():
    """A product of values, each in a folder of its own; commas in brackets are kept."""
    runs = sweep.points(QUICK, "w/", ["--config.repeats=1"], ["seed=1,2", "prompts=3"])
    assert [r.workdir for r in runs] == ["w/seed=1,prompts=3", "w/seed=2,prompts=3"]
    assert runs[1].arguments[-3:] == (
        "--config.repeats=1",
        "--config.seed=2",
        "--config.prompts=3",
    )
    assert sweep.split("(1, 2),'a,b',3") == ["(1, 2)", "'a,b'", "3"]
    assert [r.workdir for r in sweep.points(QUICK, "w", [], [])] == ["w"]
    assert command.parse([f"--config={QUICK}"])[0].workdir == "runs/quickstart"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (["prompts"], "FIELD=VALUE"),
        (["prompts=1,1"], "twice"),
        (["prompts=1", "config.prompts=2"], "twice"),
        (["promts=1"], "did you mean 'prompts'"),
        (["prompts=many"], "overrides"),
        (["drafts.draft=a/b,a b"], "share a folder"),
    ],
)
def test_sweeps_are_checked(fields, said):
    with pytest.raises(ConfigError, match=said):
        sweep.points(QUICK, "w", [], fields)


def test_backends_say_what_they_need(capsys):
    base = [f"--config={QUICK}", "--workdir=w", "--dry_run"]
    for flags, said in (
        (["--backend=gcluster"], "--image, --cluster, --location, --accelerator"),
        (["--backend=gcloud", "--location=x"], "--accelerator, --runtime"),
        (["--num_processes=0"], "num_processes=0"),
    ):
        assert command.main([*base, *flags]) == 2
        assert said in capsys.readouterr().err.replace("\n", " ")
    tpu7x = ["--location=x", "--accelerator=tpu7x-16", "--runtime=r"]
    assert command.main([*base, "--backend=gcloud", *tpu7x]) == 2
    assert "gcluster" in capsys.readouterr().err


def test_processes_are_told_of_each_other(tmp_path):
    assert local_processes.run([str(tmp_path), "ends"], 2, 3, CHILD) == 0
    told = [(tmp_path / f"began{i}").read_text().split() for i in range(2)]
    assert told[0] == told[1] and told[0][:2] == ["3", "2"]
    assert told[0][2].startswith("localhost:")


def test_one_that_fails_ends_the_others(tmp_path, capfd):
    """Within seconds, where the other would have slept for a minute."""
    assert local_processes.run([str(tmp_path), "fails"], 2, 0, CHILD) == 3
    assert (tmp_path / "stopped1").exists()
    assert "process 0 ended with 3" in capfd.readouterr().err


def test_sigterm_is_passed_on(tmp_path):
    """The launcher's own status asks to be started again, too."""

    def stop():
        while not all((tmp_path / f"began{i}").exists() for i in range(2)):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    assert local_processes.run([str(tmp_path), "sleeps"], 2, 0, CHILD) == 75
    thread.join()
    assert all((tmp_path / f"stopped{i}").exists() for i in range(2))


def test_ctrl_c_ends_the_processes(tmp_path):
    """They get SIGTERM, and not the terminal's own SIGINT, which they ignore."""

    def stop():
        while not all((tmp_path / f"began{i}").exists() for i in range(2)):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    logs = [str(tmp_path / "logs" / "process1.log")]
    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        local_processes.run([str(tmp_path), "sleeps"], 2, 0, CHILD, logs)
    thread.join()
    assert all((tmp_path / f"stopped{i}").exists() for i in range(2))
    assert (tmp_path / "began0").read_text().split()[-1] == "ignored"
    assert "process 1" in pathlib.Path(logs[0]).read_text()


def test_fault_a_launcher_that_waits(tmp_path, monkeypatch):
    """Planted: nobody is ended, so that one failure leaves the other asleep."""
    monkeypatch.setattr(
        local_processes.subprocess.Popen, "terminate", lambda self: None
    )
    monkeypatch.setattr(local_processes, "PATIENCE", 0.2)
    assert local_processes.run([str(tmp_path), "fails"], 2, 0, CHILD) == 3
    assert not (tmp_path / "stopped1").exists()


def pointed(folder: pathlib.Path, name: str, lines: list) -> tuple[str, str]:
    table = {"title": "Rows", "heads": ["a", "b"], "lines": lines, "notes": ["said"]}
    whole = {
        "config": {"model": name},
        "hardware": {},
        "versions": {},
        "rows": [],
        "tables": [table],
    }
    run_folder.write(folder / name / "report.json", whole)
    return name, str(folder / name)


def test_one_report_over_all_points(tmp_path):
    points = [
        pointed(tmp_path, "x=1", [["1", "2"]]),
        pointed(tmp_path, "x=2", [["3", "4"]]),
    ]
    points.append(("x=3", str(tmp_path / "absent")))
    sweep_report.write(tmp_path, points)
    text = (tmp_path / "report.md").read_text()
    assert "| x=1 | 1 | 2 |\n| x=2 | 3 | 4 |" in text and text.count("said") == 1
    assert "Without a report so far: x=3" in text
    (tmp_path / "x=1" / "report.html").touch()
    sweep_report.write(tmp_path, points)
    page = (tmp_path / "report.html").read_text()
    assert '<a href="x=1/report.html">' in page and "x=3: no report so far" in page
    assert "<td>x=2</td><td>3</td><td>4</td>" in page
    kept = json.loads((tmp_path / "report.json").read_text())
    assert list(kept["points"]) == ["x=1", "x=2"] and kept["missing"] == ["x=3"]
    (tmp_path / "x=1" / "report.json").write_text("{")
    with pytest.raises(ConfigError, match="run its point again"):
        sweep_report.write(tmp_path, points)


def test_a_sweep_runs_and_resumes(tmp_path, monkeypatch, capsys):
    """Every point once, then nothing new; a point that fails stops the sweep."""
    made = []

    def run(arguments, processes, devices, logs):
        flags = dict(a.split("=", 1) for a in arguments)
        folder = pathlib.Path(flags["--workdir"])
        made.append(folder.name)
        if folder.name == "seed=2" and len(made) == 2:
            return 75
        pointed(folder.parent, folder.name, [[flags["--config.seed"], "x"]])
        return 0

    monkeypatch.setattr(local_processes, "run", run)
    arguments = [f"--config={QUICK}", f"--workdir={tmp_path}", "--sweep=seed=1,2"]
    assert command.main(arguments) == 75
    assert not (tmp_path / "report.md").exists()
    assert command.main(arguments) == 0
    assert made == ["seed=1", "seed=2", "seed=1", "seed=2"]
    said = capsys.readouterr().out
    for name in ("seed=1", "seed=2"):
        folder = tmp_path / name
        assert f"# {name}: folder {folder}, page {folder}/report.html" in said
    assert f"report over all points: {tmp_path}/report.html" in said
    assert "| seed=2 | 2 | x |" in (tmp_path / "report.md").read_text()


def test_commands_of_a_local_run():
    """What is printed is what is started."""
    lines = local_processes.described(("--config=a b",), 2, 1)
    words = shlex.split(lines[1])
    assert "JAX_PROCESS_ID=1" in words and words[-1] == "--config=a b"
    assert words[-4:-1] == ["python", "-m", "experiments.run"]
    assert local_processes.described(("x",), 1, 0) == ["python -m experiments.run x"]


def test_children_find_the_packages():
    """From any folder; planted: the folder that the launcher stands in."""
    packages = {"decoding", "experiments", "models", "training"}
    found = {folder.name for folder in local_processes.ROOT.iterdir()}
    assert packages <= found
    here = {
        path.name for path in local_processes.ROOT.joinpath("experiments").iterdir()
    }
    assert not packages <= here
