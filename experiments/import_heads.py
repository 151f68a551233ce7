"""Convert published draft heads to a folder that every command decodes with.

python -m experiments.import_heads --model=Qwen3-4B --heads=z-lab/Qwen3-4B-DFlash-b16 \\
    --export=heads/dflash

--heads is a folder, or a repository of the hub. The files of DFlash, DFlash 2, DSpark,
JetSpec, Domino and TreeFlash say in config.json what they are. So do those of vLLM's
speculators: EAGLE, EAGLE-3, P-EAGLE, DFlash, DFlash 2 and DSpark. For Medusa, Hydra,
EAGLE and EAGLE-3 --kind does. The folder's heads.json names a method: a chain of as
many drafts as a block, a pass or heads have, of five for EAGLE's.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import models
from decoding import Method, Spec
from experiments import console
from models import storage
from models.checkpoints import hub
from models.checkpoints.tensors import read_json
from models.errors import CheckpointError, ConfigError
from models.heads import dflash, hydra, medusa, p_eagle
from models.heads.formats import (
    block_files,
    native,
    published,
    speculators,
    speculators_blocks,
    speculators_parallel,
)
from models.heads.modules import decoder_layer
from training import command_line

MODULE = "experiments.import_heads"
CHAIN = 5  # drafts of the method of EAGLE's heads
COUNTED = {"medusa": medusa, "hydra": hydra}  # which draft a token a head


def read(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command's flags."""
    parser = command_line.Parser(MODULE, __doc__)
    add = parser.add_argument
    add("--model", required=True, help="the target that the heads are for")
    add("--heads", required=True, help="folder or repository of the published heads")
    add("--kind", default="", help="medusa, hydra, eagle or eagle3, if no config says")
    add("--export", required=True, help="the folder to write")
    return parser.read(arguments)


def convert(options: argparse.Namespace) -> dict[str, Any]:
    """Convert the heads of a command line, and return heads.json.

    Raises:
        ConfigError: a folder that exists, or heads of which nothing says what they are.
        CheckpointError: tensors that do not fit the target or the config.
    """
    folder = storage.path(options.export)
    if folder.exists():
        raise ConfigError(f"--export={options.export} exists: give a new folder")
    lm = models.load(options.model)
    kind, params, arguments = loaded(options.heads, lm, options.kind)
    about = {
        "head": kind,
        "target": options.model,
        "fingerprint": native.fingerprint(lm.params),
        "method": method(kind, params, arguments).to_config(),
    }
    native.save(folder, params, about)
    return about


def loaded(heads: str, lm: Any, kind: str = "") -> tuple[str, Any, dict[str, Any]]:
    """Read published heads: their kind, params, and the drafter's arguments.

    Args:
        heads: a folder, or a repository of the hub.
        lm: the target, as `models.load` returns it.
        kind: of `published.KINDS`; "": config.json says.
    """
    folder = hub.local(heads)
    embedding = lm.params["embedding"]["tokens"]
    if kind:
        if kind not in published.KINDS:
            raise ConfigError(f"--kind={kind!r}: use one of {published.KINDS}")
        return kind, *published.load(kind, folder, lm.config, embedding)
    beside = folder / "config.json"
    if not beside.exists():
        raise CheckpointError(
            f"{heads} has no config.json: say what it is, --kind={published.KINDS[0]}"
        )
    config = read_json(beside)
    rows = decoder_layer.output_rows(lm.params)
    family = config.get("speculators_model_type")
    if family in speculators_blocks.KINDS:
        return speculators_blocks.load(folder, lm.config, embedding, rows)
    if family == speculators_parallel.TYPE:
        return speculators_parallel.load(folder, lm.config, embedding)
    if family is not None:
        return *speculators.load(folder, lm.config, embedding), {}
    if "EAGLE" in "".join(config.get("architectures") or ()).upper():
        return "eagle3", *published.load("eagle3", folder, lm.config, embedding)
    return block_files.load(folder, lm.config, embedding, rows)


def method(kind: str, params: Any, arguments: dict[str, Any]) -> Method:
    """Return a method for heads: a chain as long as they can draft."""
    length = CHAIN
    if kind in block_files.KINDS:
        length = dflash.config_of(params["backbone"]).drafts
    elif kind == speculators_parallel.KIND:
        length = p_eagle.config_of(params).depths
    elif kind in COUNTED:
        length = COUNTED[kind].count(params)
    drafter = Spec(f"drafters/{kind}", **arguments)
    return Method(drafter, topology=Spec("topologies/chain", length=length))


def body(arguments: list[str]) -> int:
    """Convert, and print where the heads are and how they are decoded with."""
    options = read(arguments)
    about = convert(options)
    console.terminal().print(
        f"{options.export}: {about['head']} for {options.model}; decode with "
        f"python -m experiments.generate --model={options.model} "
        f"--heads={options.export}"
    )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    return command_line.call(MODULE, body, arguments)


if __name__ == "__main__":
    sys.exit(main())
