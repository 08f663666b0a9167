"""Prompts of the types of hard negatives, as TOML files that people can read and change, and the chats made of them.

A file `<type>.toml` holds instructions for each request and demonstrations, which become the earlier turns of a chat.
Beside the built-in files there are those that SugarCrepe's authors printed, of replacements.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.core.refusals import first_complaint
from services.core.text_files import BadFile, read_toml
from services.score.negatives.prompting.checks import FORM_OF, WRITTEN_KINDS, WrittenKind, problem_of

OWN_PROMPTS = Path(__file__).with_name("prompts")
# The name that stands for the printed ones where there is no folder of it, and their folder.
PRINTED = "printed"
PRINTED_PROMPTS = Path(__file__).with_name("printed")
_LABEL = re.compile(r"^(Sentence|Concepts|Chosen|New)(?=:)", re.MULTILINE)

# Requests about a sentence: all at once; or its concepts, a new one, and the sentence with it; or a swap.
Step = Literal["one_step", "locate", "propose", "compose", "swap"]
STEPS_OF: Mapping[str, tuple[Step, ...]] = {
    "replace": ("one_step", "locate", "propose", "compose"),
    "add": ("one_step", "locate", "propose", "compose"),
    "swap": ("swap",),
}


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Demonstration(Strict):
    """A sentence and its answers; without concepts there is nothing to change, and no new sentence.

    In a swap the two `concepts` change places, and there is neither a chosen one nor a new one.
    """

    sentence: str = Field(min_length=1)
    concepts: tuple[str, ...]
    chosen: str = ""
    new: str = ""
    new_sentence: str = ""

    def question(self, step: Step) -> str:
        return question(step, self.sentence, self.chosen, self.new)

    def answer(self, step: Step) -> str:
        concepts = f"Concepts: {json.dumps(self.concepts, ensure_ascii=False)}"
        chosen, new = f"Chosen: {self.chosen}", f"New: {self.new}"
        sentence = f"New sentence: {self.new_sentence}"
        match step:
            case "locate":
                return concepts
            case "propose":
                return new
            case "compose":
                return sentence
            case "one_step":
                return "\n".join([concepts, chosen, new, sentence] if self.concepts else [concepts])
            case "swap":
                return "\n".join(["Possible: yes", concepts, sentence] if self.concepts else ["Possible: no"])


class PromptFile(Strict):
    """The prompts of one type. A `concept`, such as noun, names in labels what is changed, as in `Selected noun`."""

    concept: str = ""
    instructions: Mapping[Step, str]
    demonstrations: tuple[Demonstration, ...] = Field(min_length=1)

    def messages(self, step: Step, sentence: str, chosen: str = "", new: str = "") -> list[dict[str, str]]:
        """Return the chat that asks for a step: the instructions, each demonstration, and the question."""
        turns = [{"role": "system", "content": self.instructions[step].strip()}]
        for one in self.demonstrations:
            if one.concepts or step in ("one_step", "locate", "swap"):
                turns.append({"role": "user", "content": self._labelled(one.question(step))})
                turns.append({"role": "assistant", "content": self._labelled(one.answer(step))})
        return [*turns, {"role": "user", "content": self._labelled(question(step, sentence, chosen, new))}]

    def _labelled(self, text: str) -> str:
        """Write the labels with the concept's name, if there is one."""
        names = {"Sentence": "Original sentence", "Concepts": f"{self.concept.capitalize()}s"}
        names |= {"Chosen": f"Selected {self.concept}", "New": f"New {self.concept}"}
        return _LABEL.sub(lambda match: names[match[1]], text) if self.concept else text


Prompts = Mapping[WrittenKind, PromptFile]


def question(step: Step, sentence: str, chosen: str = "", new: str = "") -> str:
    """Return the last turn of a chat: the sentence and what the earlier steps have found."""
    lines = [f"Sentence: {sentence}"]
    if step in ("propose", "compose"):
        lines.append(f"Chosen: {chosen}")
    if step == "compose":
        lines.append(f"New: {new}")
    return "\n".join(lines)


def load_prompts(folder: Path | None = None, kinds: Sequence[WrittenKind] = WRITTEN_KINDS) -> Prompts:
    """Load the prompts of these types from a folder, the PRINTED or the built-in ones. Raises BadFile, naming the
    file.

    Types for which the folder has no file keep the built-in prompts; a file that belongs to no type is refused.
    """
    own = folder or OWN_PROMPTS
    if own.name == PRINTED and not own.exists():
        own = PRINTED_PROMPTS
    if not own.is_dir():
        raise BadFile(f"{own} is not a folder of prompts")
    if unknown := sorted(path.name for path in own.glob("*.toml") if path.stem not in WRITTEN_KINDS):
        raise BadFile(f"{own / unknown[0]} belongs to no type; there are {', '.join(WRITTEN_KINDS)}")
    return {kind: _load(kind, path if (path := own / f"{kind}.toml").exists() else _built_in(kind)) for kind in kinds}


def _built_in(kind: WrittenKind) -> Path:
    return OWN_PROMPTS / f"{kind}.toml"


def _load(kind: WrittenKind, path: Path) -> PromptFile:
    given = read_toml(path)
    try:
        file = PromptFile.model_validate(given)
    except ValidationError as error:
        raise BadFile(f"{path}: {first_complaint(error, 'the file')}") from None
    if missing := set(STEPS_OF[FORM_OF[kind]]) - file.instructions.keys():
        raise BadFile(f"{path}: instructions.{min(missing)} is missing")
    for number, one in enumerate(file.demonstrations, start=1):
        if complaint := _complaint(kind, one):
            raise BadFile(f"{path}: demonstrations.{number}: {complaint}")
    return file


def _complaint(kind: WrittenKind, one: Demonstration) -> str | None:
    """Tell what is wrong with a demonstration: it must pass the checks that answers must."""
    needed = ("new_sentence",) if FORM_OF[kind] == "swap" else ("chosen", "new", "new_sentence")
    for name in needed:
        if bool(getattr(one, name)) != bool(one.concepts):
            return f"{name} and concepts go together"
    if not one.concepts:
        return None
    chosen = one.chosen if FORM_OF[kind] == "replace" else None
    return problem_of(kind, one.sentence, one.new_sentence, chosen)
