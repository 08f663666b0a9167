"""Lines of logs of `/v1/decisions`, as a proxy or a script writes them."""

from typing import Any

TEAM: dict[str, Any] = {
    "type": "choice",
    "name": "team",
    "instructions": "Which team answers the ticket?",
    "choices": [{"value": "billing"}, {"value": "bug", "description": "A program is at fault."}],
}
URGENT: dict[str, Any] = {"type": "predicate", "instructions": "Is it urgent?"}
MOOD: dict[str, Any] = {
    "type": "score",
    "name": "mood",
    "instructions": [{"type": "input_text", "text": "How does the customer feel?"}],
    "levels": [{"label": "calm"}, {"label": "annoyed"}, {"label": "angry"}],
}


def chosen(label: str | bool) -> dict[str, Any]:
    return {"type": "choice", "choice": label, "confidence": 0.9, "probabilities": []}


def predicted(probability: float) -> dict[str, Any]:
    return {"type": "predicate", "probability": probability}


def scored(*shares: float) -> dict[str, Any]:
    levels = [level["label"] for level in MOOD["levels"]]
    probabilities = [
        {"label": label, "value": value, "probability": share}
        for value, (label, share) in enumerate(zip(levels, shares, strict=True))
    ]
    return {"type": "score", "score": 1.5, "confidence": 0.7, "probabilities": probabilities}


def line(text: Any, *asked: tuple[dict[str, Any], dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A request about a text with its questions and their answers."""
    questions, answers = zip(*asked, strict=True)
    return {
        "request": {"model": "teacher", "input": text, "questions": list(questions)},
        "response": {"model": "teacher", "answers": list(answers), "usage": {"input_tokens": 9}},
        **more,
    }
