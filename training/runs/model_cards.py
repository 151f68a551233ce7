"""The model cards that are exported beside weights."""

import platform
from typing import Any

CARD = """---
license: other
license_name: {license}
language: {language}
library_name: decodax
---
# {name}

A Llama-style language model of {parameters:,} parameters ({embedding:,} of them in the
tied embedding), trained from scratch on {about}. It is made for research on
decoding, and small enough for a laptop. It is not an assistant and what it
writes is not to be relied on.

| | |
|---|---|
| shape | {layers} layers, width {d_model}, {heads} query and {kv_heads} key-value \
heads of {head_dim}, gated MLP of {d_ff}, {positions} positions |
| vocabulary | {vocab}, byte-level BPE; `<|endoftext|>` (id 0) ends a document |
| weights | bfloat16; every figure below is measured on these rounded weights |
| held-out bits per byte | **{bits:.4f}** ({nats:.4f} nats a token; \
{held_tokens:,} tokens, {held_bytes:,} bytes, {held_files} files) |
| copying, marker seen in training | median {seen_matched:g} of {copy_of} tokens \
({seen_prefix:g} before the first difference), {cases} cases |
| copying, marker never seen | median {unseen_matched:g} of {copy_of} tokens \
({unseen_prefix:g} before the first difference), {cases} cases |

**Bits per byte.** Every token of every validation file is predicted once from at most
{window} tokens before it (at least {context} past a file's first window); the sum of
-log2 p is divided by the UTF-8 bytes of the files.

**Copying.** The prompt is 80 held-out tokens, a marker, and the first 16 of them again;
of the 60 that follow in the passage, how many does greedy decoding give in their place.
The markers are {seen!r} and {unseen!r}.

## Data
`{source}`: {origin} ({train_files} documents for training, {held_files} for
validation); {train_tokens:,} training tokens.

{repeat_share:.0%} of the training windows are rewritten so that they repeat passages of
their own text, verbatim or with small edits, at varying distances and lengths, often
after a marker line. Without such windows a model of this size copies nothing.

## Training
    {command}

{steps} steps, {seen_tokens:,} tokens ({epochs:.2f} passes), {hours:.2f} hours on
{hardware}, float32. Batches and window lengths by stage: {stages}. Muon for the layers'
matrices and Adam for the rest; learning rate: warm-up of {warmup} steps, a plateau, a
linear decay to zero over the last {decay} steps.{notes}

## Licence
{licence}
"""


def render(config: Any, figures: dict[str, Any]) -> str:
    """Fill the card from a config and measured figures."""
    m, t = config.model, config.train
    stages = ", ".join(
        f"{steps} x {batch} x {window}" for steps, batch, window in config.data.stages
    )
    return CARD.format(
        name=config.name,
        layers=m.n_layers,
        d_model=m.d_model,
        heads=m.n_heads,
        kv_heads=m.n_kv_heads,
        head_dim=m.head_dim,
        d_ff=m.d_ff,
        positions=m.max_positions,
        vocab=config.data.vocab_size,
        source=config.data.source,
        about=config.card.about,
        origin=config.card.origin.format(python=platform.python_version()),
        license=config.card.license,
        language=config.card.language,
        licence=config.card.licence,
        repeat_share=config.data.repeat_share,
        stages=f"{stages} (steps x windows x tokens)",
        warmup=t.warmup,
        decay=t.decay,
        command=config.command,
        hardware=config.hardware,
        notes=f" {config.notes}" if config.notes else "",
        **figures,
    )


HEADS = """---
library_name: decodax
---
# {name}

Draft heads ({head}, {parameters:,} parameters, {dtype}) for the target `{target}`.
They guess its next tokens, which the target verifies: they change how fast its text
comes and never which. Heads of another target are refused: `heads.json` names this one
by a hash of its weights, and how the heads are decoded with.

| | untrained | trained |
|---|---|---|
| tokens per target call (held-out prompts, temperature {temperature:g}) \
| {before:.2f} | **{after:.2f}** |
| first guess right, by depth | {before_top} | {after_top} |

{prompts} prompts of {prompt_tokens} tokens with {new_tokens} new ones each, decoded in
the real loop with these rounded weights; a guess is right where the target, at the
temperature above, picks it, on {held:,} tokens of held-out text.

## Training
Recipe `{name}` on `{source}`: {seen:,} tokens in {steps:,} steps, seed {seed},
{seconds:.0f} s. The target is frozen; the terms of that text's licence apply to what
was trained on it.
"""


def heads(config: Any, figures: dict[str, Any]) -> str:
    """The card of trained heads, from their config and measured figures."""
    e = config.evaluate

    def tops(found: dict[str, float]) -> str:
        shares = (found[n] for n in sorted(found) if n.startswith("top1_"))
        return " ".join(f"{share:.0%}" for share in shares)

    before, after = figures["untrained"], figures["trained"]
    return HEADS.format(
        name=config.name,
        head=figures["head"],
        parameters=figures["parameters"],
        dtype=config.export_dtype,
        target=config.model,
        temperature=e.temperature,
        before=before["tau"],
        after=after["tau"],
        before_top=tops(before),
        after_top=tops(after),
        prompts=e.prompts,
        prompt_tokens=e.prompt_tokens,
        new_tokens=e.new_tokens,
        held=e.tokens,
        source=config.data.source,
        seen=figures["seen_tokens"],
        steps=figures["steps"],
        seed=config.seed,
        seconds=figures["seconds"],
    )
