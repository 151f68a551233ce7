"""What meshes of 8 virtual devices give; run by test_meshes.py.

Usage: meshes.py all | most. Prints one JSON object: {"decode": {case: {mesh: texts}},
"train": {mesh: losses}}. The mesh "one" is a single device; "fault ..." are planted
faults. "most" takes one case and the meshes of `FEW`.
"""

import json
import sys

import jax
import numpy as np

import decoding
import models
from decoding import Method, Spec
from models import io, transformer
from models.distributed import device_mesh, sharding
from models.heads import hydra
from models.transformer import cached_attention
from training.loop import optimizers, train_step
from training.objectives.language_models import next_token

MESHES = {
    "8x1x1": (8, 1, 1),
    "1x8x1": (1, 8, 1),
    "1x1x8": (1, 1, 8),
    "2x2x2": (2, 2, 2),
}
FEW = ("1x8x1", "2x2x2")
NEW, ROWS = 16, 8
CONFIG = transformer.Config(
    vocab_size=1024,
    d_model=32,
    n_layers=2,
    n_heads=16,
    n_kv_heads=8,
    head_dim=4,
    d_ff=48,
    max_positions=256,
    ropes=(transformer.rope(4, 100.0),),
    tied=False,
)
TREE = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
CASES = {
    "plain": (Method(), 0.0),
    "tree": (
        Method(
            Spec("drafters/hydra"), topology=Spec("topologies/static", choices=TREE)
        ),
        0.8,
    ),
}


def prompts() -> list[list[int]]:
    """Ragged: of 1 to 36 tokens."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, CONFIG.vocab_size, 1 + 5 * i).tolist() for i in range(ROWS)]


def plan_of(shape: tuple[int, ...] | None, kind: str = "decode"):
    if shape is None:
        return None
    sizes = dict(zip(device_mesh.MESH_AXES, shape, strict=True))
    return sharding.on(device_mesh.mesh_of(sizes), kind)


def model() -> models.Loaded:
    lm = transformer.transformer(CONFIG)
    return models.Loaded(lm, jax.jit(lm.init)(jax.random.key(0)))


def texts(lm, case: str, heads) -> list[list[int]]:
    method, temperature = CASES[case]
    out = decoding.generate(
        lm,
        prompts(),
        method,
        max_new_tokens=NEW,
        temperature=temperature,
        drafts=None if case == "plain" else {"heads": heads},
    )
    return out.tokens


def neighbours(lm, plan):
    """Planted: each device is given its neighbour's part of one weight."""
    down = lm.params["layer_1"]["mlp"]["down"]
    rolled = jax.numpy.roll(down, down.shape[0] // 2, 0)
    layer = {**lm.params["layer_1"], "mlp": {**lm.params["layer_1"]["mlp"]}}
    layer["mlp"]["down"] = rolled
    wrong = models.Loaded(lm.model, {**lm.params, "layer_1": layer})
    return io.placed(wrong, plan)


def decode(every: bool) -> dict[str, dict[str, list]]:
    lm = model()
    rows = lm.params["embedding"]["head"]
    heads = jax.jit(lambda key: hydra.init(key, CONFIG, rows, 3, prefix=True))
    drafts = heads(jax.random.key(1))
    found: dict[str, dict[str, list]] = {}
    for case in CASES if every else ("tree",):
        # The tree's cache is read piece by piece, by every device its own part.
        cached_attention.LONG = 4096 if case == "plain" else 64
        found[case] = {"one": texts(lm, case, drafts)}
        for name, shape in MESHES.items():
            if every or name in FEW:
                there = io.placed(lm, plan_of(shape))
                found[case][name] = texts(there, case, drafts)
    wrong = neighbours(lm, plan_of(MESHES["2x2x2"]))
    found["tree"]["fault neighbours"] = texts(wrong, "tree", drafts)
    return found


def losses(
    shape: tuple[int, ...] | None,
    same_rows: bool = False,
    config: transformer.Config = CONFIG,
    balance: float = 0.0,
) -> list[float]:
    """The loss of 6 steps; `same_rows` plants that half of the rows are read twice."""
    objective = next_token.objective(config, balance=balance)
    plan = plan_of(shape, "train")
    optimizer = optimizers.adamw(
        optimizers.warmup_stable_decay(0.01, 6, 1, 1), weight_decay=0.1
    )
    params = jax.jit(transformer.transformer(config).init)(jax.random.key(0))
    state = train_step.first_state(params, optimizer, False, plan)
    step = jax.jit(
        train_step.make_step(objective, optimizer, 0, 1.0),
        donate_argnums=0,
    )
    rng, found = np.random.default_rng(1), []
    for _ in range(6):
        tokens = rng.integers(0, config.vocab_size, (ROWS, 33)).astype(np.int32)
        if same_rows:
            tokens[ROWS // 2 :] = tokens[: ROWS // 2]
        batch = {"tokens": tokens}
        with sharding.use(plan):
            batch = batch if plan is None else plan.batch(batch)
            state, metrics = step(state, batch)
        found.append(float(metrics["loss"]))
    return found


def train(every: bool) -> dict[str, list[float]]:
    found = {"one": losses(None)}
    for name, shape in MESHES.items():
        if every or name in FEW:
            found[name] = losses(shape)
    found["fault rows"] = losses(MESHES["2x2x2"], same_rows=True)
    return found


if __name__ == "__main__":
    sharding.ORDERED = ("cpu",)  # weights lie in memory as a TPU's do
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is the cost
    every = sys.argv[1] == "all"
    print(json.dumps({"train": train(every), "decode": decode(every)}))
