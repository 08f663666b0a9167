"""Answerers in the services' formats: one that is always right, and one that guesses."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from aiohttp import web

from starters.visitor.questions import PATHS, Question

REFUSAL = "The documents do not say."
Answerer = Callable[[Question], dict[str, Any]]


def perfect(question: Question) -> dict[str, Any]:
    """The response that is right, with probabilities that are."""
    right = question.right
    match question.form:
        case "gallery":
            classes = sorted({one for condition in right for one in condition})
            return _embedded(
                [[float(one == name) for name in classes] for image in zip(*right, strict=True) for one in image]
            )
        case "nearest":
            vectors = [
                [1.0, 0.0] if index in (0, right) else [0.0, 1.0] for index in range(len(question.body["images"]))
            ]
            return _embedded(vectors)
        case "caption":
            return _scored([float(index == right) for index in range(len(question.body["captions"]))])
        case "rank":
            return _ranked([float(index == right) for index in range(len(question.body["documents"]))])
        case "answer" | "chat":
            attentions = [float(index == question.document) for index in range(len(question.body.get("documents", ())))]
            return _answered(question, right[0] if right else REFUSAL, attentions, 1.0 if right else 0.0)
        case _:
            return _predicted(question, right, 1.0)


def guessing(random: Random) -> Answerer:
    """Draws from a question's choices, and embeddings and scores from nowhere."""

    def guess(question: Question) -> dict[str, Any]:
        match question.form:
            case "gallery":
                count = len(question.right) * len(question.body["images"])
                return _embedded([[random.gauss(0, 1) for _ in range(4)] for _ in range(count)])
            case "caption":
                return _scored([random.random() for _ in question.choices])
            case "rank":
                return _ranked([random.random() for _ in question.choices])
            case "answer" | "chat":
                attentions = [random.random() for _ in question.body.get("documents", ())]
                text = random.choice(question.choices) if question.choices else "the purple whale"
                return _answered(question, text, attentions, None)
            case _:
                given = random.choice(question.choices) if question.choices else random.uniform(0, 10_000)
                return _predicted(question, given, random.random())

    return guess


def _embedded(vectors: Sequence[Sequence[float]]) -> dict[str, Any]:
    data = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return {"model": "embed@1", "data": data}


def _scored(scores: Sequence[float]) -> dict[str, Any]:
    total = sum(scores)
    return {"model": "score@1", "scores": [{"score": score, "probability": score / total} for score in scores]}


def _ranked(scores: Sequence[float]) -> dict[str, Any]:
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return {"model": "generate@1", "results": [{"index": index, "relevance_score": scores[index]} for index in order]}


def _answered(question: Question, text: str, attentions: Sequence[float], relevance: float | None) -> dict[str, Any]:
    told = {} if relevance is None else {"relevance": relevance}
    if question.form == "chat":
        return {"model": "generate@1", "choices": [{"message": {"content": text}}], **told}
    documents = [{"index": index, "attention": one, "relevance": None} for index, one in enumerate(attentions)]
    return {"model": "generate@1", "answer": text, "documents": documents, **told}


def _predicted(question: Question, given: Any, probability: float) -> dict[str, Any]:
    value = given if question.form == "number" else None
    return {"model": "predict@1", "predictions": [{"label": str(given), "value": value, "probability": probability}]}


@contextmanager
def serving(questions: Sequence[Question], answerer: Answerer, key: str | None = None) -> Iterator[str]:
    """Serve the answers to these questions over HTTP from a thread; gives the address."""
    known = {_identity(PATHS[question.form], dict(question.body)): question for question in questions}

    async def answer(request: web.Request) -> web.Response:
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": {"message": "Unknown key."}}, status=401)
        question = known.get(_identity(request.path, await request.json()))
        if question is None:
            return web.json_response({"error": {"message": "query: is too\nlong."}}, status=413)
        return web.json_response(answerer(question))

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{path:.*}", answer)
    with serving_app(app) as url:
        yield url


def _identity(path: str, body: dict[str, Any]) -> tuple[str, str]:
    return path, json.dumps(body, sort_keys=True)


@contextmanager
def serving_app(app: web.Application) -> Iterator[str]:
    """Serve an application from a thread, for commands that have an event loop of their own."""
    is_ready, loop, urls = threading.Event(), asyncio.new_event_loop(), list[str]()
    is_done = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        is_ready.set()
        await is_done.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert is_ready.wait(60)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(is_done.set)
        thread.join()
        loop.close()
