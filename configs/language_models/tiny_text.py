"""The research target `tiny_text`: `tiny`'s shape and recipe on prose, instructions.

Command:  python -m experiments.run --config=configs/language_models/tiny_text.py
              --workdir=runs/tiny_text --config.data.source=DIRECTORY
Hardware: 2 CPU cores; some 45 minutes at the rate at which `tiny` was trained.
Then:     python -m experiments.generate --model=runs/tiny_text/export ...

DIRECTORY holds the files that `data.parts` names: English novels, WikiText-2's training
articles, Alpaca, and GSM8K's training questions. The model is not shipped: Alpaca is
for research only (CC BY-NC 4.0), as is what was trained on it.
"""

import ml_collections

from configs.language_models import tiny

CHAPTERS = r"\n(?=(?:CHAPTER|Chapter|BOOK|LETTER|[IVXL]+\.?\n|\d+\.?\n))"
ARTICLES = r"\n(?= = [^=\n]+ = \n)"


def get_config() -> ml_collections.ConfigDict:
    """Return `tiny` on text in place of code, with a shorter schedule."""
    c = tiny.get_config()
    c.name = "tiny_text"
    c.command = (
        "python -m experiments.run --config=configs/language_models/tiny_text.py "
        "--workdir=runs/tiny_text --config.data.source=DIRECTORY"
    )
    c.data.source = ""
    c.data.parts = (
        {
            "files": "english_novels/*.jsonl.gz",
            "fields": ("text",),
            "between": CHAPTERS,
        },
        {"files": "wikitext2/wiki.train*.gz", "between": ARTICLES},
        {
            "files": "alpaca/alpaca_data.json.gz",
            "fields": ("instruction", "input", "output"),
        },
        {"files": "gsm8k/train.jsonl.gz", "fields": ("question", "answer")},
    )
    c.data.stages = ((150, 12, 512), (1600, 8, 512), (40, 2, 2048), (8, 2, 4096))
    c.data.markers = (
        "\n\nCopy:\n\n",
        "\n\nThe same again:\n\n",
        "\n\nRepeat the text above.\n\n",
        "\n\nRewrite the text with small changes.\n\n",
        "\n\nEdited:\n\n",
        "\n\nAnswer:\n\n",
        "\n\n* * *\n\n",
        "\n\n---\n\n",
        "\n\n",
        "\n",
        "<|endoftext|>",
    )
    c.train.decay = 500
    c.evaluate.seen_marker = "\n\nCopy:\n\n"
    c.evaluate.unseen_marker = "\n\n=== Once more: ===\n\n"

    c.card.language = "en"
    c.card.license = "research-only"
    c.card.about = "novels, encyclopaedia articles, instructions and sums"
    c.card.origin = (
        "42 English novels of 1839-1928 by chapter, WikiText-2's training articles, "
        "Alpaca's instructions with their answers and GSM8K's training questions with "
        "theirs, a blank line between the parts of each. Documents under 64 characters "
        "and duplicates are left out; the rest is split by the SHA-256 of the text, so "
        "that held-out chapters are of novels whose other chapters were trained on"
    )
    c.card.licence = (
        "The novels are in the public domain, WikiText-2 is CC BY-SA 3.0, GSM8K MIT, "
        "and Alpaca CC BY-NC 4.0: for research only, and not to be passed on."
    )
    c.notes = ""
    return c
