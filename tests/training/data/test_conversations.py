"""Conversations: both forms, masks by the template, and the doctor's findings."""

import dataclasses
import json

import numpy as np
import pytest

import models
from models.errors import DataError
from training.data import (
    conversations,
    documents,
    inspect_conversations,
    sources,
    text_corpus,
)

CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{{ '<|endoftext|>' if m.role == 'assistant' else '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# Says what was said last in another way than what was said before.
FORGETFUL = CHATML.replace("{{ m.content }}", "{{ m.content if loop.last else '-' }}")
SHARE = {
    "conversations": [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "import os?"},
        {"from": "gpt", "value": "import os"},
        {"from": "human", "value": "and sys?"},
        {"from": "gpt", "value": "import sys\nimport os"},
    ]
}
PLAIN = {
    "messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y = 1"},
    ]
}


@pytest.fixture(scope="module")
def lm():
    return model(CHATML)


def model(template):
    found = models.load("tiny")
    own = type(found.tokenizer)(
        found.tokenizer.inner, found.config.eos, found.tokenizer.settings, template
    )
    return dataclasses.replace(found, tokenizer=own)


def load(lm, path):
    return documents.read(lm, str(path), sources.EVERY, path.parent, path.parent)


def write(path, *rows):
    path.write_text("\n".join(x if type(x) is str else json.dumps(x) for x in rows))
    return path


def test_the_mask_is_what_the_assistant_says(lm, tmp_path):
    path = write(tmp_path / "a.jsonl", SHARE, "", PLAIN)
    one, two = (conversations.Conversation(t, m[:-1]) for t, m in zip(*load(lm, path)))
    said = [
        lm.tokenizer.decode(run.tolist())
        for run in inspect_conversations.masked_runs(one)
    ]
    assert said == ["import os", "import sys\nimport os"]
    assert all(
        run[-1] == lm.config.eos[0] for run in inspect_conversations.masked_runs(one)
    )
    assert two.mask.any() and not two.mask[0]
    # Planted: the human's words in its place.
    human = lm.tokenizer.decode(one.tokens[~one.mask].tolist())
    assert "import os?" in human and "import sys" not in human
    texts, masks = load(lm, path)
    assert not any(mask[-1] for mask in masks)  # the separator is nobody's
    assert (
        text_corpus.Corpus(texts, 0, masks).mask.sum()
        == one.mask.sum() + two.mask.sum()
    )


def test_lines_that_cannot_be_used_are_named(lm, tmp_path):
    for bad, why in (
        ("{", "line 2"),
        ({"conversations": []}, "no messages"),
        ({"messages": [{"role": "judge", "content": "x"}]}, "role 'judge'"),
        ({"messages": [{"role": "user", "content": None}]}, "NoneType"),
    ):
        with pytest.raises(DataError, match=why) as error:
            load(lm, write(tmp_path / "b.jsonl", PLAIN, bad))
        assert "line 2" in str(error.value)
    none = {"messages": PLAIN["messages"][:1]}
    with pytest.raises(DataError, match="zero everywhere"):
        load(lm, write(tmp_path / "c.jsonl", none))
    with pytest.raises(DataError, match="otherwise once it goes on"):
        load(model(FORGETFUL), write(tmp_path / "d.jsonl", SHARE))


def test_the_doctor_s_findings(lm, tmp_path):
    """Shares by hand; text of the target's own agrees with it, noise does not."""
    path = write(tmp_path / "a.jsonl", SHARE, PLAIN, "{", {"messages": []})
    found = inspect_conversations.examine(lm, path, sample=0)
    one, two = (
        conversations.render(lm, conversations.messages(r)) for r in (SHARE, PLAIN)
    )
    assert (found.lines, found.usable, found.lost_answers) == (4, 2, 0)
    assert found.coverage == (one.mask.sum() + two.mask.sum()) / (
        len(one.tokens) + len(two.tokens)
    )
    assert found.refused["no JSON"] == 1 and "line 3" in found.first_refused
    assert found.turns_by_role == {"system": 1, "user": 3, "assistant": 3}
    assert found.ended_answers == 1.0 and found.agreement is None
    assert len(found.troubles) == 1 and "2 of 4 lines" in found.troubles[0]
    bare = CHATML.replace("{{ '<|endoftext|>' if m.role == 'assistant' else '' }}", "")
    found = inspect_conversations.examine(
        model(bare), write(tmp_path / "b.jsonl", SHARE), sample=0
    )
    assert any("no answer's mask holds an EOS" in t for t in found.troubles)
    lossy = CHATML.replace("{{ m.content }}", "{{ m.content[:6] }}")
    found = inspect_conversations.examine(
        model(lossy), write(tmp_path / "c.jsonl", SHARE), sample=0
    )
    assert found.lost_answers == 2


def test_agreement_is_the_share_of_the_target_s_own_tokens(lm):
    """Greedy text of the target: all of it; planted: labels one token off."""
    import decoding

    prompt = lm.tokenizer.encode("def main(")
    text = decoding.generate(lm, [prompt], max_new_tokens=24).tokens[0]
    tokens = np.asarray([*prompt, *text], np.int32)
    mask = np.arange(len(tokens)) >= len(prompt)
    share, places = inspect_conversations.agreement(
        lm, [conversations.Conversation(tokens, mask)]
    )
    assert share > 0.95 and places == len(text)
    moved = np.concatenate([tokens[: len(prompt)], tokens[len(prompt) + 1 :], [5]])
    share, _ = inspect_conversations.agreement(
        lm, [conversations.Conversation(moved.astype(np.int32), mask)]
    )
    assert share < 0.9


def test_the_command(lm, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(inspect_conversations.models, "load", lambda name: lm)
    path = write(tmp_path / "a.jsonl", SHARE)
    status = inspect_conversations.main(
        [f"--data={path}", "--model=tiny", "--sample=1"]
    )
    text = capsys.readouterr().out
    assert "lines         1, usable 1" in text and "agreement" in text
    assert status == ("TROUBLE" in text)
    assert (
        inspect_conversations.main(["--model=tiny", f"--data={tmp_path / 'none'}"]) == 2
    )
