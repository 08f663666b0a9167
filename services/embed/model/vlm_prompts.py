"""Prompts by which a vision-language model embeds: the two published ones, and any other in their form.

A checkpoint's own prompt stands in its `vlm_embedding.json`. It is written through the model's chat template once, when
the checkpoint is loaded; a condition or a text is then put into its place.
"""

import json
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.nn.model_configs import faults_of

VLM_CONFIG = "vlm_embedding.json"
CONDITION = "{condition}"
# What stands for a condition or a text while the template is written: nothing that templates look for.
PLACE = "\ue000the text\ue000"


@dataclass(frozen=True)
class VlmPrompt:
    """The system's message, and the user's behind the image; `{condition}` stands once in either, spaces around it cut.

    `bare_system` and `bare_user` are those of an image without a condition. If `embeds_texts`, a text by itself is the
    user's message under the bare system's. If `ends_sentences`, a condition without punctuation at its end gets a full
    stop. Images are resized to sides that the model's patches divide, with `min_pixels` to `max_pixels`, or such that
    the longer side is at most `max_side`, and then as the model's own processor does. Raises ValueError for a prompt
    without a place for the condition, or without a size of images.
    """

    system: str | None = None
    bare_system: str | None = None
    user: str | None = None
    bare_user: str | None = None
    embeds_texts: bool = False
    ends_sentences: bool = False
    min_pixels: int | None = None
    max_pixels: int | None = None
    max_side: int | None = None
    max_tokens: int = 8192

    def __post_init__(self) -> None:
        if ((self.system or "") + (self.user or "")).count(CONDITION) != 1:
            raise ValueError(f"{VLM_CONFIG}: system or user needs one {CONDITION}")
        if (self.max_side is None) == (self.min_pixels is None or self.max_pixels is None):
            raise ValueError(f"{VLM_CONFIG}: images need either max_side or min_pixels and max_pixels")

    @property
    def is_image_first(self) -> bool:
        """Whether the image stands before the condition."""
        return CONDITION in (self.user or "")

    def written(self, condition: str) -> str:
        """Write a condition as the model was tuned with."""
        ends = not self.ends_sentences or unicodedata.category(condition[-1]).startswith("P")
        return condition if ends else f"{condition}."


# As Qwen3-VL-Embedding's own script asks; its largest image has 1,800 tokens of 32 × 32 pixels.
INSTRUCTION = VlmPrompt(
    system=CONDITION,
    bare_system="Represent the user's input.",
    embeds_texts=True,
    ends_sentences=True,
    min_pixels=4 * 32 * 32,
    max_pixels=1800 * 32 * 32,
)
# As DIOR's own program asks by default.
ONE_WORD = VlmPrompt(
    user=f'Describe this image in one word regarding {CONDITION}: "',
    bare_user='Describe this image in one word: "',
    max_side=700,
)
# Where Qwen3-VL-Embedding tells its instruction; other models know none.
TOLD_IN = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json", "config_sentence_transformers.json")
FORMS: Mapping[str, VlmPrompt] = {"instruction": INSTRUCTION, "one-word": ONE_WORD}


@dataclass(frozen=True)
class Frame:
    """The written prompt around a condition or a text."""

    before: str
    after: str

    def around(self, text: str) -> str:
        return f"{self.before}{text}{self.after}"


@dataclass(frozen=True)
class WrittenPrompt:
    """A prompt in a model's own form: around a condition, for an image without one, and around a text by itself.

    `beside` is around a text behind an image, None if that is the condition's own place.
    """

    condition: Frame
    bare: str
    text: Frame | None
    beside: Frame | None

    @classmethod
    def of(cls, prompt: VlmPrompt, processor: Any) -> "WrittenPrompt":
        """Write a prompt through a model's chat template. Raises ValueError for a template that changes it."""

        def asked(system: str | None, user: str | None) -> str:
            return _written(processor, system, [{"type": "image"}], user)

        conditioned = [None if one is None else one.replace(CONDITION, PLACE) for one in (prompt.system, prompt.user)]
        text = _written(processor, prompt.bare_system, [], PLACE) if prompt.embeds_texts else None
        has_beside = prompt.embeds_texts and not prompt.is_image_first
        return cls(
            _frame(asked(conditioned[0], conditioned[1])),
            asked(prompt.bare_system, prompt.bare_user),
            None if text is None else _frame(text),
            _frame(asked(prompt.bare_system, PLACE)) if has_beside else None,
        )


def read_vlm_prompt(directory: Path) -> VlmPrompt:
    """Read how a directory's model is asked. Raises OSError, ValueError or TypeError for other settings."""
    if not (path := directory / VLM_CONFIG).is_file():
        return FORMS[form_of((directory / name).read_text() for name in TOLD_IN if (directory / name).is_file())]
    return VlmPrompt(**json.loads(path.read_text()))


def form_of(published: Iterable[str]) -> str:
    """Name the form that a model was published for, by the texts of those of its files that TOLD_IN names."""
    is_tuned = any(str(INSTRUCTION.bare_system) in text for text in published)
    return "instruction" if is_tuned else "one-word"


def _written(processor: Any, system: str | None, content: list[dict[str, str]], user: str | None) -> str:
    if user is not None:
        content = [*content, {"type": "text", "text": user}]
    if getattr(processor, "chat_template", None) is None:  # as DIOR's program asks such a model
        image = processor.image_token if content[0]["type"] == "image" else ""
        return "\n".join([*([system] if system else []), f"{image}{user or ''}"])
    messages = [{"role": "user", "content": content}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": system}]})
    with faults_of("its chat template"):
        written: str = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return written


def _frame(written: str) -> Frame:
    before, place, after = written.partition(PLACE)
    if not place or PLACE in after:
        raise ValueError("its chat template does not write each message once, as it is")
    return Frame(before, after)
