"""Reading config.json: typed fields, and an error for every unread field."""

from collections.abc import Sequence
from typing import Any

from models.errors import ConfigError

# Fields that do not change the forward pass of a trained model.
HARMLESS = frozenset(
    """_attn_implementation _attn_implementation_autoset _from_model_config
    _name_or_path _sliding_window_pattern _commit_hash architectures attention_dropout
    attn_implementation attn_pdrop auto_map bos_token_id cache_implementation dropout
    dtype embd_pdrop embedding_dropout eos_token_id exponential_decay_length_penalty
    finetuning_task gradient_checkpointing id2label init_std initializer_factor
    initializer_range label2id layerdrop max_window_layers model_type n_ctx pad_token_id
    pretraining_tp resid_pdrop sep_token_id summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj task_specific_params
    tokenizer_class torch_dtype transformers_version transformers.js_config use_cache
    prefix chunk_size_feed_forward decoder_start_token_id unsloth_version
    unsloth_fixed""".split()
)
# Generation settings that version 4 wrote into config.json.
HARMLESS |= frozenset(
    """bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size forced_bos_token_id forced_eos_token_id
    length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_attentions output_hidden_states output_scores
    problem_type pruned_heads remove_invalid_values repetition_penalty return_dict
    return_dict_in_generate suppress_tokens temperature tf_legacy_loss
    tie_encoder_decoder top_k top_p torchscript typical_p use_bfloat16""".split()
)
MISSING: Any = object()

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


class Fields:
    """The fields of one config.json; reading marks them, `finish` refuses the rest.

    A field that is null counts as absent, as in HF's own config classes. Reading
    returns the value or `default`; ConfigError for a value of the wrong type.
    """

    def __init__(self, data: dict[str, Any], where: str) -> None:
        self.data = data
        self.where = where
        self.read: set[str] = set()
        self.lacking: list[str] = []

    def take(self, name: str, default: Any = MISSING) -> Any:
        """Read a field of any type; `complete` reports missing ones without default."""
        self.read.add(name)
        value = self.data.get(name)
        if value is None:
            if default is MISSING:
                self.lacking.append(name)
                return 1  # reading goes on, so that one error names all missing fields
            return default
        return value

    def integer(self, name: str, default: Any = MISSING, least: int = 1) -> Any:
        value: Any = self.take(name, default)
        if value is None or value is default:
            return value
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(name, f"an integer of at least {least}")
        return value

    def number(self, name: str, default: Any = MISSING) -> Any:
        value: Any = self.take(name, default)
        if value is None or value is default:
            return value
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise self.wrong(name, "a number above 0")
        return value

    def nullable(self, name: str, default: int) -> int:
        """Read an integer; null means 0 (off), absence means `default`."""
        return self.integer(name, 0) if name in self.data else default

    def flag(self, name: str, default: bool) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.take(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return value

    def choice(self, name: str, choices: dict[str, str], default: str) -> str:
        value = self.take(name, default)
        if value not in choices:
            raise self.wrong(name, f"one of {sorted(choices)}")
        return choices[value]

    def fixed(self, name: str, only: Any) -> None:
        """Refuse any value of a field but `only`, which is also its default."""
        if self.take(name, only) != only:
            raise self.wrong(name, f"{only!r} (no other value is implemented)")

    def wrong(self, name: str, want: str) -> ConfigError:
        """Make the error for a field's value; `want` describes the allowed ones."""
        return ConfigError(f"{self.where}: {name}={self.data[name]!r}: use {want}")

    def ids(self, name: str) -> tuple[int, ...]:
        """Return the ids of a field that holds one token id, a list, or nothing."""
        value = self.data.get(name)
        if value is None:
            return ()
        return tuple(value) if isinstance(value, list) else (value,)

    def complete(self) -> None:
        """Raise ConfigError with every missing field read so far."""
        if self.lacking:
            raise ConfigError(
                f"{self.where}: missing {self.lacking}: add them to config.json"
            )

    def finish(self) -> None:
        """Raise ConfigError if a field is missing, or one that is set was not read."""
        self.complete()
        unknown = sorted(
            name
            for name, value in self.data.items()
            if name not in self.read | HARMLESS
            and not (value is None or value is False or value == [] or value == {})
        )
        if unknown:
            raise ConfigError(
                f"{self.where}: unknown fields {unknown}: they may change the forward "
                "pass; if they do not, remove them from config.json"
            )


SLIDING = "sliding_attention"
FULL = "full_attention"


def layer_types(f: Fields, n_layers: int, default: Sequence[str]) -> tuple[str, ...]:
    """Read `layer_types`: "full_attention" or "sliding_attention" per layer."""
    value = f.take("layer_types", list(default))
    good = isinstance(value, list) and all(kind in (SLIDING, FULL) for kind in value)
    if not good or len(value) != n_layers:
        raise f.wrong("layer_types", f"{n_layers} entries of {SLIDING!r} or {FULL!r}")
    return tuple(value)


def windows(kinds: Sequence[str], window: int | None) -> tuple[int, ...]:
    """Convert layer types to window sizes per layer; () when no layer has one."""
    sizes = tuple((window or 0) if kind == SLIDING else 0 for kind in kinds)
    return sizes if any(sizes) else ()


def kinds(sizes: Sequence[int], n_layers: int) -> list[str]:
    """Convert window sizes to `layer_types` of config.json, inverting `windows`."""
    return [SLIDING if size else FULL for size in sizes or (0,) * n_layers]
