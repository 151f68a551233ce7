"""Model cards, exported beside weights; their text is in *_card.md.j2."""

import platform
from typing import Any

import jinja2

TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("training.runs", ""),
    autoescape=False,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)


def language_model(config: Any, figures: dict[str, Any]) -> str:
    """Fill a language model's card from its config and measured figures."""
    origin = config.card.origin.format(python=platform.python_version())
    template = TEMPLATES.get_template("language_model_card.md.j2")
    return template.render(config=config, figures=figures, origin=origin)


def diffusion_model(config: Any, figures: dict[str, Any]) -> str:
    """Fill a masked diffusion model's card from its config and measured figures."""
    origin = config.card.origin.format(python=platform.python_version())
    template = TEMPLATES.get_template("diffusion_model_card.md.j2")
    return template.render(config=config, figures=figures, origin=origin)


def heads(config: Any, figures: dict[str, Any]) -> str:
    """Fill the card of draft heads from their config and measured figures."""
    template = TEMPLATES.get_template("draft_head_card.md.j2")
    return template.render(config=config, figures=figures, first_guesses=first_guesses)


def first_guesses(measured: dict[str, float]) -> str:
    """Write how often the first guess is right, by depth."""
    shares = (measured[n] for n in sorted(measured) if n.startswith("top1_"))
    return " ".join(f"{share:.0%}" for share in shares)
