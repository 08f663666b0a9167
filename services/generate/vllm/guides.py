"""Limits of what guides an answer over vLLM: schemas, choices, patterns and grammars.

vLLM compiles a guide before the first token, in threads that cannot be stopped, on the processors that its engine
needs. So a guide is bounded by what makes compiling long, before vLLM sees it: its size, its depth, its number of
values, and its repetitions. And clients take turns: one new guide of each is compiled at a time.
"""

import asyncio
import hashlib
import re
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson

from services.core.errors import InvalidRequest, TooLarge, check_count
from services.core.exchange import current_caller
from services.core.fair_gate import FairGate

# All guides of a request together.
MAX_GUIDE_CHARACTERS = 128 * 1024
MAX_GUIDE_VALUES = 4096
MAX_GUIDE_DEPTH = 32
MAX_GUIDE_CHOICES = 1024
MAX_PATTERN_CHARACTERS = 2048
MAX_GRAMMAR_CHARACTERS = 32 * 1024
MAX_BAD_WORDS = 1024
# Repetitions of a request's patterns and grammars (`{m,n}`, nested ones multiplied), and of its schemas' strings, where
# equal lengths and further characters of a long string cost nothing.
MAX_REPETITIONS = 1024
LONG_STRING = 128

# Fields whose value is compiled.
GUIDES = ("response_format", "structured_outputs", "tools")
# New guides at vLLM at a time, and the last ones that it has compiled and keeps.
MAX_COMPILING = 4
MAX_REMEMBERED = 256
# How long a guide that was left while vLLM compiles it counts as being compiled.
ABANDONED_S = 10.0
# What vLLM says of a guide that it refuses.
_OF_GUIDE = re.compile("grammar|regex|schema|structur|choice|json", re.IGNORECASE)

_PATTERN_TOKEN = re.compile(
    r"(?P<atom>\\.|\[\^?\]?(?:\\.|[^\]\\])*\])|\{(?P<low>\d*)(?P<range>,(?P<high>\d*))?\}|(?P<other>.)", re.DOTALL
)
_QUOTED = re.compile(r"\"(?:\\.|[^\"\\\n])*\"")
_GRAMMAR_TOKEN = re.compile(
    r"#[^\n]*|//[^\n]*"
    r"|(?P<terminal>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|\[(?:\\.|[^\]\\])*\]|/(?:\\.|[^/\\\n])+/)"
    r"|(?P<rule>[?!]?[\w-]+(?:\.\d+)?)\s*(?:::=|:(?!:))"
    r"|(?P<name>[\w-]+)"
    r"|(?P<optional>[*?]|\{\s*(?:0\s*)?,|\{\s*0\s*\})"
    r"|(?P<sign>[()|\[\]])",
    re.DOTALL,
)


def check_guides(given: Mapping[str, Any]) -> None:
    """Check the fields of a request that vLLM compiles; those that it does not have need not be there.

    Raises TooLarge for a guide that would take long to compile, and InvalidRequest for one that derives no answer.
    """
    words = given.get("bad_words") or ()
    check_count("bad_words", len(words), MAX_BAD_WORDS, "words")
    check_count("bad_words", sum(map(len, words)), MAX_GRAMMAR_CHARACTERS, "characters")
    budget = _Budget()
    for name in GUIDES:
        for field in _fields(name, given[name]) if name in given else ():
            budget.read(field)


def blamed(given: Mapping[str, Any], reason: str) -> str | None:
    """Return the field that vLLM refuses for this reason; None where it is none that guides an answer."""
    return next((name for name in GUIDES if name in given), None) if _OF_GUIDE.search(reason) else None


class GuideTurns:
    """Lets in new guides, few at a time and one of a client; those that vLLM has compiled lately need no turn."""

    def __init__(self) -> None:
        self._gate = FairGate(MAX_COMPILING)
        self._compiled: OrderedDict[bytes, None] = OrderedDict()

    @asynccontextmanager
    async def turn(self, given: Mapping[str, Any]) -> AsyncIterator[Callable[[], None]]:
        """Wait for the turn of a request's guides; the block calls what it is given once vLLM has compiled them."""
        guides = [(name, given[name]) for name in GUIDES if name in given]
        if not guides:
            yield lambda: None
            return
        digest = hashlib.sha256(orjson.dumps(guides)).digest()
        one_of_client: dict[Hashable, int] = {("guide", current_caller().client): 1}
        permit = None if digest in self._compiled else await self._gate.take(1, one_of_client)

        def compiled() -> None:
            nonlocal permit
            self._compiled[digest] = None
            self._compiled.move_to_end(digest)
            if len(self._compiled) > MAX_REMEMBERED:
                self._compiled.popitem(last=False)
            if permit is not None:
                self._gate.give_back(permit)
                permit = None

        wait_s = 0.0
        try:
            if digest in self._compiled:  # by the request whose turn it was before
                compiled()
            yield compiled
        except asyncio.CancelledError:
            wait_s = ABANDONED_S
            raise
        finally:
            if permit is not None:
                asyncio.get_running_loop().call_later(wait_s, self._gate.give_back, permit)


class _Field(NamedTuple):
    """A part of a guide: `key` says what a string is, such as `pattern` or `grammar`."""

    path: str
    key: str
    value: Any
    depth: int = 0
    is_in_schema: bool = False


class _Budget:
    """Counts what the guides of one request have of each thing that is limited."""

    def __init__(self) -> None:
        self._spent: defaultdict[str, int] = defaultdict(int)
        self._lengths: set[tuple[Any, Any]] = set()

    def check(self, param: str, what: str, amount: int, limit: int) -> None:
        self._spent[what] += amount
        if self._spent[what] > limit:
            message = f"{param}: What guides the answer has over {limit} {what}, the limit."
            raise TooLarge(message, param=param, code="guide_too_large")

    def read(self, field: _Field) -> None:
        """Count a field and everything in it, and check that its schemas and grammars derive something."""
        param, left, schemas = field.path, [field], []
        while left:
            one = left.pop()
            self.check(param, "values", 1, MAX_GUIDE_VALUES)
            if one.depth > MAX_GUIDE_DEPTH:
                message = f"{param}: It is nested more than {MAX_GUIDE_DEPTH} levels deep, the limit."
                raise TooLarge(message, param=param, code="guide_too_large")
            is_schema = one.key in ("json", "schema", "json_schema") and not one.is_in_schema
            is_in_schema = is_schema or one.is_in_schema
            if isinstance(one.value, str):
                self._read_text(param, one.key, one.value)
            elif isinstance(one.value, Mapping):
                if is_schema:
                    schemas.append(one.value)
                if "maxLength" in one.value or "minLength" in one.value:
                    self._read_length(param, one.value)
                for key, value in one.value.items():
                    self._read_text(param, "pattern" if one.key == "patternProperties" else "", key)
                    left.append(_Field(param, key, value, one.depth + 1, is_in_schema))
            elif isinstance(one.value, Sequence):
                left += [_Field(param, one.key, value, one.depth + 1, is_in_schema) for value in one.value]
        for schema in schemas:
            if not _derives(_clauses_of_schema(schema), id(schema)):
                raise InvalidRequest(f"{param}: A schema refers to itself without end: nothing fits it.", param=param)

    def _read_text(self, param: str, key: str, text: str) -> None:
        self.check(param, "characters", len(text), MAX_GUIDE_CHARACTERS)
        if key in ("pattern", "regex", "whitespace_pattern"):
            self.check(param, "characters of patterns", len(text), MAX_PATTERN_CHARACTERS)
            self.check(param, "repetitions", _repetitions(text), MAX_REPETITIONS)
        elif key == "grammar":
            self.check(param, "characters of grammars", len(text), MAX_GRAMMAR_CHARACTERS)
            self.check(param, "repetitions", _repetitions_of_grammar(text), MAX_REPETITIONS)
            rules = _clauses_of_grammar(text)
            start = next((name for name in ("root", "start") if name in rules), None)
            if start is not None and not _derives(rules, start):
                raise InvalidRequest(f"{param}: The rule {start!r} refers to itself without end.", param=param)

    def _read_length(self, param: str, schema: Mapping[str, Any]) -> None:
        lengths = schema.get("minLength"), schema.get("maxLength")
        if lengths not in self._lengths:
            self._lengths.add(lengths)
            longest = max((one for one in lengths if isinstance(one, int)), default=0)
            self.check(param, "repetitions", min(longest, LONG_STRING), MAX_REPETITIONS)


def _fields(name: str, guide: Any) -> Iterator[_Field]:
    """Yield the parts of a guide, each with its path in the request; a schema that is written as text is parsed."""
    if name == "tools":
        for place, tool in enumerate(guide):
            path = f"tools.{place}.function.parameters"
            yield _Field(path, "schema", (tool.get("function") or {}).get("parameters"))
    elif isinstance(guide, Mapping):
        for key, value in guide.items():
            path = f"{name}.{key}"
            if key in ("json", "structural_tag") and isinstance(value, str) and len(value) <= MAX_GUIDE_CHARACTERS:
                try:
                    value = orjson.loads(value)
                except orjson.JSONDecodeError:
                    raise InvalidRequest(f"{path}: It is not valid JSON.", param=path) from None
            if key == "choice" and isinstance(value, Sequence):
                check_count(path, len(value), MAX_GUIDE_CHOICES, "choices")
            if key == "json_schema" and isinstance(value, Mapping):
                yield _Field(f"{path}.schema", "schema", value.get("schema"))
            else:
                yield _Field(path, key, value)


def _repetitions(text: str) -> int:
    """Count what the `{m,n}` of a pattern repeat; those of a group are repeated with it."""
    sums, of_group = [0], 0  # in each open group, and in the group that ended just before this place
    for token in _PATTERN_TOKEN.finditer(text):
        if token["other"] == "(":
            sums.append(0)
        elif token["other"] == ")" and len(sums) > 1:
            of_group = sums.pop()
            sums[-1] += of_group
            continue
        elif (token["other"] or "").isspace():
            continue
        elif token["low"] or token["high"]:
            number = min(int((token["high"] or token["low"])[:9]), MAX_REPETITIONS + 1)
            sums[-1] += number * of_group - of_group if of_group else number
        of_group = 0
    return min(sum(sums), MAX_REPETITIONS + 1)


def _repetitions_of_grammar(grammar: str) -> int:
    """Count what the `{m,n}` of a grammar repeat; those of the rules that a rule names are repeated with its own."""
    starts = [(token.start(), token["rule"]) for token in _GRAMMAR_TOKEN.finditer(grammar) if token["rule"]]
    ends = [*(start for start, _ in starts[1:]), len(grammar)]
    bodies = {name: grammar[start:end] for (start, name), end in zip(starts, ends, strict=True)}
    own = {name: _repetitions(_QUOTED.sub("x", body)) for name, body in bodies.items()}
    repeating = {name for name, number in own.items() if number > 1}
    totals: dict[str, int] = {}

    def total(name: str, depth: int) -> int:
        if depth > MAX_REPETITIONS.bit_length():  # each of them at least doubles it
            return MAX_REPETITIONS + 1
        if name not in totals:
            totals[name] = own[name]  # what a rule that names itself finds
            named = {token["name"] for token in _GRAMMAR_TOKEN.finditer(bodies[name])} & repeating
            totals[name] *= max((total(one, depth + 1) for one in named if one != name), default=1)
        return totals[name]

    return sum(total(name, 0) for name in repeating)


# Of each head, the lists of all that must derive something for it to do so.
_Clauses = defaultdict[Hashable, list[list[Hashable]]]


def _derives(clauses: Mapping[Hashable, Sequence[Sequence[Hashable]]], start: Hashable) -> bool:
    """Whether a head derives something; a head without a clause does."""
    needed_by: defaultdict[Hashable, list[tuple[Hashable, int]]] = defaultdict(list)
    missing: list[int] = []
    ready: list[Hashable] = []
    for head, alternatives in clauses.items():
        for needs in alternatives:
            lacking = {need for need in needs if need in clauses}
            for need in lacking:
                needed_by[need].append((head, len(missing)))
            missing.append(len(lacking))
            if not lacking:
                ready.append(head)
    done: set[Hashable] = set()
    while ready:
        if (found := ready.pop()) in done:
            continue
        done.add(found)
        for head, clause in needed_by[found]:
            missing[clause] -= 1
            if not missing[clause]:
                ready.append(head)
    return start in done or start not in clauses


def _clauses_of_schema(schema: Any) -> _Clauses:
    """Say of each schema in one which others must be fitted too, each by its identity."""
    clauses: _Clauses = defaultdict(list)
    left = [schema]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            needs: list[Hashable] = []
            if isinstance(reference := one.get("$ref"), str):
                needs.append(id(_target(schema, reference)))
            needs += map(id, _schemas(one.get("allOf")))
            for key in ("anyOf", "oneOf"):
                if alternatives := _schemas(one.get(key)):
                    needs.append(head := (key, id(one)))
                    clauses[head] = [[id(alternative)] for alternative in alternatives]
            required, properties = one.get("required"), one.get("properties")
            if isinstance(required, Sequence) and isinstance(properties, Mapping):
                needs += [id(properties[key]) for key in required if isinstance(key, str) and key in properties]
            if isinstance(least := one.get("minItems"), int) and least > 0 and "items" in one:
                needs.append(id(one["items"]))
            clauses[id(one)] = [needs]
            left += one.values()
        elif isinstance(one, Sequence) and not isinstance(one, str):
            left += one
    return clauses


def _schemas(given: Any) -> list[Any]:
    return [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []


def _target(schema: Any, reference: str) -> Any:
    """Find what a reference within a schema refers to; None for one that leads elsewhere."""
    if not reference.startswith("#"):
        return None
    found = schema
    for part in filter(None, unquote(reference[1:]).split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def _clauses_of_grammar(grammar: str) -> _Clauses:
    """Say of each rule of an EBNF or Lark grammar which others each of its alternatives needs."""
    clauses: _Clauses = defaultdict(list)
    open_groups: list[tuple[Hashable, list[Hashable]]] = [("", [])]
    number = 0
    for token in _GRAMMAR_TOKEN.finditer(grammar):
        head, needs = open_groups[-1]
        if token["rule"]:
            for group in open_groups:
                clauses[group[0]].append(group[1])
            open_groups = [(token["rule"].lstrip("?!").partition(".")[0], [])]
        elif token["name"]:
            needs.append(token["name"])
        elif token["optional"]:
            if needs:
                needs.pop()
        elif token["sign"] == "(":
            number += 1
            open_groups.append((number, []))
        elif token["sign"] == "|":
            clauses[head].append(list(needs))
            needs.clear()
        elif token["sign"] == ")" and len(open_groups) > 1:
            open_groups.pop()
            clauses[head].append(needs)
            open_groups[-1][1].append(head)
        elif token["terminal"]:
            needs.append("")
    for group in open_groups:
        clauses[group[0]].append(group[1])
    return clauses
