"""The masked diffusion model `tiny_diffusion`: `tiny`, adapted to write in any order.

Command:  python -m experiments.run --config=configs/language_models/tiny_diffusion.py
              --workdir=runs/tiny_diffusion
Hardware: 2 CPU cores, some 80 minutes at 1.6 times the cost of `tiny` a token; the
          bounds take another 15.
Then:     python -m experiments.generate --model=runs/tiny_diffusion/export
              --method=fast_dllm ...

`tiny` gets one more embedding row, the mask's (id 4096). Half of the windows are
bidirectional, for schedules without a cache or with an approximate one; the others are
block-causal, for exact caches and for drafting. A word after a colon compares, at equal
tokens:

    :scratch        random first weights
    :same           output i is of token i, not of i + 1
    :same_scratch   both
    :bidirectional  no window block-causal
    :block_causal   all windows block-causal
    :anneal         attention turns from causal to bidirectional over a quarter
"""

import ml_collections

from configs.language_models import tiny
from models.errors import ConfigError

ROWS = 2200 * 8  # of the first stage
SHARES = {"bidirectional": 1.0, "block_causal": 0.0}
VARIANTS = ("", "scratch", "same", "same_scratch", *SHARES, "anneal")


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """Return `tiny`'s data and shape with the fields of masked diffusion.

    Args:
        variant: what is compared with it, a word of the table above.

    Raises:
        ConfigError: another word.
    """
    if variant not in VARIANTS:
        raise ConfigError(f"tiny_diffusion:{variant!r}: use one of {VARIANTS[1:]}")
    c = tiny.get_config()
    c.name = "_".join(filter(None, ("tiny_diffusion", variant)))
    suffix = f":{variant}" if variant else ""
    c.command = (
        "python -m experiments.run --config=configs/language_models/tiny_diffusion.py"
        f"{suffix} --workdir=runs/{c.name}"
    )
    c.start = "" if "scratch" in variant else "tiny"  # gives the first weights
    c.data.tokenizer = "models/packaged/tiny/tokenizer.json"
    c.data.stages = ((ROWS // 8, 8, 512), (20, 2, 2048))
    c.train.muon_rate = 0.01
    c.train.adam_rate = 0.002
    c.train.decay = 750

    c.diffusion = ml_collections.ConfigDict()
    # same, or shifted: the output at a position is of the next one.
    c.diffusion.alignment = "same" if "same" in variant else "shifted"
    # Share of the windows; the others are block-causal.
    c.diffusion.bidirectional = SHARES.get(variant, 0.5)
    # Least and most size of a block-causal window's blocks in training.
    c.diffusion.blocks = (4, 32)
    c.diffusion.block_size = 16  # of block-causal decoding
    # Rows over which attention turns from causal to bidirectional; 0: none.
    c.diffusion.anneal = ROWS // 4 if variant == "anneal" else 0
    c.diffusion.answers_only = False  # True: prompts are never masked

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.windows = 48  # held-out windows
    c.evaluate.bound_window = 256  # tokens of each that the bound is of
    c.evaluate.draws = 128  # of masks, for each window
    c.evaluate.rates = (0.15, 0.5, 0.85)  # masked shares whose hits are measured
    c.evaluate.cases = 32  # windows that are infilled and continued
    c.evaluate.span = 8  # tokens of an infilled span
    c.evaluate.prompt_tokens = 32  # of a text that is continued
    c.evaluate.new_tokens = 64  # of its continuation
    c.notes = ""
    return c
