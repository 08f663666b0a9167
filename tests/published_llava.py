"""LLaVA-1.5 in exactly the layout in which `llava-hf` publishes it, with random weights of tiny dimensions.

File lists, names and dtype of tensors, shards, tokens and settings of images are those of llava-hf/llava-1.5-7b-hf.
"""

import json
from pathlib import Path
from typing import Any

import torch

from services.generate.imports.language_model import make_fast
from services.nn.loading import transformers
from tests.published_models import DOCUMENTS, LLAMA2_SPECIAL, sentencepiece_model, write_shards

WIDTH, SIDE, PATCH = 32, 56, 14
NUM_IMAGE_TOKENS = (SIDE // PATCH) ** 2
IMAGE_TOKEN, PAD_TOKEN, VOCABULARY = 440, 441, 448  # 32000, 32001 and 32064
SHARDS = 3

CONFIG: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "ignore_index": -100,
    "image_seq_length": NUM_IMAGE_TOKENS,
    "image_token_index": IMAGE_TOKEN,
    "model_type": "llava",
    "pad_token_id": PAD_TOKEN,
    "projector_hidden_act": "gelu",
    "text_config": {
        "_name_or_path": "lmsys/vicuna-7b-v1.5",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "max_position_embeddings": 128,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-05,
        "torch_dtype": "float16",
        "vocab_size": VOCABULARY,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.36.0.dev0",
    "vision_config": {
        "hidden_size": 32,
        "image_size": SIDE,
        "intermediate_size": 64,
        "model_type": "clip_vision_model",
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
        "patch_size": PATCH,
        "projection_dim": 24,
        "vocab_size": 32000,
    },
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "vocab_size": VOCABULARY,
}
PREPROCESSOR: dict[str, Any] = {
    "crop_size": {"height": SIDE, "width": SIDE},
    "do_center_crop": True,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "CLIPImageProcessor",
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "processor_class": "LlavaProcessor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": SIDE},
}
PROCESSOR = {
    "image_token": "<image>",
    "num_additional_image_tokens": 1,
    "patch_size": PATCH,
    "processor_class": "LlavaProcessor",
    "vision_feature_select_strategy": "default",
}
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
# The names of tensors have changed since the weights were published.
OLD_NAMES = {
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}


def write_llava(folder: Path) -> Path:
    """Write `llava-hf/llava-1.5-7b-hf`; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("config.json", CONFIG),
        ("generation_config.json", {"_from_model_config": True, "bos_token_id": 1, "eos_token_id": 2}),
        ("preprocessor_config.json", PREPROCESSOR),
        ("processor_config.json", PROCESSOR),
        ("chat_template.json", {"chat_template": CHAT_TEMPLATE}),
    ):
        (folder / name).write_text(json.dumps(content, indent=2))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _write_weights(folder)
    _write_tokenizer(folder)
    (folder / ".gitattributes").write_text(DOCUMENTS[".gitattributes"])
    (folder / "README.md").write_text("---\nlicense: llama2\n---\n# LLaVA Model Card\n")
    return folder


def _write_weights(folder: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers().LlavaForConditionalGeneration(transformers().LlavaConfig.from_dict(CONFIG))
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
    weights = {}
    for name, weight in model.state_dict().items():
        new = next(new for new in OLD_NAMES if name.startswith(new))
        weights[OLD_NAMES[new] + name.removeprefix(new)] = weight.half()
    write_shards(folder, weights, SHARDS, safe=True)


def _write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(sentencepiece_model("bpe"))
    added = {"<image>": IMAGE_TOKEN, "<pad>": PAD_TOKEN}
    special = {**LLAMA2_SPECIAL, "pad_token": "<pad>"}
    tokenizer = make_fast(folder / "tokenizer.model", special, added)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    content = json.loads((folder / "tokenizer.json").read_text())
    for token in content["added_tokens"]:
        token["special"] = True
    (folder / "tokenizer.json").write_text(json.dumps(content))
    config: dict[str, Any] = {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": {str(token["id"]): {**token, "id": None} for token in content["added_tokens"]},
        "legacy": False,
        "model_max_length": 1000000000000000019884624838656,
        "padding_side": "left",
        "processor_class": "LlavaProcessor",
        "tokenizer_class": "LlamaTokenizer",
        **special,
    }
    for token in config["added_tokens_decoder"].values():
        del token["id"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    (folder / "added_tokens.json").write_text(json.dumps(added))
