"""An InstructBLIP of a few thousand random weights, in a folder as published ones come."""

from pathlib import Path
from typing import Any

import torch

from services.nn.clip_model import open_clip

IMAGE_SIZE = 28
NUM_QUERIES = 4
WIDTH = 24
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "is", "the", "color", "shape", "?", "of", "object"]


def write_tiny_instructblip(directory: Path, *, max_shard_size: str = "5GB") -> Any:
    """Writes the folder and returns transformers' own model of it."""
    open_clip()
    from transformers import (
        BertTokenizer,
        BlipImageProcessor,
        InstructBlipConfig,
        InstructBlipForConditionalGeneration,
    )

    shared = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = InstructBlipConfig(
        vision_config={**shared, "image_size": IMAGE_SIZE, "patch_size": 14, "initializer_range": 0.2},
        qformer_config={**shared, "vocab_size": len(WORDS), "encoder_hidden_size": WIDTH, "initializer_range": 0.2},
        text_config={
            **{"model_type": "opt", "vocab_size": 32, "hidden_size": 8, "ffn_dim": 8, "word_embed_proj_dim": 8},
            **{"num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 16},
        },
        num_query_tokens=NUM_QUERIES,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = InstructBlipForConditionalGeneration(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    vocabulary = directory / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS) + "\n")
    BertTokenizer(str(vocabulary)).save_pretrained(directory / "qformer_tokenizer")
    vocabulary.unlink()
    size = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    BlipImageProcessor(size=size).save_pretrained(directory)
    return model.eval()
