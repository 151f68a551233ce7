"""The command that streams one text."""

import pytest

import decoding
import models
from decoding.block_width import tuning
from decoding.prompts import specpc
from experiments import generate
from models.errors import MethodError, PromptError
from tests.experiments import conftest


@pytest.fixture
def loaded(lm, draft, monkeypatch):
    given = {"tiny": lm, "tiny-draft": draft}
    monkeypatch.setattr(models, "load", lambda name, mesh="auto": given[name])
    return lm


def test_streams_the_text_and_its_figures(loaded, capsys):
    arguments = ["--prompt=def main(", "--max_new_tokens=12", "--method=prompt_lookup"]
    assert generate.main(arguments) == 0
    said = capsys.readouterr().out
    assert said.startswith("def main(")
    assert "12 tokens in" in said and "accepted by depth" in said


def test_streamed_text_is_the_batch_text(loaded, lm):
    shown = []
    prompt = lm.tokenizer.encode("text")
    stream = generate.Streamer(lm, len(prompt), lambda s, d: shown.append((s, d)))
    found = decoding.generate(lm, [prompt], "prompt_lookup", 20, loop=stream)
    whole = decoding.generate(lm, [prompt], "prompt_lookup", 20)
    assert "".join(s for s, _ in shown) == whole.texts[0] == found.texts[0]
    assert [d for _, d in shown[:-1]] == whole.origin[0]


def test_a_shortened_prompt(loaded, lm, draft, capsys):
    """The text is that of the tokens that SpecPC keeps, and their number is told."""
    text = "".join(f"value_{i} = {i}\n" for i in range(12))
    flags = [f"--prompt={text}", "--max_new_tokens=6", "--compress_prompt=64"]
    assert generate.main([*flags, "--no-echo"]) == 0
    said = capsys.readouterr().out
    short = specpc.compress(draft, [text], 64)
    assert f"SpecPC keeps 64 of {short.whole[0]} tokens of the prompt" in said
    assert decoding.generate(lm, short.prompts, max_new_tokens=6).texts[0] in said
    with pytest.raises(MethodError, match="cap=8, window=64"):
        generate.body([*flags[:-1], "--compress_prompt=8"])


def test_texts_of_a_search(loaded, lm, capsys):
    """The best text alone, or several with their scores; no search, no --n."""
    flags = ["--prompt=def main(", "--max_new_tokens=6", "--method=beam"]
    generate.body(flags)
    best = capsys.readouterr().out
    generate.body([*flags, "--n=2"])
    both = capsys.readouterr().out
    out = decoding.generate(lm, ["def main("], "beam", max_new_tokens=6, n=2)
    assert out.texts[0][0] in best and "6 rounds ran" in best
    assert out.texts[0][1] not in best and out.texts[0][1] in both
    assert f"[{out.scores[0][1]:.4f}]" in both
    generate.body([*flags[:-1], "--method=icn", "--n=2"])
    looped = capsys.readouterr().out
    assert "\n[0.0000] " in looped and "\n[-1.0000] " in looped
    assert "24 tokens in 24 target calls" in looped
    with pytest.raises(PromptError, match="--n=2 prints texts of a search"):
        generate.body(["--prompt=a", "--n=2"])


def test_flags_of_ends_scores_and_echo(loaded, lm, capsys):
    """Planted: the same command without them."""
    bare = ["--prompt=def main(", "--max_new_tokens=12", "--method=prompt_lookup"]
    text = decoding.generate(lm, ["def main("], "prompt_lookup", 12)
    last = text.tokens[0][3]
    first = text.tokens[0].index(last)
    asked = [*bare, f"--stop_token_ids={last}", "--top_logprobs=2", "--no-echo"]
    assert generate.main(asked) == 0
    said = capsys.readouterr().out
    assert not said.startswith("def main(") and f"{first + 1} tokens in" in said
    token, value = lm.tokenizer.decode([text.tokens[0][0]]), text.logprobs[0][0]
    assert f"{token!r} {value:.2f}:  {token!r} {value:.2f}" in said
    assert generate.main(bare) == 0
    assert "12 tokens in" in capsys.readouterr().out
    assert generate.main([*bare, "--top_logprobs=5000"]) == 2
    assert f"use 0 to {lm.model.config.vocab_size}" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(
    "arguments", [[], ["--prompt=a", "--method=nothing"], ["--prompt=a", "--sed=1"]]
)
def test_mistakes_are_explained(loaded, capsys, arguments):
    assert generate.main(arguments) == 2
    assert "Error" in capsys.readouterr().err


def test_a_method_is_looked_up_before_a_prompt_is_missed(capsys):
    assert generate.main(["--method=token_recycle"]) == 2
    assert "did you mean 'token_recycling'" in capsys.readouterr().err
    assert generate.main(["--method=token_recycling"]) == 2
    assert "no prompt" in capsys.readouterr().err


def test_mesh_of_the_flag(capsys):
    """It reaches the model, which has one device here."""
    assert generate.main(["--prompt=a", "--mesh=data=3"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "whose product is 1" in said


def test_tune_measures_what_is_decoded(loaded, monkeypatch, capsys):
    """The same sizes, temperature and transforms; its times are printed first."""
    asked = []

    def tune(lm, method, *fields, **more):
        asked.append(fields)
        return tuning.Times((1, 4), 1.25, (1.5, 2.0), 0.1)

    monkeypatch.setattr(generate.decoding, "tune", tune)
    arguments = ["--prompt=def main(", "--method=prompt_lookup", "--max_new_tokens=4"]
    transform = "--transform=transforms/top_k(k=9)"
    assert generate.main([*arguments, "--tune", "--temperature=0.8", transform]) == 0
    tokens = len(loaded.tokenizer.encode("def main("))
    (fields,) = asked
    assert fields[:4] == (1, tokens, 4, 0.8) and fields[4] == {}
    assert fields[5] == [decoding.Spec("transforms/top_k", k=9)]
    said = capsys.readouterr().out
    assert "1.25 without a draft" in said and "4: 2.00" in said
    assert generate.main(arguments) == 0 and len(asked) == 1  # planted: not asked for


def test_draft_of_the_recipe(loaded, draft, monkeypatch, capsys):
    def refuse(lm, prompts, method, drafts, **rest):
        assert drafts == {"draft": draft} and rest["temperature"] == 0.8
        raise MethodError("seen")

    monkeypatch.setattr(generate.decoding, "generate", refuse)
    arguments = ["--prompt=a", "--method=model_chain", "--temperature=0.8"]
    assert generate.main(arguments) == 2
    assert "seen" in capsys.readouterr().err


def test_model_of_the_recipe(monkeypatch, capsys):
    """Planted: --model goes before it, and plain decoding names none."""
    asked = []

    def refuse(name, mesh="auto"):
        asked.append(name)
        raise MethodError("seen")

    monkeypatch.setattr(models, "load", refuse)
    for flags in (["--method=dual"], ["--method=dual", "--model=llada"], []):
        assert generate.main(["--prompt=a", *flags]) == 2
    assert asked == ["tiny_diffusion", "llada", "tiny"]


def test_a_grammar(monkeypatch, tmp_path, capsys):
    """A whole text, where it was held, and that its forced part took few calls.

    Planted: the same text a byte a call.
    """
    ending = conftest.make(1, 0, eos=(0,))
    monkeypatch.setattr(models, "load", lambda name, mesh="auto": ending)
    monkeypatch.setenv("DECODAX_WIDTH", "paper")
    file = tmp_path / "schema.json"
    file.write_text('{"type": "object", "properties": {"identifier": {"const": 1}}}')
    asked = ["--prompt=a", f"--json_schema={file}", "--whitespace=compact"]
    asked.append("--max_new_tokens=24")
    assert generate.main(asked) == 0
    said = capsys.readouterr().out
    assert "engine: device; host syncs: 0; forced tokens: " in said
    assert "a whole text of the grammar" in said
    assert generate.main([*asked, "--no-jump_forward"]) == 0
    plain = capsys.readouterr().out
    calls = [int(x.split(" target calls")[0].split()[-1]) for x in (said, plain)]
    assert calls[0] < calls[1]
    with pytest.raises(PromptError, match=r"whitespace.* without a grammar"):
        generate.body(["--prompt=a", "--whitespace=compact"])
