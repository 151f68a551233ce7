"""What a call of a diffusion model may ask for."""

from typing import Any

from decoding.denoising import composed
from decoding.serving import requests
from models.errors import MethodError, PromptError

# Arguments of `generate` that follow a text from left to right -> what is none.
REFUSED: dict[str, Any] = {
    "top_logprobs": 0,
    "prompt_logprobs": False,
    "prefill_chunk": None,
    "contexts": None,
    "prefixes": None,
    "finish": False,
    "jump_forward": False,
    "memory": None,
    "repetition_penalty": None,
}


def check(lm: Any, settings: requests.Settings) -> None:
    """Refuse what a canvas, or a text that grows at its end, cannot have.

    Raises:
        PromptError: a suffix for an autoregressive model.
        MethodError: an argument that a canvas has no use for.
    """
    if not composed.is_canvas(lm):
        if settings.suffix is not None:
            raise PromptError(
                f"suffix= for {lm}, which writes from left to right: give a diffusion "
                "model, such as tiny_diffusion, or leave it out"
            )
        return
    given = [n for n, none in REFUSED.items() if getattr(settings, n) != none]
    if given:
        raise MethodError(
            f"{given} beside a diffusion model, which writes its text in any order: "
            "leave them out"
        )
