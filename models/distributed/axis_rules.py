"""Sharding tables: the logical axes of params, and the mesh axes of each."""

from models.distributed import device_mesh
from models.errors import ConfigError

# Logical axis -> mesh axes. In training the width of weights is sharded as well;
# decoding would fetch it again for every few tokens, and uses `fsdp` for rows alone.
DECODE: dict[str, tuple[str, ...]] = {
    "batch": ("data", "fsdp"),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "head_dim": ("tensor",),  # of q, k and v's weights: takes what KV heads leave
    "expert": (),  # the first axis of a mixture's weights; "mlp" cuts each expert
    "whole_expert": ("tensor",),  # the same of weights in codes, which are not cut
    "mlp": ("tensor",),
    "vocab": ("tensor",),
    "embed": (),
    "layers": (),
    "draft": ("tensor",),  # the width that draft heads sum over; (): replicated
}
RULES = {"decode": DECODE, "train": {**DECODE, "embed": ("fsdp",)}}

# The axes of a param by the last name of its path, one entry per number of dimensions.
# A param with one dimension more is a stack of layers or of heads.
PARAMS: dict[str, tuple[str, ...]] = {
    "tokens": ("vocab embed",),
    "head": ("vocab embed",),
    "positions": ("- embed",),
    "qkv": ("embed kv_heads - head_dim",),
    "qkv_bias": ("kv_heads - -",),
    "queries": ("embed kv_heads - head_dim",),
    "queries_bias": ("kv_heads - -",),
    "latent": ("embed kv_heads - head_dim",),
    "latent_bias": ("kv_heads - -",),
    "key_basis": ("kv_heads - - -",),
    "sinks": ("kv_heads heads",),
    "router": ("embed -",),
    "experts_up": ("expert embed - mlp",),
    "experts_up_bias": ("expert - mlp",),
    "experts_down": ("expert mlp embed",),
    "experts_down_bias": ("expert embed",),
    "coded_up": ("whole_expert - - - -",),
    "coded_up_scales": ("whole_expert - - -",),
    "coded_up_bias": ("whole_expert - -",),
    "coded_down": ("whole_expert - - -",),
    "coded_down_scales": ("whole_expert - -",),
    "coded_down_bias": ("whole_expert -",),
    "query_in": ("embed -",),
    "query_heads": ("embed heads -",),
    "latent_in": ("embed -",),
    "bases": ("heads - -",),
    "out": ("heads embed",),
    "up": ("embed mlp", "embed - mlp"),
    "up_bias": ("mlp", "- mlp"),
    "down": ("mlp embed",),
    # Cut where they are summed over: one sum a product, and what follows is whole.
    "skip": ("- draft embed",),
    "mix": ("- draft embed", "- -"),
    "fuse": ("- draft embed",),
    "res": ("draft embed",),
    "head_bias": ("vocab",),
    # A block drafter's corrections of the scores; their sums over a width are small.
    "second": ("- vocab",),
    "output": ("- vocab",),
}
# How a TPU's memory orders the dimensions of a param, slowest first, if not as its
# shape does. In [D, 2, F] gate and up alternate by row: before every loop the compiler
# would copy the whole weight into this order.
ORDER: dict[str, tuple[int, ...]] = {"up": (1, 0, 2), "experts_up": (2, 0, 1, 3)}
# Params of draft heads that are replicated on every device: norms, biases, and matrices
# that are small beside the rows of a vocabulary.
WHOLE = frozenset(
    {
        *("norm", "input_norm", "final_norm", "head_norm"),
        *("embedding_norm", "feature_norm"),
        *("bias", "mix_bias", "skip_bias", "first_bias", "other_bias"),
        *("key", "key_bias", "query", "query_bias", "value", "value_bias"),
        *("first", "other", "input", "state", "gate", "transfer", "prompts"),
        *("q_norm", "k_norm", "mask", "base", "kernel", "before", "after", "hidden"),
        *("joint", "joint_bias", "gate_bias", "confidence", "confidence_bias"),
        *("inputs", "recurrent", "mask_hidden"),
        *("a", "b"),  # LoRA's
    }
)


def param_name(path: tuple) -> str:
    """Return the last name of a path in a tree."""
    last = path[-1] if path else ""
    return str(getattr(last, "key", getattr(last, "name", "")))


def param_axes(name: str, dims: int) -> str:
    """Return the axes of a param; "" where it is replicated on every device.

    A name that is neither in `PARAMS` nor in `WHOLE` is replicated as well; for draft
    heads a test demands that every name is in one of them.
    """
    for axes in PARAMS.get(name, ()):
        if len(axes.split()) == dims:
            return axes
    for axes in PARAMS.get(name, ()):
        if len(axes.split()) == dims - 1:
            return f"layers {axes}"
    return ""


def replaced(rules: str) -> dict[str, tuple[str, ...]]:
    """Parse replacements of rules from a text like "vocab=,batch=data+fsdp"."""
    table, known = {}, device_mesh.MESH_AXES
    for item in filter(None, rules.replace(" ", "").split(",")):
        name, sep, value = item.partition("=")
        axes = tuple(filter(None, value.split("+")))
        if name == "sequence":
            raise ConfigError(
                f"rules={rules!r}: a row's slots stay on one device, since attention "
                "reads them up to its length: cut batch and kv_heads"
            )
        if not sep or name not in DECODE or not set(axes) <= set(known):
            raise ConfigError(
                f"rules={rules!r}: write axis=mesh axes, as in 'vocab=,batch=data+fsdp'"
                f"; axes are {sorted(DECODE)}, mesh axes {known}"
            )
        table[name] = axes
    return table
