"""A model that writes hard negatives of generated scenes, over a real socket, and that often misbehaves.

It answers the built-in prompts by simple rules. Whether and how a request goes wrong is decided by a digest of the
request, so that every run meets the same misbehaviour: some requests fail the first time they are sent, some always get
the same unusable answer.
"""

import asyncio
import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from services.jobs.colorshape import COLORS, RELATIONS, SHAPES
from services.score.negatives.inflection import article, plural
from services.score.negatives.prompting.checks import WrittenKind
from services.score.negatives.prompting.prompt_files import Step, load_prompts
from tests.predict.teacher_server import Dropped, Halved, TeacherServer, error

SORRY = "I'm sorry, but I can't help with that."
# Shares of the requests, in percent: those that fail once, and those whose answer can't be used.
PASSING = ("429", "500", "dropped", "halved", "no json", "hangs")
LASTING = ("refusal", "truncated", "broken list", "same again", "400")

TASKS: dict[str, tuple[WrittenKind, Step]] = {
    text.strip(): (kind, step) for kind, file in load_prompts().items() for step, text in file.instructions.items()
}


@dataclass
class ScriptedModel(TeacherServer):
    """Serves the model; `misbehaves` in percent of the requests, half of them once, half of them always.

    `sent` counts requests by their digest, `answered` those that got an answer.
    """

    misbehaves: int = 0
    hangs_s: float = 30.0
    sent: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    behaviours: Counter[str] = field(default_factory=Counter)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return error(401, "Incorrect API key provided.")
        content = await request.read()
        key = hashlib.sha256(content).hexdigest()
        body = json.loads(content)
        self.was_asked.set()
        self.sent[key] += 1
        behaviour = self._behaviour(key, is_first=self.sent[key] == 1)
        self.behaviours[behaviour] += 1
        await asyncio.sleep(self.delay_s)
        match behaviour:
            case "429":
                return error(429, "Slow down.", Retry_After="0.01")
            case "500":
                return error(500, "Oh.")
            case "dropped" | "halved":
                return await self._break_off(request, Dropped if behaviour == "dropped" else Halved)
            case "no json":
                return web.Response(text='{"choices": [{"message"', content_type="application/json")
            case "hangs":
                await asyncio.sleep(self.hangs_s)
            case "400":
                return error(400, "The content filter has rejected this prompt.", "content_filter")
        self.answered[key] += 1
        return web.json_response(_completed(body, behaviour))

    def _behaviour(self, key: str, *, is_first: bool) -> str:
        number = int(key[:8], 16)
        if number % 100 >= self.misbehaves:
            return "good"
        if number // 100 % 2 == 0:
            return PASSING[number // 200 % len(PASSING)] if is_first else "good"
        return LASTING[number // 200 % len(LASTING)]


def _completed(body: dict[str, Any], behaviour: str) -> dict[str, Any]:
    text, reason = _reply(body["messages"]), "stop"
    if behaviour == "refusal":
        text = SORRY
    elif behaviour == "truncated":
        text, reason = text[: len(text) // 2], "length"
    elif behaviour == "broken list":
        text = 'Concepts: ["circle", "squ\nNew sentence'
    elif behaviour == "same again":
        text = body["messages"][-2]["content"]  # what it was shown last
    usage = {"prompt_tokens": 500, "completion_tokens": 10}
    message = {"role": "assistant", "content": text}
    return {"model": "scripted@1", "choices": [{"message": message, "finish_reason": reason}], "usage": usage}


def _reply(messages: list[dict[str, str]]) -> str:
    kind, step = TASKS[messages[0]["content"]]
    given = dict(line.split(": ", 1) for line in messages[-1]["content"].splitlines())
    sentence = given["Sentence"]
    concepts = _concepts(sentence, "obj" if kind.startswith("add") else kind[-3:])
    if step == "locate":
        return f"Concepts: {json.dumps(concepts)}"
    if step == "swap":
        if len(set(concepts)) < 2:
            return "Possible: no"
        return f"Possible: yes\nConcepts: {json.dumps(concepts[:2])}\nNew sentence: {_swapped(sentence, *concepts[:2])}"
    if step == "one_step" and not concepts:
        return "Concepts: []"
    chosen = given.get("Chosen") or concepts[0]
    new = given.get("New") or _another(kind, chosen, sentence)
    composed = _composed(kind, sentence, chosen, new)
    if step == "propose":
        return f"New: {new}"
    if step == "compose":
        return f"New sentence: {composed}"
    return f"Concepts: {json.dumps(concepts)}\nChosen: {chosen}\nNew: {new}\nNew sentence: {composed}"


def _concepts(sentence: str, category: str) -> list[str]:
    words = {"obj": [*map(plural, SHAPES), *SHAPES], "att": [*COLORS], "rel": [*RELATIONS]}[category]
    found = re.findall(rf"\b(?:{'|'.join(words)})\b", sentence)
    return list(dict.fromkeys(found))


def _another(kind: WrittenKind, chosen: str, sentence: str) -> str:
    if kind == "add_obj":
        return "candle"
    if kind == "add_att":
        return "upside-down"
    choices = {"obj": SHAPES, "att": COLORS, "rel": RELATIONS}[kind[-3:]]
    is_plural = chosen in map(plural, SHAPES)
    other = next(one for one in choices if one not in sentence)
    return plural(other) if is_plural else other


def _composed(kind: WrittenKind, sentence: str, chosen: str, new: str) -> str:
    if kind == "add_obj":
        return sentence.replace(chosen, f"{chosen} with a {new}", 1)
    if kind == "add_att":
        return _agreeing(sentence.replace(chosen, f"{new} {chosen}", 1))
    return _agreeing(re.sub(rf"\b{chosen}\b", new, sentence, count=1))


def _swapped(sentence: str, one: str, other: str) -> str:
    changed = {one: other, other: one}
    seen: set[str] = set()

    def exchange(match: re.Match[str]) -> str:
        word = match[0]
        if word in seen:
            return word
        seen.add(word)
        return changed[word]

    return _agreeing(re.sub(rf"\b(?:{one}|{other})\b", exchange, sentence))


def _agreeing(sentence: str) -> str:
    return re.sub(r"\b(an?) (\w+)", lambda match: f"{article(match[2], match[1])} {match[2]}", sentence)
