"""CLIPs in exactly the layouts in which they are published, with random weights of tiny dimensions.

Names of files and weights, dtypes, fields of configurations and tokenizers are the published ones.
"""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn

from services.jobs.imports.clip_weights import convert_clip_folder
from services.jobs.imports.source import Folder
from services.nn.clip_model import open_clip
from services.nn.loading import transformers

OPENAI_MEAN = [0.48145466, 0.4578275, 0.40821073]
OPENAI_STD = [0.26862954, 0.26130258, 0.27577711]
VOCAB_SIZE = 49408
# heads of OpenAI's models are 64 wide
TEXT = {"context_length": 77, "vocab_size": VOCAB_SIZE, "width": 64, "heads": 1, "layers": 1}
VISION = {"image_size": 64, "layers": 2, "width": 64, "patch_size": 32}
SIGLIP_VOCABULARY = ["<unk>", "</s>", "<pad>", "▁", *"abcdefghijklmnopqrstuvwxyz", "▁a", "red", "▁red", "▁square"]


State = dict[str, Tensor]
RANK = 4


def training_checkpoint(state: State, prefix: str = "") -> dict[str, Any]:
    """Return a checkpoint as open_clip's training writes it."""
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(2))]).state_dict()
    named = {f"{prefix}{name}": weight for name, weight in state.items()}
    return {"epoch": 5, "name": "run", "state_dict": named, "optimizer": optimizer, "scaler": {"scale": 2}}


def with_lora(state: State) -> tuple[State, State]:
    """Return the state as loralib's layers store it, and the weights that its model computes with."""
    generator = torch.Generator().manual_seed(0)
    released, merged = dict(state), dict(state)
    for name, weight in state.items():
        if name.endswith("in_proj_weight"):
            prefix = f"{name}_"
        elif name.endswith((".c_fc.weight", ".c_proj.weight", ".out_proj.weight")) or name == "visual.conv1.weight":
            prefix = name.removesuffix("weight")
        else:
            continue
        kernel = weight.shape[-1] if weight.ndim == 4 else 1
        a = torch.randn(RANK * kernel, weight.shape[1] * kernel, generator=generator)
        b = torch.randn(weight.shape[0] * kernel, RANK * kernel, generator=generator)
        released |= {f"{prefix}lora_A": a, f"{prefix}lora_B": b}
        merged[name] = weight + (b @ a).reshape(weight.shape) / RANK
    return released, merged


def gnm_checkpoint(state: State) -> dict[str, Any]:
    """Return a checkpoint as GNM's training/train.py writes it, of a model that OpenAI's package loaded on a GPU."""
    halved = {name: weight.half() if weight.ndim > 1 else weight for name, weight in state.items()}
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))]).state_dict()
    loss = torch.tensor(1.0, requires_grad=True) * 2
    return {"epoch": 3, "model_state_dict": halved, "optimizer_state_dict": optimizer, "loss": loss}


# The other methods of FSC-CLIP's Table 1, by name: their checkpoints, and whether these have low-rank matrices. The
# layouts follow the code that saves and loads them, in the repositories named; the released files were not at hand.
RELEASED: dict[str, tuple[Callable[[State], dict[str, Any]], bool]] = {
    # mertyg/vision-language-models-are-bows, model_zoo/__init__.py, and its fork of open_clip
    "NegCLIP": (lambda state: {"state_dict": state}, False),
    # SivanDoveh/TSVLC, src/training/main.py and src/open_clip/loralib; on one GPU and on several
    "TSVLC": (training_checkpoint, True),
    "TSVLC, several GPUs": (lambda state: training_checkpoint(state, "module."), True),
    # SivanDoveh/DAC, src/training/main.py and src/aro_clip_lora_eval.py, with the same loralib
    "DAC": (lambda state: training_checkpoint(state, "module."), True),
    # Netflix/clove, src/training/__main__.py; its example trains on eight GPUs
    "CLoVe": (lambda state: training_checkpoint(state, "module."), False),
    # ugorsahin/Generative-Negative-Mining, training/train.py and evaluation/eval_winoground.py
    "GNM": (gnm_checkpoint, False),
    # ytaek-oh/fsc-clip, src/training/main.py and src/training/models/lora_utils
    "FSC-CLIP": (training_checkpoint, False),
    "FSC-CLIP with LoRA": (training_checkpoint, True),
}


def random_weights(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw weights and statistics with which every part of a model matters."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("running_var"):
            weight.data.uniform_(0.5, 1.5, generator=generator)
        elif weight.is_floating_point() and weight.ndim:
            fan_in = weight[0].numel() if weight.ndim > 1 else 4
            weight.data.normal_(0, fan_in**-0.5, generator=generator)
            if weight.ndim == 1 and name.endswith("weight"):
                weight.data += 1
    return model.eval()


def convert_folder(source: Path, output: Path) -> None:
    """Convert a published folder as an import does."""
    convert_clip_folder(Folder(source), output)


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2))


def write_laion(folder: Path, *, has_safetensors: bool = True) -> Path:
    """Write CLIP-ViT-B-32-laion2B-s34B-b79K: open_clip's files among those for transformers."""
    folder.mkdir(parents=True)
    config = {"embed_dim": 32, "vision_cfg": VISION, "text_cfg": TEXT}
    preprocessing = {"mean": OPENAI_MEAN, "std": OPENAI_STD}
    write_json(folder / "open_clip_config.json", {"model_cfg": config, "preprocess_cfg": preprocessing})
    state = random_weights(open_clip().CLIP(**config)).state_dict()
    if has_safetensors:
        save_file(state, folder / "open_clip_model.safetensors")
    torch.save(state, folder / "open_clip_pytorch_model.bin")
    write_json(folder / "config.json", {"model_type": "clip", "architectures": ["CLIPModel"]})
    write_clip_tokenizer(folder)
    for name in ("README.md", ".gitattributes"):
        (folder / name).write_text("---\nlicense: mit\n---\n")
    return folder


def write_hugging_face(folder: Path, *, is_pickled: bool = False, act: str = "quick_gelu") -> Path:
    """Write clip-vit-large-patch14-336, whose configuration names some fields twice and the end of text wrongly."""
    folder.mkdir(parents=True)
    text = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2}
    vision = {**text, "hidden_size": 48, "intermediate_size": 192, "image_size": 42, "patch_size": 14}
    ids = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "max_position_embeddings": 77}
    written = {
        "architectures": ["CLIPModel"],
        "initializer_factor": 1.0,
        "logit_scale_init_value": 2.6592,
        "model_type": "clip",
        "projection_dim": 40,
        "text_config": {**text, **ids, "vocab_size": VOCAB_SIZE, "hidden_act": act, "projection_dim": 40},
        "text_config_dict": {**text, "projection_dim": 40},
        "torch_dtype": "float32",
        "vision_config": {**vision, "hidden_act": act, "layer_norm_eps": 1e-05, "projection_dim": 40},
        "vision_config_dict": {**vision, "projection_dim": 40},
    }
    write_json(folder / "config.json", written)
    of_model = transformers().CLIPConfig.from_pretrained(folder)
    state = random_weights(transformers().CLIPModel(of_model)).state_dict()
    for tower, length in (("text_model", 77), ("vision_model", 10)):
        # a buffer that published checkpoints hold, and that transformers no longer has
        state[f"{tower}.embeddings.position_ids"] = torch.arange(length)[None]
    if is_pickled:
        torch.save(state, folder / "pytorch_model.bin")
    else:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    preprocessor = {
        "crop_size": 42,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "feature_extractor_type": "CLIPFeatureExtractor",
        "image_mean": OPENAI_MEAN,
        "image_std": OPENAI_STD,
        "resample": 3,
        "size": 42,
    }
    write_json(folder / "preprocessor_config.json", preprocessor)
    write_clip_tokenizer(folder)
    return folder


def write_clip_tokenizer(folder: Path) -> None:
    """Write CLIP's tokenizer as Hugging Face has it."""
    known = open_clip().tokenizer._tokenizer
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    write_json(folder / "vocab.json", {names.get(token, token): place for token, place in known.encoder.items()})
    lines = ["#version: 0.2", *(" ".join(merge) for merge in known.bpe_ranks)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77})


def openai_state(*, is_resnet: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """Return OpenAI's state dict: matrices and convolutions in half precision, and three sizes."""
    vision = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None} if is_resnet else VISION
    with torch.random.fork_rng():
        model = open_clip().CLIP(embed_dim=32, quick_gelu=True, vision_cfg=vision, text_cfg=TEXT)
    random_weights(model, seed)
    open_clip().model.convert_weights_to_fp16(model)
    state: dict[str, Tensor] = model.state_dict()
    return state


class _OpenAi(nn.Module):
    """OpenAI's module tree: what its archive holds."""

    def __init__(self, *, is_resnet: bool) -> None:
        super().__init__()
        state = openai_state(is_resnet=is_resnet)
        clip = open_clip().model.build_model_from_openai_state_dict(dict(state))
        for name, child in clip.named_children():
            self.add_module(name, child)
        for name in ("positional_embedding", "text_projection", "logit_scale"):
            self.register_parameter(name, getattr(clip, name))
        self.register_buffer("input_resolution", torch.tensor(64))
        self.register_buffer("context_length", torch.tensor(77))
        self.register_buffer("vocab_size", torch.tensor(VOCAB_SIZE))

    def forward(self, x: Tensor) -> Tensor:
        """Return what it gets: only the program that reads the archive would run it."""
        return x


def write_openai(path: Path, *, is_resnet: bool = False) -> Path:
    """Write ViT-B-32.pt or RN50.pt: a TorchScript archive."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is what OpenAI published
        torch.jit.trace(_OpenAi(is_resnet=is_resnet), torch.ones(1)).save(path)  # type: ignore[no-untyped-call]
    return path


def write_siglip(folder: Path) -> Path:
    """Write ViT-B-16-SigLIP: timm's image tower, texts read in both directions, a tokenizer of T5."""
    folder.mkdir(parents=True)
    config: dict[str, Any] = {
        "embed_dim": 64,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": {
            "image_size": 160,
            "timm_model_name": "test_vit",
            "timm_model_pretrained": False,
            "timm_pool": "map",
            "timm_proj": "none",
        },
        "text_cfg": {
            "context_length": 64,
            "vocab_size": len(SIGLIP_VOCABULARY),
            "hf_tokenizer_name": "timm/ViT-B-16-SigLIP",
            "tokenizer_kwargs": {"clean": "canonicalize"},
            "width": 64,
            "heads": 2,
            "layers": 2,
            "no_causal_mask": True,
            "proj_bias": True,
            "pool_type": "last",
            "norm_kwargs": {"eps": 1e-06},
        },
    }
    half = [0.5, 0.5, 0.5]
    preprocessing = {"mean": half, "std": half, "interpolation": "bicubic", "resize_mode": "squash"}
    write_json(folder / "open_clip_config.json", {"model_cfg": config, "preprocess_cfg": preprocessing})
    _write_t5_tokenizer(folder)
    arguments = {**config, "text_cfg": {**config["text_cfg"]}}
    del arguments["custom_text"], arguments["text_cfg"]["tokenizer_kwargs"]
    model = open_clip().CustomTextCLIP(**arguments)
    random_weights(model)
    with torch.no_grad():
        model.logit_scale.fill_(4.7646)  # of the published one: above CLIP's bound of ln 100
        model.logit_bias.fill_(-12.9)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return folder


def _write_t5_tokenizer(folder: Path) -> None:
    scores = [(piece, 0.0 if place < 4 else -1.0 - 0.01 * place) for place, piece in enumerate(SIGLIP_VOCABULARY)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0))
    tokenizer.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
    _write_options(folder, special)


def write_xlm_roberta(folder: Path) -> Path:
    """Write CLIP-ViT-B-32-xlm-roberta-base-laion5B: its text tower is Hugging Face's."""
    folder.mkdir(parents=True)
    text = {
        "hf_model_name": "xlm-roberta-base",
        "hf_tokenizer_name": "xlm-roberta-base",
        "hf_pooler_type": "mean_pooler",
    }
    config = {"embed_dim": 32, "vision_cfg": VISION, "text_cfg": text}
    preprocessing = {"mean": OPENAI_MEAN, "std": OPENAI_STD}
    write_json(folder / "open_clip_config.json", {"model_cfg": config, "preprocess_cfg": preprocessing})
    state = dict(random_weights(xlm_roberta_clip(folder.parent / "tower")).state_dict())
    state["text.transformer.embeddings.position_ids"] = torch.arange(79)[None]  # as earlier versions wrote it
    torch.save(state, folder / "open_clip_pytorch_model.bin")
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *SIGLIP_VOCABULARY[3:]]
    scores = [(piece, 0.0 if place < 4 else -1.0 - 0.01 * place) for place, piece in enumerate(pieces)]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    _write_options(folder, special)
    return folder


def xlm_roberta_clip(tower: Path) -> nn.Module:
    """Create a model with a text tower of the configuration in `tower`, which is written there."""
    tower.mkdir(exist_ok=True)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 128}
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "type_vocab_size": 1, "layer_norm_eps": 1e-05}
    fields = {
        "model_type": "xlm-roberta",
        "vocab_size": len(SIGLIP_VOCABULARY) + 1,
        "max_position_embeddings": 79,
        **sizes,
        **ids,
    }
    write_json(tower / "config.json", fields)
    text = {"hf_model_name": str(tower), "hf_model_pretrained": False, "hf_pooler_type": "mean_pooler"}
    model: nn.Module = open_clip().CustomTextCLIP(embed_dim=32, vision_cfg=VISION, text_cfg=text)
    return model


def _write_options(folder: Path, special: dict[str, str]) -> None:
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        "clean_up_tokenization_spaces": True,
    }
    write_json(folder / "tokenizer_config.json", {**options, **special})
    write_json(folder / "special_tokens_map.json", special)
