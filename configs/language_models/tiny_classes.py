"""The class-conditional model `tiny_classes`: WikiText against novels, for GeDi.

Command:  python -m experiments.run --config=configs/language_models/tiny_classes.py
              --workdir=runs/tiny_classes --config.data.source=DIRECTORY
Hardware: 2 CPU cores, some 20 minutes, after configs/language_models/tiny_text.py,
whose tokenizer it shares.

DIRECTORY is that of `tiny_text`; only novels and WikiText-2's training articles are
read. Before every paragraph stands the code of its class, one byte that no text holds:
`WIKIPEDIA` or `NOVELS`. A stream of `transforms/gedi` is this model with prompts that
begin with a code: `Stream(lm.model, "classes", [[code, *prompt], ...])`.
"""

import ml_collections

from configs.language_models import tiny_text

WIKIPEDIA, NOVELS = "\x01", "\x02"
# Novels come with a line a paragraph, or with wrapped lines and blank ones between.
PARAGRAPHS = r"\n{2,}|(?<=[^\n]{80})\n"


def get_config() -> ml_collections.ConfigDict:
    """Return a smaller `tiny_text` on paragraphs, each behind its class's code."""
    c = tiny_text.get_config()
    c.name = "tiny_classes"
    c.command = (
        "python -m experiments.run --config=configs/language_models/tiny_classes.py "
        "--workdir=runs/tiny_classes --config.data.source=DIRECTORY"
    )
    c.model.d_model = 128
    c.model.n_layers = 4
    c.model.n_heads = 4
    c.model.n_kv_heads = 2
    c.model.d_ff = 384
    c.data.tokenizer = "runs/tiny_text/tokenizer.json"
    c.data.parts = (
        {
            "files": "english_novels/*.jsonl.gz",
            "fields": ("text",),
            "between": PARAGRAPHS,
            "before": NOVELS,
        },
        {"files": "wikitext2/wiki.train*.gz", "between": r"\n+", "before": WIKIPEDIA},
    )
    c.data.stages = ((1500, 8, 512),)
    c.data.repeat_share = 0.0
    c.data.markers = ()
    c.train.decay = 500
    c.evaluate.window = 512
    c.evaluate.context = 128
    c.evaluate.seen_marker = ""
    c.evaluate.unseen_marker = ""

    c.card.license = "cc-by-sa-3.0"
    c.card.about = (
        "paragraphs of novels and of encyclopaedia articles, each behind a code"
    )
    c.card.origin = (
        "42 English novels of 1839-1928 and WikiText-2's training articles, by "
        "paragraph. The byte 1 before a paragraph stands for an article, the byte 2 "
        "for a novel. Paragraphs under 64 characters and duplicates are left out; the "
        "rest is split by the SHA-256 of the text"
    )
    c.card.licence = "The novels are in the public domain, WikiText-2 is CC BY-SA 3.0."
    return c
