"""The command that asks questions."""

import json

import pytest

from experiments import multiple_choice as command
from training.evaluation.multiple_choice import Likelihood


def test_a_command_line(tmp_path, capsys, monkeypatch):
    """Planted: a scorer that prefers the last answer."""
    path = tmp_path / "questions.jsonl"
    row = {"question": "import", "answers": [" os", " banana"], "right": 0}
    path.write_text(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    first = lambda lm, asked, *rest: [
        [Likelihood(float(i), 0.0, 1) for i, _ in enumerate(q.answers)] for q in asked
    ]
    flags = [f"--data={path}", "--questions=0"]
    monkeypatch.setattr(command.multiple_choice, "answered", first)
    assert command.main(flags) == 0
    assert "accuracy 1.000 ± 0.000 of 2 questions" in capsys.readouterr().out
    last = lambda *about: [row[::-1] for row in first(*about)]
    monkeypatch.setattr(command.multiple_choice, "answered", last)
    assert command.main(flags) == 0
    assert "accuracy 0.000" in capsys.readouterr().out
    assert command.main(["--draw=2"]) == 2
    assert "--draws" in capsys.readouterr().err


@pytest.mark.long
def test_code_of_the_library(capsys):
    """An autoregressive model is far above chance on 12 questions of four answers."""
    assert command.main(["--model=tiny", "--questions=12"]) == 0
    words = capsys.readouterr().out.split()
    assert float(words[1]) > 0.6 and "0.250" in words
