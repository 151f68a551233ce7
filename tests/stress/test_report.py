"""The report on reliability: its parts, what it keeps, and what it calls wrong."""

import pytest

from tests.stress import kill_and_resume, report


@pytest.mark.long
def test_report(tmp_path, monkeypatch):
    asked = []

    def kill(kind, folder, killed, preempted, seed=0, note=print):
        asked.append((kind, killed, preempted))
        wrong = ["run3 differs"] if seed == 1 else []
        return kill_and_resume.Tally(killed, preempted, 2, 4, killed + preempted, wrong)

    monkeypatch.setattr(kill_and_resume, "kill", kill)
    out = tmp_path / "reliability.md"
    flags = ["--rounds=3", "--requests=48"]
    command = [f"--workdir={tmp_path / 'w'}", f"--out={out}", *flags]
    assert report.main(command) == 0
    assert asked == [("train", 5, 2), ("train", 5, 2), ("prompts", 5, 2)]
    text = out.read_text()
    assert "| train | 10 | 4 | 4 | 14 | 8 | none |" in text
    assert "run3 differs" in text and " ".join(flags) in text
    lines = [x.split(" | ") for x in text.splitlines() if "| 48 |" in x]
    rounds = [int(x[2]) for x in lines]
    share = [float(x[3].split()[0]) for x in lines]
    assert len(lines) == 2 and rounds[0] < rounds[1] and share[0] > share[1]
    assert "Nonsense" not in text
    assert report.main(command) == 0 and len(asked) == 3  # finished parts are kept
