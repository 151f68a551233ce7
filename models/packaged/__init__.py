"""Models and heads that ship with the project, by name."""

import pathlib

MODELS = {
    "tiny": "tiny",
    "tiny-draft": "tiny_draft",
    "tiny_diffusion": "tiny_diffusion",
}
HEADS = {"tiny-eagle2": "tiny_eagle2", "tiny-fspad": "tiny_fspad"}


def folder(name: str) -> pathlib.Path:
    """Return the folder of a packaged model or head; KeyError for other names."""
    return pathlib.Path(__file__).parent / {**MODELS, **HEADS}[name]
