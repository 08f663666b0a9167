"""FocalLens-MLLM: its checkpoint directories, and the engine that runs one.

A directory holds a LLaVA in transformers' layout (`config.json`, the weights, the tokenizer and
`preprocessor_config.json` as `llava-hf` publishes them) and `focallens_mllm.json`, how it is asked; without that file,
the published prompt of LLaVA-1.5 is meant. A tuned one also has `projection.safetensors`, the map to the space of
CLIP's texts.

An image passes once through the image tower and the language model for all its instructions. Nothing of it is kept
between batches: to read it again from its projected patches would save only the image tower, a small part of the model.

Shapes: B images, E embedding width, R readouts, W tokens after the image.
"""

import json
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from services.core.errors import InvalidRequest
from services.embed.focallens_mllm import FocalLensMllm
from services.embed.model.image_engine import Checkpoint, to_rows
from services.embed.model.items import Embeddings, ImageItem, Item
from services.embed.model.stacking_engine import Costs, Pair, StackingEngine, with_last
from services.nn.clip_texts import InputIds, tokenise
from services.nn.device_copies import to_device
from services.nn.devices import check_room
from services.nn.image_transform import PREPROCESSOR, PROCESSOR, ImageTransform, published_settings
from services.nn.loading import MODEL_CONFIG, quiet_loading, transformers
from services.nn.model_configs import StoredWeights, check_tokens, load_model, model_config
from services.nn.packed_linear import can_pack, pack_linear_layers
from services.nn.plain_texts import PlainTexts
from services.nn.weight_files import readable_weights

# the kind of such a directory in manifests of the model store
MLLM_KIND = "focallens-mllm"
MLLM_CONFIG = "focallens_mllm.json"
MLLM_PROJECTION = "projection.safetensors"
TOKENIZER = "tokenizer.json"
BESIDE_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# The head that predicts words, which embeddings do not need.
HEAD = "lm_head.weight"
LLAVA, LANGUAGE_MODEL, IMAGE_TOWER = "llava", "llama", "clip_vision_model"
IMAGE = "<image>"
INSTRUCTION = "{instruction}"


@dataclass(frozen=True)
class MllmPrompt:
    """The text around an image and an instruction, and the instruction of an image without one."""

    prompt: str = f"USER: {IMAGE}\n{INSTRUCTION} ASSISTANT:"
    no_instruction: str = "Describe the image."

    def __post_init__(self) -> None:
        if self.prompt.count(IMAGE) != 1 or INSTRUCTION not in self.prompt.partition(IMAGE)[2]:
            raise ValueError(f"{MLLM_CONFIG}: the prompt needs one {IMAGE}, and {INSTRUCTION} after it")


class InstructionTokenizer:
    """The language model's tokenizer, for what stands after the image: instruction, end of the prompt, </s>."""

    def __init__(self, tokenizer: Any, prompt: MllmPrompt, config: Any) -> None:
        self._tokenizer = tokenizer
        self.prompt = prompt
        self.plain = PlainTexts.of(tokenizer)
        self._image: int = config.image_token_id
        self._special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id} | {self._image}
        self._one_at_a_time = threading.Lock()
        self.end: int = tokenizer.eos_token_id
        encoded = self._encode(prompt.no_instruction)
        self.opening = tuple(encoded[: encoded.index(self._image)])
        self.num_image_tokens = num_image_tokens(config)
        taken = len(self.opening) + self.num_image_tokens
        self.context_length = config.text_config.max_position_embeddings - taken

    def num_tokens(self, text: str) -> int:
        """Count the tokens after the image. Raises InvalidRequest for an instruction with a special token."""
        return len(self._after_image(text))

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Tokenise instructions → (C, W) int64, each cut at the context length and padded with </s>.

        Raises InvalidRequest for an instruction with a special token.
        """
        rows = [torch.tensor([*self._after_image(text)[:-1][: self.context_length - 1], self.end]) for text in texts]
        return pad_sequence(rows, batch_first=True, padding_value=self.end)

    def _after_image(self, instruction: str) -> list[int]:
        input_ids = self._encode(instruction)
        after = input_ids[input_ids.index(self._image) + 1 :]
        if found := self._special.intersection(after):
            token = self._tokenizer.convert_ids_to_tokens(found.pop())
            raise InvalidRequest(f"the text contains {token}, which this model reads as a token of its own")
        return [*after, self.end]

    def _encode(self, instruction: str) -> list[int]:
        with self._one_at_a_time:  # its settings of truncation are those of all threads
            encoded: list[int] = self._tokenizer(self.prompt.prompt.replace(INSTRUCTION, instruction))["input_ids"]
        return encoded


MllmCheckpoint = Checkpoint[FocalLensMllm, InstructionTokenizer, ImageTransform]


def load_mllm(
    directory: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> MllmCheckpoint:
    """Read a FocalLens-MLLM directory for inference.

    Raises OSError, ValueError, TypeError or RuntimeError if it is not one, and ValueError if its weights do not fit
    into the device's memory.
    """
    stored = StoredWeights.in_folder(directory)
    config = llava_config(json.loads((directory / MODEL_CONFIG).read_text()), stored)
    prompt = read_prompt(directory)
    transform = image_transform(directory, config.vision_config.image_size)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    own = transformers().AutoTokenizer.from_pretrained(directory, **options)
    check_tokens(own, config.get_text_config().vocab_size)
    tokenizer = InstructionTokenizer(own, prompt, config)
    check_room(directory, torch.device(device), dtype)
    whole = load_model("LlavaForConditionalGeneration", directory, config, stored, dtype=dtype, unneeded={HEAD})
    with readable_weights(directory):
        projection = _read_projection(directory)
    model = FocalLensMllm(whole.model, tokenizer.opening, tokenizer.end, projection)
    model.eval().requires_grad_(False).to(device)
    return Checkpoint(model, tokenizer, transform)


def save_mllm(model: FocalLensMllm, base: Path, directory: Path) -> None:
    """Write a directory of a tuned model, with everything but the weights of `base`. They are stored as float16."""
    with quiet_loading():
        model.llava.half().save_pretrained(directory)
    for name in (TOKENIZER, *BESIDE_TOKENIZER, PREPROCESSOR, PROCESSOR):
        if (base / name).is_file():
            shutil.copyfile(base / name, directory / name)
    (directory / MLLM_CONFIG).write_text(json.dumps(asdict(read_prompt(base)), indent=2) + "\n")
    if model.projection is not None:
        save_file({"weight": model.projection.weight.detach().float().contiguous()}, directory / MLLM_PROJECTION)


def _read_projection(directory: Path) -> nn.Linear | None:
    path = directory / MLLM_PROJECTION
    if not path.is_file():
        return None
    weight = load_file(path)["weight"].float()
    projection = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    projection.load_state_dict({"weight": weight})
    return projection


def llava_config(raw: Mapping[str, Any], stored: StoredWeights) -> Any:
    """Return transformers' configuration of a `config.json`. Raises ValueError for another kind of model."""
    text, vision = raw.get("text_config"), raw.get("vision_config")
    if raw.get("model_type") != LLAVA or not isinstance(text, Mapping) or not isinstance(vision, Mapping):
        raise ValueError(f"{MODEL_CONFIG} is not of a LLaVA in transformers' layout (such as llava-hf/llava-1.5-7b-hf)")
    for part, given, known in (
        ("language model", text.get("model_type", LANGUAGE_MODEL), LANGUAGE_MODEL),
        ("image tower", vision.get("model_type", IMAGE_TOWER), IMAGE_TOWER),
    ):
        if given != known:
            raise ValueError(f"{MODEL_CONFIG}: the {part} is a {given!r}, and only {known!r} is served")
    return model_config(raw, stored)


def num_image_tokens(config: Any) -> int:
    """Count the tokens of an image."""
    vision = config.vision_config
    num_patches: int = (vision.image_size // vision.patch_size) ** 2
    return num_patches + 1 if config.vision_feature_select_strategy == "full" else num_patches


def read_prompt(directory: Path) -> MllmPrompt:
    """Read how a directory's model is asked. Raises ValueError or TypeError for other settings."""
    path = directory / MLLM_CONFIG
    return MllmPrompt(**json.loads(path.read_text())) if path.is_file() else MllmPrompt()


def image_transform(directory: Path, side: int) -> ImageTransform:
    """Read how an image is prepared. The crop may lie one pixel beside that of transformers, where its margin is odd.

    Raises OSError or ValueError for anything but the shorter side resized to the tower's and the centre cropped.
    """
    settings = published_settings(directory)
    size, crop = settings.get("size"), settings.get("crop_size")
    crops = isinstance(crop, Mapping) and {crop.get("height"), crop.get("width")} == {side}
    if size != {"shortest_edge": side} or not crops:
        raise ValueError(
            f"{PREPROCESSOR}: images are resized to {size} and cropped to {crop}, not to the tower's {side}"
        )
    return ImageTransform(
        size=(side, side),
        mean=tuple(settings["image_mean"]),
        std=tuple(settings["image_std"]),
        interpolation=Image.Resampling(settings["resample"]).name.lower(),
    )


class MllmEngine(StackingEngine[MllmCheckpoint]):
    """Runs one FocalLens-MLLM checkpoint."""

    image_only = "a FocalLens-MLLM"
    reference_numbers = 1024  # of 4,096 for LLaVA-1.5 7B

    def __init__(self, checkpoint: MllmCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        tokenizer = checkpoint.tokenizer
        # an image's patches pass the image tower, and then, behind the prompt's opening, the language model
        costs = Costs(2 * tokenizer.num_image_tokens + len(tokenizer.opening))
        super().__init__(checkpoint, device, dtype, costs)
        self._model = checkpoint.model
        if can_pack(device, dtype):
            pack_linear_layers(self._model)
        self._no_instruction = tokenise(tokenizer, tokenizer.prompt.no_instruction)

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> MllmCheckpoint:
        return load_mllm(directory, device=device, dtype=dtype)

    @classmethod
    def tower_width(cls, checkpoint: MllmCheckpoint) -> int:
        return checkpoint.model.width

    def cost(self, item: Item) -> int:
        """Count the tokens that the models process: an image's once, and those of each instruction."""
        if not isinstance(item, ImageItem):
            return super().cost(item)
        return self._costs.num_patches + sum((one or self._no_instruction).num_tokens for one in item.conditions)

    @property
    def embedding_width(self) -> int:
        return self._model.width

    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        asked = [torch.from_numpy(ids) for ids in (*conditions.values(), self._no_instruction.input_ids)]
        input_ids = to_device(pad_sequence(asked, batch_first=True, padding_value=self._model.end), self._device)
        return to_rows(self._model.embed(self._normalised(pixels), input_ids, with_last(pairs, len(conditions))))
