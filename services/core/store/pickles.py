"""Recognising pickles by what they do: protocols 0 and 1 are printable, and hide in text of any name."""

import io
import pickletools
import re
from typing import IO, Any

# Opcodes by which a pickle has code run.
CALLS = frozenset({"REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"})
IMPORTS = frozenset({"GLOBAL", "INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4"})
# One or two opcodes that end at once make a number or a word of what begins like text: `I5\n.` is a pickle of 5.
MIN_OPCODES = 3
# No text reads as so many opcodes in a row that find on the stack what they need.
MAX_OPCODES = 10_000

_QUALIFIED_NAME = re.compile(r"[A-Za-z_][\w.]* [A-Za-z_][\w.]*")
_MARK = object()


def is_pickle(file: IO[bytes]) -> bool:
    """Whether what `file` holds from its current place on would be loaded as a pickle of any protocol, or would have
    code run before it fails. What stands behind a pickle's end does not matter; the file is read no further.
    """
    stack: list[Any] = []
    has_imported = False
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(file), 1):
            is_whole = len(stack) == 1  # a pickler leaves nothing beside the one object
            _apply(opcode, stack)
            if opcode.name in ("GLOBAL", "INST") and not _QUALIFIED_NAME.fullmatch(str(argument)):
                return False
            has_imported = has_imported or opcode.name in IMPORTS
            if (has_imported and opcode.name in CALLS) or count >= MAX_OPCODES:
                return True
            if opcode.name == "STOP":
                return is_whole and count >= MIN_OPCODES
    except (ValueError, IndexError):  # no opcode, an argument that is none, or a stack without what is taken from it
        return False
    return False


def is_pickled(body: bytes) -> bool:
    """`is_pickle` of bytes in memory."""
    return is_pickle(io.BytesIO(body))


def _apply(opcode: pickletools.OpcodeInfo, stack: list[Any]) -> None:
    """Take from the stack and put on it what the opcode does. Raises IndexError where it does not find that."""
    before = opcode.stack_before
    if pickletools.markobject in before:
        while stack.pop() is not _MARK:
            pass
        before = before[: before.index(pickletools.markobject)]
    for _ in before:
        if stack.pop() is _MARK and opcode.name != "POP":
            raise IndexError
    stack += [_MARK if made is pickletools.markobject else None for made in opcode.stack_after]
