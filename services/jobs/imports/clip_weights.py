"""CLIPs as they are published, made into folders of kind `open-clip`.

    openai         one file: OpenAI's TorchScript archive of a ViT or a ResNet, or its state dict
    hugging-face   a folder of transformers' `CLIPModel`
    open-clip      a folder in open_clip's hub layout, with weights in safetensors or of torch.save
    training       one file of open_clip's training: NegCLIP, FSC-CLIP, CE-CLIP and every other tuned CLIP

Nothing of a source is executed, and nothing is downloaded. Weights keep their dtypes.
"""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save_file
from torch import Tensor

from services.core.refusals import Refused
from services.jobs.imports.clip_architecture import clip_config, text_tower_config, with_counters
from services.jobs.imports.hugging_face_clip import open_clip_config, open_clip_state, own_merges
from services.jobs.imports.source import MODEL_CONFIG, Source, read_object
from services.jobs.imports.weights import FORMATS, read_torch_script, separate, shards_of
from services.jobs.released_weights import State, is_torch_script, learnt, merge_lora, read_state_dict
from services.nn.clip_model import (
    HUGGING_FACE_FILES,
    MERGES,
    OPEN_CLIP_CONFIG,
    OPEN_CLIP_WEIGHTS,
    TEXT_TOWER,
    open_clip,
    uses_quick_gelu,
)

Layout = Literal["openai", "hugging-face", "open-clip", "training"]

PREPROCESSOR = "preprocessor_config.json"
# In the order of preference; an index names its shards.
WEIGHTS: dict[str, Sequence[str]] = {
    "open-clip": (OPEN_CLIP_WEIGHTS, "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin"),
    "hugging-face": tuple(chain(*FORMATS)),
}
# Files beside the configuration and the weights that a layout needs, if they are there.
BESIDE: dict[str, Sequence[str]] = {
    "open-clip": ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    "hugging-face": (PREPROCESSOR, "merges.txt", "vocab.json", "tokenizer.json"),
}
# Ends of names of buffers that earlier versions of transformers saved.
NOT_OPEN_CLIPS = ("position_ids",)


def clip_files(layout: Layout, names: Collection[str]) -> tuple[str, ...]:
    """Choose the files that a conversion reads among those of a folder; shards are named by the index, which is read
    first. Raises Refused without any weights."""
    weights = next((name for name in WEIGHTS[layout] if name in names), None)
    if weights is None:
        raise Refused(f"there are no weights: none of {', '.join(WEIGHTS[layout])}")
    config = OPEN_CLIP_CONFIG if layout == "open-clip" else MODEL_CONFIG
    return (config, weights, *(name for name in BESIDE[layout] if name in names))


def convert_clip_folder(source: Source, output: Path) -> None:
    """Convert a folder of open_clip's hub layout or of transformers' `CLIPModel`. Raises Refused."""
    if OPEN_CLIP_CONFIG in source.files:
        _convert_open_clip(source, output)
    else:
        _convert_hugging_face(source, output)


def convert_openai_clip(source: Path, output: Path) -> None:
    """Convert a file that OpenAI published. Raises Refused."""
    state = read_torch_script(source) if is_torch_script(source) else read_state_dict(source)
    weights = learnt(state)
    _write(output, clip_config(weights), with_counters(weights))


def convert_trained_clip(source: Path, output: Path, *, architecture: str) -> None:
    """Convert one file of open_clip's training, by open_clip's name of its architecture. Raises Refused."""
    weights = learnt(merge_lora(read_state_dict(source)))
    known = open_clip().get_model_config(architecture)
    if known is None:
        raise Refused(f"{architecture!r} is no model that open_clip knows")
    model = {**known, "quick_gelu": uses_quick_gelu(architecture, None)}
    _write(output, {"model_cfg": model, "preprocess_cfg": {}}, with_counters(weights))


def _convert_open_clip(source: Source, output: Path) -> None:
    config = read_object(source, OPEN_CLIP_CONFIG)
    if not isinstance(model := config.get("model_cfg"), dict):
        raise Refused(f"{OPEN_CLIP_CONFIG} has no model_cfg")
    text = model.get("text_cfg", {})
    weights = learnt(_read_weights(source, "open-clip"))
    weights = {name: weight for name, weight in weights.items() if not name.endswith(NOT_OPEN_CLIPS)}
    if model.get("custom_text") or text.get("hf_model_name"):
        weights = _with_text_tower(weights)
    shape = (1,) if model.get("nonscalar_logit_scale") else ()
    for name in ("logit_scale", "logit_bias"):
        if name in weights:
            weights[name] = weights[name].reshape(shape)
    _write(output, config, weights)
    if text.get("hf_tokenizer_name"):
        _copy_tokenizer(source, output)
    if tower := text.get("hf_model_name"):
        (output / TEXT_TOWER).mkdir(exist_ok=True)
        _write_json(output / TEXT_TOWER / "config.json", text_tower_config(weights, tower))


def _convert_hugging_face(source: Source, output: Path) -> None:
    converted = open_clip_config(read_object(source, MODEL_CONFIG), read_object(source, PREPROCESSOR))
    state = open_clip_state(_read_weights(source, "hugging-face"))
    known = [" ".join(merge) for merge in open_clip().tokenizer._tokenizer.bpe_ranks]
    merges = own_merges(source, known, converted["model_cfg"]["text_cfg"]["vocab_size"])
    _write(output, converted, state)
    if merges is not None:
        (output / MERGES).write_bytes(merges)


def _write(output: Path, config: dict[str, Any], state: Mapping[str, Tensor]) -> None:
    output.mkdir(parents=True, exist_ok=True)
    for name in (*HUGGING_FACE_FILES, MERGES):  # of an earlier conversion
        (output / name).unlink(missing_ok=True)
    _write_json(output / OPEN_CLIP_CONFIG, config)
    save_file(separate(state), output / OPEN_CLIP_WEIGHTS, metadata={"format": "pt"})


def _read_weights(source: Source, layout: Layout) -> State:
    weights = clip_files(layout, source.files)[1]
    state: State = {}
    for shard in shards_of(source, weights) if weights.endswith(".index.json") else (weights,):
        state |= read_state_dict(source.fetch(shard))
    return state


def _with_text_tower(state: State) -> State:
    """Name the weights of a text tower as `CustomTextCLIP` does, also where an earlier open_clip wrote them."""
    if "text_projection" not in state:
        return state
    parts = ("text_projection", "positional_embedding", "token_embedding", "transformer", "ln_final")
    return {f"text.{name}" if name.startswith(parts) else name: weight for name, weight in state.items()}


def _copy_tokenizer(source: Source, output: Path) -> None:
    if "tokenizer.json" not in source.files:
        raise Refused("its text tower needs a Hugging Face tokenizer, and there is no tokenizer.json")
    for name in BESIDE["open-clip"]:
        if "auto_map" in read_object(source, name):
            raise Refused(f"{name} refers to code (auto_map), which is never run")
        if name in source.files:
            shutil.copyfile(source.fetch(name), output / name)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
