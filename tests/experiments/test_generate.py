"""The command that streams one text."""

import pytest

import models
from experiments import generate
from models.errors import MethodError


@pytest.fixture
def loaded(lm, draft, monkeypatch):
    given = {"tiny": lm, "tiny-draft": draft}
    monkeypatch.setattr(models, "load", lambda name, mesh="auto": given[name])


def test_streams_the_text_and_its_figures(loaded, capsys):
    arguments = ["--prompt=def main(", "--max_new_tokens=12", "--method=prompt_lookup"]
    assert generate.main(arguments) == 0
    said = capsys.readouterr().out
    assert said.startswith("def main(")
    assert "12 tokens in" in said and "accepted by depth" in said


def test_streamed_text_is_the_batch_text(loaded, lm):
    import decoding

    shown = []
    prompt = lm.tokenizer.encode("text")
    stream = generate.Streamer(lm, len(prompt), lambda s, d: shown.append((s, d)))
    found = decoding.generate(lm, [prompt], "prompt_lookup", 20, loop=stream)
    whole = decoding.generate(lm, [prompt], "prompt_lookup", 20)
    assert "".join(s for s, _ in shown) == whole.texts[0] == found.texts[0]
    assert [d for _, d in shown[:-1]] == whole.origin[0]


@pytest.mark.parametrize(
    "arguments", [[], ["--prompt=a", "--method=nothing"], ["--prompt=a", "--sed=1"]]
)
def test_mistakes_are_explained(loaded, capsys, arguments):
    assert generate.main(arguments) == 2
    assert "Error" in capsys.readouterr().err


def test_mesh_of_the_flag(capsys):
    """It reaches the model, which has one device here."""
    assert generate.main(["--prompt=a", "--mesh=data=3"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "whose product is 1" in said


def test_draft_of_the_recipe(loaded, draft, monkeypatch, capsys):
    def refuse(lm, prompts, method, drafts, **rest):
        assert drafts == {"draft": draft} and rest["temperature"] == 0.8
        raise MethodError("seen")

    monkeypatch.setattr(generate.decoding, "generate", refuse)
    arguments = ["--prompt=a", "--method=model_chain", "--temperature=0.8"]
    assert generate.main(arguments) == 2
    assert "seen" in capsys.readouterr().err
