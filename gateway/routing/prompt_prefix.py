"""The beginning of a prompt, by which requests find the process that has computed it before.

Keys and values of a prompt, and the estimates of its calibration, are in the memory of one process. A request names
what its prompt begins with in a member of its body: the documents; in a chat without any, the messages up to the
first one of the user's, which all later turns repeat; or the text to continue. A template may put the question before
the documents, but only the model knows that, and whoever repeats both has the same documents. Text is only searched, as
for the model's name.
"""

import re
from hashlib import blake2b
from itertools import islice

from gateway.routing.upstream_choice import find_member

# Bytes that tell prompts apart, about 250 tokens. Shorter beginnings, such as a template's, many prompts share, so that
# every process has computed them soon; where longer ones differ, the rest of the prompt is what counts.
HEAD_BYTES = 1024
# Bounds of the search for the user's first message, which long instructions may precede: bytes, strings and brackets.
MAX_SEARCHED_BYTES = 64 * 1024
MAX_MARKS = 1000
# Members that may hold the turns of a conversation.
CONVERSATIONS = ("messages", "input")

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[][{}]', re.DOTALL)
_OF_USER = re.compile(rb'"role"[ \t\n\r]*:[ \t\n\r]*"user"')
_DEPTH = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


def prefix_of(body: bytes, fields: tuple[str, ...], tenant: str) -> bytes | None:
    """Return a digest of what a prompt begins with, by the first of these members that says it; None where none does.

    Other tenants' prompts have other digests, since no tenant finds those of another.
    """
    for field in fields:
        start = find_member(body, field)
        if start is not None and (beginning := _beginning(body, start, field)) is not None:
            return blake2b(b"\0".join((tenant.encode(), beginning)), digest_size=16).digest()
    return None


def _beginning(body: bytes, start: int, field: str) -> bytes | None:
    """Return the beginning of the value that stands there; None for an empty list, and for no list or string."""
    if field in CONVERSATIONS and body.startswith(b"[", start):
        value = body[start : start + MAX_SEARCHED_BYTES]
        beginning = value[: _end_of_first_turn(value)]
    else:
        value = body[start : start + HEAD_BYTES]
        beginning = value[: _end(value)]
    return beginning if beginning[:1] in (b"[", b'"') and beginning.strip(b'"[] \t\n\r') else None


def _end(value: bytes) -> int:
    """Return the length of the string or the list that a text begins with."""
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(value):
        depth += _DEPTH.get(found[0], 0)
        if depth == 0:
            return found.end()
    return len(value)


def _end_of_first_turn(messages: bytes) -> int:
    """Return where the head of the user's first message ends, in the text of a list of messages."""
    depth = start = end = 0
    for found in islice(_STRING_OR_BRACKET.finditer(messages), MAX_MARKS):
        depth += (change := _DEPTH.get(found[0], 0))
        end = found.end()
        if change == 1 and depth == 2:
            start = found.start()
        elif change == -1 and depth == 1 and _OF_USER.search(messages, start, end):
            return min(end, start + HEAD_BYTES)
        elif change == -1 and depth == 0:
            break
    return end
