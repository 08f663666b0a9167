"""InstructBLIP in exactly the layout in which `Salesforce` publishes it, with random weights of tiny dimensions.

File lists, names of tensors, shards, tokens and settings of images are those of Salesforce/instructblip-vicuna-7b.
"""

import json
from pathlib import Path
from typing import Any

import torch

from services.nn.loading import transformers
from tests.published_models import DOCUMENTS, write_shards

IMAGE_SIZE = 28
NUM_QUERIES = 4
WIDTH = 24
SHARDS = 4
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "is", "the", "color", "shape", "?", "of", "object", "it"]
DEC = "[DEC]"
IMAGES = {
    **{"do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, "resample": 3},
    **{"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]},
    **{"image_processor_type": "BlipImageProcessor", "processor_class": "InstructBlipProcessor"},
    **{"rescale_factor": 0.00392156862745098, "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE}},
}


def write_instructblip(folder: Path) -> Any:
    """Write `Salesforce/instructblip-vicuna-7b`; returns transformers' own model of it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = _model()
    (folder / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))
    (folder / "generation_config.json").write_text(json.dumps({"_from_model_config": True, "bos_token_id": 1}))
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGES))
    write_shards(folder, model.state_dict(), SHARDS, safe=True)
    write_shards(folder, model.state_dict(), SHARDS, safe=False)
    _write_qformer_tokenizer(folder / "qformer_tokenizer")
    (folder / "tokenizer.model").write_bytes(b"the language model's tokens, which no embedding needs")
    (folder / ".gitattributes").write_text(DOCUMENTS[".gitattributes"])
    (folder / "README.md").write_text("---\nlicense: other\n---\n# InstructBLIP model\n")
    return model


def _model() -> Any:
    kinds = transformers()
    shared = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = kinds.InstructBlipConfig(
        vision_config={**shared, "image_size": IMAGE_SIZE, "patch_size": 14, "initializer_range": 0.2},
        qformer_config={
            **{**shared, "vocab_size": len(WORDS) + 1, "encoder_hidden_size": WIDTH, "initializer_range": 0.2},
            **{"max_position_embeddings": 24, "cross_attention_frequency": 2},
        },
        text_config={
            **{"model_type": "llama", "vocab_size": 32, "hidden_size": 8, "intermediate_size": 8},
            **{"num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 16},
        },
        num_query_tokens=NUM_QUERIES,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = kinds.InstructBlipForConditionalGeneration(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def _write_qformer_tokenizer(folder: Path) -> None:
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tokenizer = transformers().BertTokenizer(str(folder / "vocab.txt"), truncation_side="left")
    tokenizer.add_special_tokens({"bos_token": DEC})
    tokenizer.save_pretrained(folder)
    special = {"bos_token": DEC, "cls_token": "[CLS]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    special |= {"sep_token": "[SEP]", "unk_token": "[UNK]"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
