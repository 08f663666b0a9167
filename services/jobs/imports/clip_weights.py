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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save_file
from torch import Tensor

from services.jobs.imports.clip_architecture import clip_config, text_tower_config, with_counters
from services.jobs.imports.hugging_face_clip import open_clip_config, open_clip_state, own_merges
from services.jobs.imports.weights import read_torch_script, separate
from services.jobs.released_weights import (
    State,
    UnusableWeights,
    is_torch_script,
    leave_out,
    merge_lora,
    read_state_dict,
)
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

HUGGING_FACE_CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
# In the order of preference; an index names its shards.
WEIGHTS: dict[str, Sequence[str]] = {
    "open-clip": (OPEN_CLIP_WEIGHTS, "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin"),
    "hugging-face": (
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
    ),
}
# Files beside the configuration and the weights that a layout needs, if they are there.
BESIDE: dict[str, Sequence[str]] = {
    "open-clip": ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    "hugging-face": (PREPROCESSOR, "merges.txt", "vocab.json", "tokenizer.json"),
}
# Ends of names of buffers that earlier versions of transformers saved.
NOT_OPEN_CLIPS = ("position_ids",)


@dataclass(frozen=True)
class ConvertedClip:
    """A written folder: the layout that it was made from, its configuration, and the weights that were left out."""

    layout: Layout
    config: dict[str, Any]
    left_out: tuple[str, ...]


def clip_layout(folder: Path) -> Layout | None:
    """Return the layout of a folder, None if it is neither of open_clip nor of transformers' CLIP."""
    if (folder / OPEN_CLIP_CONFIG).is_file():
        return "open-clip"
    config = _read_json(folder / HUGGING_FACE_CONFIG) if (folder / HUGGING_FACE_CONFIG).is_file() else {}
    return "hugging-face" if config.get("model_type") == "clip" else None


def clip_files(layout: Layout, names: Collection[str]) -> tuple[str, ...]:
    """Choose the files that a conversion reads among those of a folder; shards are named by the index, which is read
    first. Raises UnusableWeights without any weights."""
    weights = next((name for name in WEIGHTS[layout] if name in names), None)
    if weights is None:
        raise UnusableWeights(f"there are no weights: none of {', '.join(WEIGHTS[layout])}")
    config = OPEN_CLIP_CONFIG if layout == "open-clip" else HUGGING_FACE_CONFIG
    return (config, weights, *(name for name in BESIDE[layout] if name in names))


def convert_clip_folder(source: Path, output: Path) -> ConvertedClip:
    """Convert a folder of open_clip's hub layout or of transformers' `CLIPModel`. Raises UnusableWeights."""
    layout = clip_layout(source)
    if layout is None:
        raise UnusableWeights(
            f"{source} has no {OPEN_CLIP_CONFIG}, and no {HUGGING_FACE_CONFIG} of a CLIP; of SigLIP, take the "
            "repository in open_clip's layout, such as timm/ViT-B-16-SigLIP"
        )
    state = _read_weights(source, clip_files(layout, [path.name for path in source.iterdir()])[1])
    return (_of_open_clip if layout == "open-clip" else _of_hugging_face)(source, state, output)


def convert_openai_clip(source: Path, output: Path) -> ConvertedClip:
    """Convert a file that OpenAI published. Raises UnusableWeights."""
    state = read_torch_script(source) if is_torch_script(source) else read_state_dict(source)
    learnt, left_out = leave_out(state, [])
    config = clip_config(learnt, quick_gelu=True)
    return _written("openai", output, config, with_counters(learnt), left_out)


def convert_trained_clip(
    source: Path,
    output: Path,
    *,
    architecture: str | None = None,
    quick_gelu: bool | None = None,
    lora_alpha: float = 1.0,
    prefixes: Sequence[str] = (),
) -> ConvertedClip:
    """Convert one file of open_clip's training, by open_clip's name of its architecture or by its shapes.

    Without a name, `quick_gelu` must tell the activation, which no weight does: true for what was tuned from OpenAI's
    weights, such as NegCLIP and FSC-CLIP. Weights whose names begin with `prefixes` are left out. Raises
    UnusableWeights.
    """
    lora = merge_lora(read_state_dict(source), lora_alpha)
    state, left_out = leave_out(lora.state, prefixes)
    if architecture is not None:
        known = open_clip().get_model_config(architecture)
        if known is None:
            raise UnusableWeights(f"{architecture!r} is no model that open_clip knows")
        own = uses_quick_gelu(architecture, None) if quick_gelu is None else quick_gelu
        config = {"model_cfg": {**known, "quick_gelu": own}, "preprocess_cfg": {}}
    elif quick_gelu is None:
        raise UnusableWeights(
            f"{source.name} does not tell its activation: give the architecture, such as ViT-B-32-quickgelu for models "
            "tuned from OpenAI's weights and ViT-B-32 for others"
        )
    else:
        config = clip_config(state, quick_gelu=quick_gelu)
    return _written("training", output, config, with_counters(state), left_out)


def _of_open_clip(source: Path, state: State, output: Path) -> ConvertedClip:
    config = _read_json(source / OPEN_CLIP_CONFIG)
    if not isinstance(model := config.get("model_cfg"), dict):
        raise UnusableWeights(f"{OPEN_CLIP_CONFIG} has no model_cfg")
    text = model.get("text_cfg", {})
    learnt, left_out = leave_out(state, [])
    gone = [name for name in learnt if name.endswith(NOT_OPEN_CLIPS)]
    learnt = {name: weight for name, weight in learnt.items() if name not in gone}
    if model.get("custom_text") or text.get("hf_model_name"):
        learnt = _with_text_tower(learnt)
    shape = (1,) if model.get("nonscalar_logit_scale") else ()
    for name in ("logit_scale", "logit_bias"):
        if name in learnt:
            learnt[name] = learnt[name].reshape(shape)
    converted = _written("open-clip", output, config, learnt, [*left_out, *gone])
    if text.get("hf_tokenizer_name"):
        _copy_tokenizer(source, output)
    if tower := text.get("hf_model_name"):
        (output / TEXT_TOWER).mkdir(exist_ok=True)
        _write_json(output / TEXT_TOWER / "config.json", text_tower_config(learnt, tower))
    return converted


def _of_hugging_face(source: Path, state: State, output: Path) -> ConvertedClip:
    config = _read_json(source / HUGGING_FACE_CONFIG)
    preprocessor = _read_json(source / PREPROCESSOR) if (source / PREPROCESSOR).is_file() else {}
    left_out = [name for name in state if name.endswith(NOT_OPEN_CLIPS)]
    converted = open_clip_config(config, preprocessor)
    merges = own_merges(source, _own_merges_of_clip(), converted["model_cfg"]["text_cfg"]["vocab_size"])
    written = _written("hugging-face", output, converted, open_clip_state(state), left_out)
    if merges is not None:
        (output / MERGES).write_bytes(merges)
    return written


def _written(
    layout: Layout, output: Path, config: dict[str, Any], state: Mapping[str, Tensor], left_out: Sequence[str]
) -> ConvertedClip:
    output.mkdir(parents=True, exist_ok=True)
    for name in (*HUGGING_FACE_FILES, MERGES):  # of an earlier conversion
        (output / name).unlink(missing_ok=True)
    _write_json(output / OPEN_CLIP_CONFIG, config)
    save_file(separate(state), output / OPEN_CLIP_WEIGHTS, metadata={"format": "pt"})
    return ConvertedClip(layout, config, tuple(left_out))


def _read_weights(folder: Path, name: str) -> State:
    if not name.endswith(".index.json"):
        return read_state_dict(folder / name)
    mapped = _read_json(folder / name).get("weight_map")
    if not isinstance(mapped, dict) or not all(
        isinstance(shard, str) and "/" not in shard for shard in mapped.values()
    ):
        raise UnusableWeights(f"{name} has no weight_map")
    state: State = {}
    for shard in sorted(set(mapped.values())):
        state |= read_state_dict(folder / shard)
    return state


def _with_text_tower(state: State) -> State:
    """Name the weights of a text tower as `CustomTextCLIP` does, also where an earlier open_clip wrote them."""
    if "text_projection" not in state:
        return state
    parts = ("text_projection", "positional_embedding", "token_embedding", "transformer", "ln_final")
    return {f"text.{name}" if name.startswith(parts) else name: weight for name, weight in state.items()}


def _copy_tokenizer(source: Path, output: Path) -> None:
    if not (source / "tokenizer.json").is_file():
        raise UnusableWeights("its text tower needs a Hugging Face tokenizer, and there is no tokenizer.json")
    for name in BESIDE["open-clip"]:
        if (source / name).is_file():
            if "auto_map" in _read_json(source / name):
                raise UnusableWeights(f"{name} refers to code (auto_map), which is never run")
            shutil.copyfile(source / name, output / name)


def _own_merges_of_clip() -> list[str]:
    tokenizer = open_clip().tokenizer._tokenizer
    return [" ".join(merge) for merge in tokenizer.bpe_ranks]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnusableWeights(f"{path.name} can't be read: {error}") from error
    if not isinstance(found, dict):
        raise UnusableWeights(f"{path.name} is not a JSON object")
    return found


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
