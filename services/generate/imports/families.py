"""Conversation templates of model families that publish none with their tokenizers.

They write what FastChat's `get_prompt` writes for the family, to the character, after the tokenizer's `<s>`.
"""

from collections.abc import Mapping
from importlib.resources import files

from services.core.refusals import Refused

# By the part of a model's name that tells its family; Vicuna v0 had another format.
FAMILIES: Mapping[str, str] = {"vicuna": "vicuna_v1.1", "tulu": "tulu"}
_OTHER_FORMATS = ("vicuna-7b-v0", "vicuna-13b-v0", "vicuna-7b-delta-v0", "vicuna-13b-delta-v0")


def family_of(name: str) -> str | None:
    """Return the name of the template of a model's family, None for models of no known one."""
    lowered = name.lower()
    if lowered.startswith(_OTHER_FORMATS):
        return None
    return next((template for part, template in FAMILIES.items() if part in lowered), None)


def template_of(family: str) -> str:
    """Return a family's template as Jinja text. Raises Refused for an unknown one."""
    if family not in FAMILIES.values():
        known = ", ".join(FAMILIES.values())
        raise Refused(f"--chat-template: {family!r} is no file and no conversation template of a family ({known})")
    return (files("services.generate.imports") / "chat_templates" / f"{family}.jinja").read_text()
