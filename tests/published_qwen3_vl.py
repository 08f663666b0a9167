"""Qwen3-VL-Embedding and -Reranker in exactly the layouts in which `Qwen` publishes them, with tiny random weights.

File lists, names and dtype of tensors, tokens, template and settings of images are those of Qwen/Qwen3-VL-Embedding-2B.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from services.nn.loading import transformers
from tests.published_models import DOCUMENTS, byte_level_tokenizer, write_tokenizer

WIDTH, PATCH, MERGE = 32, 16, 2
DEFAULT_INSTRUCTION = "Represent the user's input."
CONTROL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
TEMPLATE = (
    '{%- set default_system_message = "Represent the user\'s input." -%}'
    "{%- macro write(content) -%}{%- if content is string -%}{{- content -}}{%- else -%}{%- for one in content -%}"
    "{%- if one.type == 'image' or 'image' in one -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif 'text' in one -%}{{- one.text -}}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endmacro -%}"
    "{%- if messages[0].role != 'system' -%}{{- '<|im_start|>system\\n' + default_system_message + '<|im_end|>\\n' -}}"
    "{%- endif -%}{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' -}}{{- write(message.content) -}}{{- '<|im_end|>\\n' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
IMAGES = {
    **{"do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "resample": 3},
    **{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "rescale_factor": 0.00392156862745098},
    **{"merge_size": MERGE, "patch_size": PATCH, "temporal_patch_size": 2, "processor_class": "Qwen3VLProcessor"},
}


def write_qwen3_vl_embedding(folder: Path, *, template: str = TEMPLATE, words: tuple[str, ...] = ()) -> Path:
    """Write `Qwen/Qwen3-VL-Embedding-2B`, or with another template `Qwen3-VL-2B-Instruct`; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_level_tokenizer(CONTROL, words=words, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    number = dict(zip(CONTROL, tokenizer.convert_tokens_to_ids(list(CONTROL)), strict=True))
    config = _config(number, len(tokenizer))
    image = {**IMAGES, "image_processor_type": "Qwen2VLImageProcessorFast"}
    video = {**IMAGES, "video_processor_type": "Qwen3VLVideoProcessor"}
    for name, content in (
        ("config.json", config),
        ("generation_config.json", {"bos_token_id": number["<|endoftext|>"], "eos_token_id": number["<|im_end|>"]}),
        ("preprocessor_config.json", {**image, "size": {"longest_edge": 1843200, "shortest_edge": 4096}}),
        ("video_preprocessor_config.json", {**video, "size": {"longest_edge": 25165824, "shortest_edge": 4096}}),
        ("chat_template.json", {"chat_template": template}),
    ):
        (folder / name).write_text(json.dumps(content, indent=2))
    write_tokenizer(folder, tokenizer, template, tokenizer_class="Qwen2Tokenizer")
    text = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(text["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in text["merges"]))
    _write_weights(folder, config)
    (folder / "scripts").mkdir(exist_ok=True)
    (folder / "scripts" / "qwen3_vl_embedding.py").write_text("raise SystemExit('nothing of a source is run')\n")
    (folder / ".gitattributes").write_text(DOCUMENTS[".gitattributes"])
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Qwen3-VL-Embedding-2B\n")
    return folder


def write_qwen3_vl_reranker(folder: Path) -> None:
    """Write `Qwen/Qwen3-VL-Reranker-2B`, whose files, but for the script, are those of `Qwen3-VL-2B-Instruct`."""
    template = TEMPLATE.replace("Represent the user's input.", "You are a helpful assistant.")
    write_qwen3_vl_embedding(folder, template=template, words=("yes", "no", "assistant"))
    (folder / "scripts" / "qwen3_vl_embedding.py").rename(folder / "scripts" / "qwen3_vl_reranker.py")


def write_qwen2_5_vl_instruct(folder: Path) -> Path:
    """Write `Qwen/Qwen2.5-VL-3B-Instruct`, whose language model is described beside its parts; returns the folder."""
    write_qwen3_vl_embedding(folder, template=TEMPLATE.replace("Represent the user's input.", "You are an assistant."))
    published = json.loads((folder / "config.json").read_text())
    tokens = {name: published[name] for name in published if name.endswith("_token_id")}
    vocabulary = published["text_config"]["vocab_size"]
    config = {
        **{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", **tokens},
        **{"hidden_act": "silu", "hidden_size": WIDTH, "intermediate_size": 64, "max_position_embeddings": 128000},
        **{"max_window_layers": 3, "num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 1},
        **{"rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True},
        **{"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "torch_dtype": "bfloat16"},
        **{"use_sliding_window": False, "vocab_size": vocabulary},
        "vision_config": {
            **{"depth": 2, "fullatt_block_indexes": [1], "hidden_act": "silu", "hidden_size": 32, "in_chans": 3},
            **{"intermediate_size": 48, "num_heads": 2, "out_hidden_size": WIDTH, "patch_size": 14},
            **{"spatial_merge_size": MERGE, "spatial_patch_size": 14, "temporal_patch_size": 2, "window_size": 56},
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    image = {**IMAGES, "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor"}
    image |= {"patch_size": 14, "min_pixels": 3136, "max_pixels": 12845056}
    (folder / "preprocessor_config.json").write_text(json.dumps(image, indent=2))
    (folder / "video_preprocessor_config.json").unlink()
    _write_weights(folder, config)
    return folder


def _config(number: dict[str, int], vocabulary: int) -> dict[str, Any]:
    text = {
        **{"attention_bias": False, "attention_dropout": 0.0, "bos_token_id": number["<|endoftext|>"]},
        **{"dtype": "bfloat16", "eos_token_id": number["<|im_end|>"], "head_dim": 16, "hidden_act": "silu"},
        **{"hidden_size": WIDTH, "initializer_range": 0.02, "intermediate_size": 64, "model_type": "qwen3_vl_text"},
        **{"max_position_embeddings": 262144, "num_attention_heads": 4, "num_hidden_layers": 3},
        **{"num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 5000000, "tie_word_embeddings": True},
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
        **{"use_cache": True, "vocab_size": vocabulary},
    }
    vision = {
        **{"deepstack_visual_indexes": [0, 1], "depth": 3, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32},
        **{"in_channels": 3, "initializer_range": 0.02, "intermediate_size": 48, "model_type": "qwen3_vl"},
        **{"num_heads": 2, "num_position_embeddings": 64, "out_hidden_size": WIDTH, "patch_size": PATCH},
        **{"spatial_merge_size": MERGE, "temporal_patch_size": 2},
    }
    return {
        **{"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl"},
        **{"image_token_id": number["<|image_pad|>"], "video_token_id": number["<|video_pad|>"]},
        **{"vision_start_token_id": number["<|vision_start|>"], "vision_end_token_id": number["<|vision_end|>"]},
        **{"text_config": text, "vision_config": vision, "tie_word_embeddings": True},
        "transformers_version": "4.57.1",
    }


def _write_weights(folder: Path, config: dict[str, Any]) -> None:
    kinds = transformers()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kinds.AutoModelForImageTextToText.from_config(
            kinds.CONFIG_MAPPING[config["model_type"]].from_dict(config)
        )
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    # the head is tied to the tokens' embeddings, so it is not stored
    weights = {
        name: weight.bfloat16().clone() for name, weight in model.state_dict().items() if name != "lm_head.weight"
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
