"""Write the golden models: small random HF checkpoints and the logits they give.

    python tests/golden/make_golden.py [NAME ..]   (needs the extra `peers`; seconds)

Each family gets a directory as `save_pretrained` writes it, and `<name>.npz` beside it
with `tokens` int32[2, T] and `logits` float32[2, T, V], computed in float32 by eager
attention. Weights are drawn larger than any initialiser would, so that every bias, norm
and scale changes the logits visibly; windows are shorter than the sequence.
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

OUT = pathlib.Path(__file__).parent / "models"
PROMPT, NEW = 8, 24  # tokens of a greedy text
LENGTH = 20
SIZES = {
    "vocab_size": 72,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SPECIALS = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>"]
TEXT = [
    "def main(args):\n    return [x for x in args if x]\n",
    "The quick brown fox jumps over the lazy dog. Où est la clé? 你好 🙂\n",
]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say 'hé' <now> & stop."},
]
TEMPLATE = """{{ bos_token }}{% for message in messages %}
    {% if message['role'] == 'system' %}
{{ '[' + message['content'] | trim + ']' }}
    {% elif message['role'] in ('user', 'assistant') %}
<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}
    {% else %}
{{ raise_exception('unknown role ' + message['role']) }}
    {% endif %}
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""


LATENT = {  # DeepSeek-V2-Lite, small
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "first_k_dense_replace": 1,
    "n_routed_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "n_shared_experts": 2,
    "num_key_value_heads": 4,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 40.0,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 16,
    },
}


def _sizes(**changes) -> dict:
    return {**SIZES, **changes}


def build() -> dict[str, transformers.PretrainedConfig]:
    """The configs by directory name."""
    t = transformers
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    longrope = {
        "rope_type": "longrope",
        "rope_theta": 1000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.1, 1.3],
        "long_factor": [1.0, 2.0, 4.0],
    }
    gemma3 = _sizes(
        num_hidden_layers=4,
        head_dim=12,
        query_pre_attn_scalar=20,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {
                "rope_type": "linear",
                "rope_theta": 5000.0,
                "factor": 8.0,
            },
        },
    )
    vision = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 8,
        "patch_size": 4,
    }
    return {
        "llama2": t.LlamaConfig(
            **_sizes(
                vocab_size=320,
                num_key_value_heads=4,
                attention_bias=True,
                mlp_bias=True,
                rope_parameters={
                    "rope_type": "linear",
                    "rope_theta": 1000.0,
                    "factor": 2.0,
                },
            )
        ),
        "llama3": t.LlamaConfig(
            **_sizes(vocab_size=320, tie_word_embeddings=True, rope_parameters=llama3)
        ),
        "mistral": t.MistralConfig(**_sizes(head_dim=12, sliding_window=6)),
        "qwen2": t.Qwen2Config(
            **_sizes(use_sliding_window=True, sliding_window=5, max_window_layers=1)
        ),
        "qwen3": t.Qwen3Config(**_sizes(head_dim=16, tie_word_embeddings=True)),
        "gemma2": t.Gemma2Config(
            **_sizes(
                num_hidden_layers=4,
                head_dim=12,
                query_pre_attn_scalar=20,
                sliding_window=5,
                attn_logit_softcapping=3.0,
                final_logit_softcapping=4.0,
            )
        ),
        "gemma3_text": t.Gemma3TextConfig(**gemma3),
        "gemma3": t.Gemma3Config(
            text_config={"model_type": "gemma3_text", **gemma3},
            vision_config={"model_type": "siglip_vision_model", **vision},
            mm_tokens_per_image=4,
        ),
        "phi3": t.Phi3Config(**_sizes(sliding_window=9)),
        "phi3_long": t.Phi3Config(
            **_sizes(original_max_position_embeddings=32, rope_parameters=longrope)
        ),
        "gpt2": t.GPT2Config(
            vocab_size=72,
            n_embd=32,
            n_layer=3,
            n_head=4,
            n_positions=64,
            bos_token_id=1,
            eos_token_id=2,
        ),
        "opt": t.OPTConfig(
            vocab_size=72,
            hidden_size=32,
            ffn_dim=40,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=64,
            bos_token_id=1,
            eos_token_id=2,
            word_embed_proj_dim=32,
        ),
        "mixtral": t.MixtralConfig(
            **_sizes(num_local_experts=4, num_experts_per_tok=2)
        ),
        "qwen3_moe": t.Qwen3MoeConfig(
            **_sizes(
                head_dim=16,
                num_experts=6,
                num_experts_per_tok=3,
                moe_intermediate_size=24,
                norm_topk_prob=False,
                mlp_only_layers=[1],
            )
        ),
        "gemma4_text": t.Gemma4TextConfig(
            **_sizes(
                num_hidden_layers=4,
                head_dim=8,
                global_head_dim=16,
                num_global_key_value_heads=1,
                attention_k_eq_v=True,
                hidden_size_per_layer_input=0,
                sliding_window=5,
                layer_types=["sliding_attention", "full_attention"] * 2,
                final_logit_softcapping=4.0,
                tie_word_embeddings=True,
            )
        ),
        "olmo2": t.Olmo2Config(**_sizes()),
        "olmo3": t.Olmo3Config(
            **_sizes(
                num_hidden_layers=4,
                sliding_window=5,
                rope_parameters={
                    "full_attention": {
                        "rope_type": "yarn",
                        "rope_theta": 500000.0,
                        "factor": 4.0,
                        "beta_fast": 32.0,
                        "beta_slow": 1.0,
                        "attention_factor": 1.2,
                        "original_max_position_embeddings": 16,
                    },
                    "sliding_attention": {
                        "rope_type": "default",
                        "rope_theta": 500000.0,
                    },
                },
            )
        ),
        "smollm3": t.SmolLM3Config(
            **_sizes(no_rope_layer_interval=2, tie_word_embeddings=True)
        ),
        "deepseek_v2": t.DeepseekV2Config(**_sizes(**{**LATENT, "q_lora_rank": None})),
        "deepseek_v2_groups": t.DeepseekV2Config(
            **_sizes(
                **{
                    **LATENT,
                    "n_routed_experts": 6,
                    "q_lora_rank": 12,
                    "topk_method": "group_limited_greedy",
                    "n_group": 3,
                    "topk_group": 2,
                    "routed_scaling_factor": 2.0,
                }
            )
        ),
        "gpt_oss": t.GptOssConfig(
            **_sizes(
                hidden_size=64,
                intermediate_size=32,
                head_dim=8,
                sliding_window=5,
                num_local_experts=4,
                num_experts_per_tok=2,
            )
        ),
    }


def model_of(config) -> torch.nn.Module:
    """A model with large random weights, rounded to bfloat16."""
    if isinstance(config, transformers.Gemma3Config):
        model = transformers.Gemma3ForConditionalGeneration(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.3 if weight.ndim == 1 else 1.4 / weight.shape[-1] ** 0.5
            noise = torch.randn_like(weight) * spread
            # Norm scales stay near their neutral value (Gemma stores scale - 1).
            center = weight if weight.ndim == 1 and "bias" not in name else 0.0
            weight.copy_((center + noise).bfloat16())
        for name, number in model.named_buffers():
            if name.endswith("layer_scalar"):
                number.copy_((1 + 0.3 * torch.randn_like(number)).bfloat16())
    return model.eval()


def byte_level() -> tokenizers.Tokenizer:
    tok = tokenizers.Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(TEXT, trainer)
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tok


def byte_fallback() -> tokenizers.Tokenizer:
    """A Llama-2-like tokenizer: spaces as `▁`, unknown characters as bytes."""
    names = SPECIALS + [f"<0x{i:02X}>" for i in range(256)]
    letters = ["▁", "t", "h", "e", "a", "r", "é", "▁t", "he", "▁the", "ar"]
    vocab = {name: i for i, name in enumerate(names + letters)}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "r")]
    tok = tokenizers.Tokenizer(
        models.BPE(vocab, merges, byte_fallback=True, unk_token="<pad>")
    )
    tok.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tok.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tok.add_special_tokens(SPECIALS)
    tok.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tok


def write_tokenizer(directory: pathlib.Path, tok, template: str | None) -> None:
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tok, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    wrapped.chat_template = template
    wrapped.save_pretrained(directory)
    expected = {
        "texts": TEXT,
        "ids": [wrapped(text)["input_ids"] for text in TEXT],
        "chat": CHAT,
    }
    if template is not None:
        expected["chat_ids"] = wrapped.apply_chat_template(
            CHAT, add_generation_prompt=True, return_dict=False
        )
    path = directory.parent / f"{directory.name}_tokenizer.json"
    path.write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


def greedy() -> None:
    """Write the greedy text of every golden model, as it is stored, without a cache."""
    texts = {}
    for path in sorted(OUT.glob("*/config.json")):
        name = path.parent.name
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        with np.load(OUT / f"{name}.npz", allow_pickle=False) as arrays:
            tokens = torch.from_numpy(arrays["tokens"][:, :PROMPT]).long()
        with torch.no_grad():
            for _ in range(NEW):
                logits = model(tokens, use_cache=False).logits[:, -1]
                tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
        texts[name] = tokens.numpy().astype(np.int32)
    np.savez_compressed(OUT.parent / "greedy.npz", **texts)


def main(names: list[str]) -> None:
    if names == ["greedy"]:
        return greedy()
    rng = np.random.default_rng(0)
    for name, config in build().items():
        vocab = config.get_text_config().vocab_size
        tokens = rng.integers(3, vocab, (2, LENGTH)).astype(np.int32)
        more = rng.integers(3, vocab, (2, 40)) if name == "phi3_long" else None
        if names and name not in names:
            continue
        torch.manual_seed(0)
        shutil.rmtree(OUT / name, ignore_errors=True)
        model = model_of(config)
        arrays = {"tokens": tokens}
        with torch.no_grad():
            arrays["logits"] = model(torch.from_numpy(tokens).long()).logits.numpy()
            if more is not None:
                # Past the original context every position uses the long factors.
                arrays["long_tokens"] = more.astype(np.int32)
                arrays["long_logits"] = model(torch.from_numpy(more).long()).logits
        np.savez_compressed(OUT / f"{name}.npz", **arrays)
        shards = {"max_shard_size": "30KB"} if name == "llama3" else {}
        half = model if name == "gpt2" else model.bfloat16()
        half.generation_config.eos_token_id = [2, 3] if name == "llama3" else 2
        half.save_pretrained(OUT / name, **shards)
        if name == "llama2":
            write_tokenizer(OUT / name, byte_fallback(), None)
        if name == "llama3":
            write_tokenizer(OUT / name, byte_level(), TEMPLATE)


if __name__ == "__main__":
    main(sys.argv[1:])
