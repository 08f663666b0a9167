"""A small LLaVA in the layout that llava-hf publishes: a CLIP ViT, a projector of two layers and a Llama, with random
weights, and a tokenizer of the generator's words.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.embed.model.mllm_engine import IMAGE
from services.nn.image_transform import PREPROCESSOR
from services.nn.loading import quiet_loading, transformers
from starters.embed.questions import instruction_vocabulary
from starters.embed.wordings import unrelated_nouns

HEAD_WIDTH = 32
PATCH_SIZE = 8
CONTEXT_LENGTH = 512
VOCABULARY_SIZE = 2048
UNKNOWN, START, END, PAD = "<unk>", "<s>", "</s>", "<pad>"
# the waves of positions: the longest has this many times the length of the shortest
SLOWEST = 100.0
AMPLITUDE = 0.5
# CLIP's
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Dimensions:
    """Widths and numbers of layers of the image tower and of the language model, and the side of an image."""

    width: int = 128
    layers: int = 4
    text_width: int = 128
    text_layers: int = 3
    image_size: int = 64

    def config(self, tokenizer: Any) -> dict[str, Any]:
        """Return `config.json` for this tokenizer."""
        vision = {
            "model_type": "clip_vision_model",
            "hidden_size": self.width,
            "intermediate_size": 4 * self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.width // HEAD_WIDTH,
            "image_size": self.image_size,
            "patch_size": PATCH_SIZE,
        }
        text = {
            "model_type": "llama",
            "hidden_size": self.text_width,
            "intermediate_size": 3 * self.text_width,
            "num_hidden_layers": self.text_layers,
            "num_attention_heads": self.text_width // HEAD_WIDTH,
            "num_key_value_heads": self.text_width // HEAD_WIDTH,
            "max_position_embeddings": CONTEXT_LENGTH,
            # of Llama's 0.02, made for thousands of dimensions, a narrow model's attention would begin flat
            "initializer_range": self.text_width**-0.5,
            "vocab_size": len(tokenizer),
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        return {
            "model_type": "llava",
            "vision_config": vision,
            "text_config": text,
            "image_token_index": tokenizer.convert_tokens_to_ids(IMAGE),
            "image_seq_length": (self.image_size // PATCH_SIZE) ** 2,
            # the published LLaVA-1.5 leaves out its last layer, which would be a fifth of this one's work for nothing
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "default",
            "projector_hidden_act": "gelu",
            "tie_word_embeddings": False,
        }


def create_llava(dimensions: Dimensions, tokenizer: Any) -> Any:
    """Create transformers' `LlavaForConditionalGeneration` with random weights.

    The patches' positions begin as waves: of random ones as small as CLIP's, hundreds of steps make no use.
    """
    with quiet_loading():
        config = transformers().LlavaConfig.from_dict(dimensions.config(tokenizer))
        llava = transformers().LlavaForConditionalGeneration(config)
    positions = llava.model.vision_tower.embeddings.position_embedding.weight
    with torch.no_grad():
        positions[1:] = _waves(dimensions.image_size // PATCH_SIZE, dimensions.width)
    return llava


def _waves(side: int, width: int) -> Tensor:
    """Sines and cosines of a patch's column and row (Beyer et al. 2022), as large as the patches: (P, D)."""
    frequencies = SLOWEST ** -torch.linspace(0, 1, width // 4)
    angles = torch.arange(side)[:, None] * frequencies
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)
    across, down = waves.repeat(side, 1), waves.repeat_interleave(side, dim=0)
    return AMPLITUDE * torch.cat([across, down], dim=1)


def create_tokenizer() -> Any:
    """Learn a tokenizer in which a word of the generator is one token, wherever in a text it stands."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    words = pre_tokenizers.Whitespace()
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, spelled])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[UNKNOWN, START, END, IMAGE, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    start = tokenizer.token_to_id(START)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{START} $A", special_tokens=[(START, start)])
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        bos_token=START,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[IMAGE],
    )


def save_llava(llava: Any, tokenizer: Any, directory: Path) -> None:
    """Write a directory as llava-hf publishes it, with weights in half precision."""
    directory.mkdir(parents=True, exist_ok=True)
    with quiet_loading():
        llava.half().save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    side = llava.config.vision_config.image_size
    preprocessor = {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "LlavaProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": side},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": side, "width": side},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(MEAN),
        "image_std": list(STD),
    }
    (directory / PREPROCESSOR).write_text(json.dumps(preprocessor, indent=2) + "\n")
    llava.to(torch.float32)


def _texts() -> Sequence[str]:
    """Repeat the words of the pictures and of what is asked, so that the merges are theirs before those of nouns that
    nothing shows."""
    return [*(10 * instruction_vocabulary()), "user: assistant:", *unrelated_nouns()]
