"""Parts of the study `samplers` that are transforms: what each does to texts.

Mirostat, momentum decoding, XTC and DRY; `sampler_streams.py` has those that read a
second law.
"""

import itertools
from typing import Any

from decoding import Method, Spec
from experiments.studies import sampler_texts
from experiments.studies.sampler_texts import Column, Direction, Part, Study

BITS = Column("bits", "bits a token")
REPEATED = Column("repeated", "repeated 4-grams")
LOOPS = Column("loops", "in loops")
DISTINCT = Column("distinct", "distinct 2-grams")
NODES = Column("nodes", "nodes a token", ".2f")


def mirostat(study: Study) -> dict[str, Any]:
    """Sample with targets of surprise, with top-k and with top-p."""
    c = study.config
    lm, prompts = study.model("text_model"), study.novels(c.prompt_tokens)
    forms: dict[str, dict[str, Any]] = {
        _tau(tau): {"transforms": [Spec("transforms/mirostat", target=tau)]}
        for tau in c.mirostat.targets
    }
    forms |= {_top_k(k): {"top_k": k} for k in c.mirostat.top_k}
    forms |= {_top_p(p): {"top_p": p} for p in c.mirostat.top_p}
    forms["the model's law"] = {}
    names = ("bits", "late", "drift", "repeated", "loops")
    arms = {}
    for name, form in forms.items():
        texts = study.generate(lm, prompts, c.max_new_tokens, temperature=1.0, **form)
        arm = sampler_texts.figures(texts, *names)
        known = [x for x in arm["bits"] if x is not None]
        centre = sum(known) / max(len(known), 1)
        arm["spread"] = [x if x is None else abs(x - centre) for x in arm["bits"]]
        arms[name] = arm
    for tau in c.mirostat.targets:
        own = arms[_tau(tau)]
        own["miss"] = [x if x is None else abs(x - tau) for x in own["late"]]
    return {"arms": arms}


def _tau(tau: float) -> str:
    return f"τ = {tau:g}"


def _top_k(k: int) -> str:
    return f"top-k {k}"


def _top_p(p: float) -> str:
    return f"top-p {p:g}"


def of_mirostat(config: Any) -> list[Direction]:
    c = config.mirostat
    others = [*map(_top_k, c.top_k), *map(_top_p, c.top_p)]
    middle = _tau(c.targets[len(c.targets) // 2])
    holds = [
        Direction(f"{words} less than by truncation", figure, other, middle)
        for figure, words in (("spread", "texts differ"), ("drift", "surprise drifts"))
        for other in others
    ]
    loops = [
        Direction("repetition falls as τ rises", "repeated", _tau(a), _tau(b))
        for a, b in itertools.pairwise(c.targets)
    ]
    rises = [
        Direction("surprise follows τ", "bits", _tau(b), _tau(a))
        for a, b in itertools.pairwise(c.targets)
    ]
    return [*rises, *holds, *loops]


MIROSTAT = Part(
    "Mirostat: surprise and repetition, T = 1",
    ("text_model",),
    ("english_novels",),
    mirostat,
    (
        *(BITS, Column("late", "of the second half")),
        *(Column("miss", "its distance from τ"), Column("spread", "spread")),
        Column("drift", "drift"),
        *(REPEATED, LOOPS),
    ),
    of_mirostat,
    lambda found: [
        "bits: mean surprise under the model's law, of a text. spread: its distance "
        "from the arm's mean. drift: |second half − first half|. in loops: share "
        "inside the longest repetition, of at least 30 %.",
    ],
)


def momentum(study: Study) -> dict[str, Any]:
    """Decode greedily, with momentum, and by contrastive search."""
    c = study.config
    lm, prompts = study.model("text_model"), study.novels(c.prompt_tokens)
    forms: dict[str, dict[str, Any]] = {
        "greedy": {},
        "momentum": {"transforms": [Spec("transforms/momentum")]},
        "contrastive": {
            "method": Method(search=Spec("search/contrastive_search", k=c.contrastive))
        },
    }
    names = ("repeated", "loops", "distinct", "bits", "nodes")
    arms = {}
    for name, form in forms.items():
        texts = study.generate(lm, prompts, c.max_new_tokens, **form)
        arms[name] = sampler_texts.figures(texts, *names)
    return {"arms": arms}


MOMENTUM = Part(
    "Momentum decoding, T = 0",
    ("text_model",),
    ("english_novels",),
    momentum,
    (REPEATED, LOOPS, DISTINCT, BITS, NODES),
    lambda config: [
        Direction("repeats less than greedy", "repeated", "greedy", "momentum"),
        Direction("fewer loops than greedy", "loops", "greedy", "momentum"),
        Direction(
            "fewer nodes than contrastive search", "nodes", "contrastive", "momentum"
        ),
        Direction(
            "repeats no more than contrastive search",
            *("repeated", "contrastive", "momentum"),
        ),
    ],
    lambda found: ["nodes: run by the target, the prompt's not counted."],
)


def xtc(study: Study) -> dict[str, Any]:
    """Sample with and without XTC at one temperature."""
    c = study.config
    lm, prompts = study.model("text_model"), study.novels(c.prompt_tokens)
    arms = {}
    for name, specs in (("none", []), ("XTC", [Spec("transforms/xtc")])):
        settings = {"temperature": c.xtc_temperature, "transforms": specs}
        texts = study.generate(
            lm, prompts, c.max_new_tokens, top_logprobs=1, **settings
        )
        arms[name] = sampler_texts.figures(texts, "top", "distinct", "repeated", "bits")
    return {"arms": arms}


XTC = Part(
    "XTC",
    ("text_model",),
    ("english_novels",),
    xtc,
    (Column("top", "top choices"), DISTINCT, REPEATED, BITS),
    lambda config: [
        Direction("fewer top choices at equal temperature", "top", "none", "XTC"),
        Direction("more distinct n-grams", "distinct", "XTC", "none"),
    ],
    lambda found: ["top choices: share of tokens that are the raw law's best."],
)


def dry(study: Study) -> dict[str, Any]:
    """Decode greedily and at a low temperature, with and without DRY."""
    c = study.config
    lm, prompts = study.model("text_model"), study.novels(c.prompt_tokens)
    arms = {}
    for temperature in (0.0, c.dry_temperature):
        for name, specs in (("none", []), ("DRY", [Spec("transforms/dry")])):
            settings: dict[str, Any] = {"temperature": temperature, "transforms": specs}
            texts = study.generate(lm, prompts, c.max_new_tokens, **settings)
            arms[_at(name, temperature)] = sampler_texts.figures(
                texts, "suffix", "repeated", "loops", "bits"
            )
    return {"arms": arms}


def _at(name: str, temperature: float) -> str:
    return f"{name}, T = {temperature:g}"


DRY = Part(
    "DRY",
    ("text_model",),
    ("english_novels",),
    dry,
    (Column("suffix", "repeated suffix", ".2f"), REPEATED, LOOPS, BITS),
    lambda config: [
        Direction("shorter repeated suffixes", "suffix", _at("none", t), _at("DRY", t))
        for t in (0.0, config.dry_temperature)
    ],
    lambda found: [
        "repeated suffix: mean over tokens of the length of the longest suffix that "
        "the prompt or the text has had before, in tokens.",
    ],
)
