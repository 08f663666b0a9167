"""Recognition of pickles by their opcodes: protocols 0 and 1 are printable, and can hide in text files of any name."""

import io
import pickletools
import re
from typing import IO, Any

# Opcodes by which a pickle runs code.
CALLS = frozenset({"REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"})
IMPORTS = frozenset({"GLOBAL", "INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4"})
# Short text can be one or two opcodes that make a number or a word: `I5\n.` is a pickle of 5.
MIN_OPCODES = 3
# No text parses as this many opcodes in a row with a valid stack.
MAX_OPCODES = 10_000

_QUALIFIED_NAME = re.compile(r"[A-Za-z_][\w.]* [A-Za-z_][\w.]*")
_MARK = object()


def is_pickle(file: IO[bytes]) -> bool:
    """Whether the rest of `file` would be loaded as a pickle of any protocol, or would run code before it fails. Bytes
    after a pickle's end do not matter; the file is read no further.
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
    except (ValueError, IndexError):  # not an opcode, an invalid argument, or a stack without the operands
        return False
    return False


def is_pickled(body: bytes) -> bool:
    """Apply `is_pickle` to bytes in memory."""
    return is_pickle(io.BytesIO(body))


def _apply(opcode: pickletools.OpcodeInfo, stack: list[Any]) -> None:
    """Pop from the stack and push on it what the opcode does. Raises IndexError where operands are missing."""
    before = opcode.stack_before
    if pickletools.markobject in before:
        while stack.pop() is not _MARK:
            pass
        before = before[: before.index(pickletools.markobject)]
    for _ in before:
        if stack.pop() is _MARK and opcode.name != "POP":
            raise IndexError
    stack += [_MARK if made is pickletools.markobject else None for made in opcode.stack_after]
