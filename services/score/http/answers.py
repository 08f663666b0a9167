"""Rendering of scores into response bodies in Fovea's format and in vLLM's."""

import time
import uuid
from typing import Any

import numpy as np
import orjson

from services.score.call import ScoreCall, Scored


def num_numbers(scored: Scored) -> int:
    """Estimate how many numbers the response has, which determines the time to render it."""
    heatmaps = sum(one.heatmaps.size for one in scored.explained or ())
    return 5 * len(scored.scores) + int(heatmaps)


def probabilities(scores: np.ndarray[Any, np.dtype[np.float32]], logit_scale: float) -> Any:
    """Compute the softmax of the scaled scores (N,), in float32."""
    logits = logit_scale * scores.astype(np.float64)
    weights = np.exp(logits - logits.max())
    return (weights / weights.sum()).astype(np.float32)


def matches(cosines: np.ndarray[Any, np.dtype[np.float32]], logit_scale: float, logit_bias: float) -> Any:
    """Compute the sigmoid of each scaled cosine plus the bias (N,), in float32."""
    logits = logit_scale * cosines.astype(np.float64) + logit_bias
    return (np.exp(-np.logaddexp(0, -logits))).astype(np.float32)


def render(call: ScoreCall, scored: Scored) -> bytes:
    """Render the JSON of a response in the format of the request."""
    return _vllm(scored) if call.is_vllm else _score(call, scored)


def _score(call: ScoreCall, scored: Scored) -> bytes:
    """Render the JSON of a ScoreAnswer."""
    columns = (
        scored.global_cosines,
        scored.local_cosines,
        scored.scores,
        probabilities(scored.scores, scored.logit_scale),
    )
    scores = [
        {"index": index, "caption": caption.text, "global": one, "local": other, "score": score, "probability": share}
        for index, (caption, one, other, score, share) in enumerate(zip(call.captions, *columns, strict=True))
    ]
    if scored.logit_bias is not None:
        each = matches(scored.global_cosines, scored.logit_scale, scored.logit_bias)
        scores = [{**score, "match": match} for score, match in zip(scores, each, strict=True)]
    if scored.vqa is not None:
        scores = [{**score, "vqa": vqa} for score, vqa in zip(scores, scored.vqa, strict=True)]
    explain = None
    if scored.explained is not None:
        explain = [
            {"index": index, "tokens": one.tokens, "heatmaps": np.ascontiguousarray(one.heatmaps)}
            for index, one in enumerate(scored.explained)
        ]
    return _dumped(
        {
            "object": "list",
            "model": scored.model,
            "best": scored.best,
            "scores": scores,
            "explain": explain,
            **({"vqa_model": scored.vqa_model} if scored.vqa is not None else {}),
            "usage": {
                "images": scored.num_images,
                "prompt_tokens": scored.prompt_tokens,
                "total_tokens": scored.prompt_tokens,
            },
        }
    )


def _vllm(scored: Scored) -> bytes:
    """Render the JSON of a VllmScoreAnswer."""
    return _dumped(
        {
            "id": f"score-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": scored.model,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scored.scores)],
            "usage": {
                "prompt_tokens": scored.prompt_tokens,
                "total_tokens": scored.prompt_tokens,
                "completion_tokens": 0,
            },
        }
    )


def _dumped(answer: dict[str, Any]) -> bytes:
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
