"""VQAScore of a real architecture: a tiny LLaVA behind an endpoint is asked, and its P("yes") is transformers' own."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from services.core.openai_client import Endpoint
from services.nn.loading import transformers
from services.score.evaluation.endpoint import ChatModel, VqaJudge
from services.score.evaluation.records import Record, Scores, Task
from services.score.second_opinion import jpeg_url, question
from tests.published_llava import write_llava
from tests.score.evaluation.endpoint.chat_server import ChatServer
from tests.score.evaluation.stand_ins import SOURCE
from tests.score.served_tiny import publish_tiny, served_tiny

CAPTIONS = ["a red circle", "a blue square", "a green star"]
SPELLINGS = ("Yes", "▁yes", "No", "▁no")


class RealModel:
    """A LLaVA of transformers with words for yes and no, which it answers with often."""

    def __init__(self, folder: Path) -> None:
        kinds = transformers()
        self.processor = kinds.AutoProcessor.from_pretrained(folder)
        self.processor.tokenizer.add_tokens(list(SPELLINGS))
        self.words = self.processor.tokenizer.convert_tokens_to_ids(list(SPELLINGS))
        self.model = kinds.LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.inference_mode():
            held = self._run(Image.new("RGB", (60, 60)), "a red circle", output_hidden_states=True).hidden_states[-1]
            direction = held[0, -1] / held[0, -1].norm()
            # far above what other tokens get, so that all spellings are among the rivals that a server returns
            self.model.lm_head.weight[self.words] = torch.tensor([[0.9], [0.8], [0.85], [0.7]]) * direction

    def probabilities(self, image: Image.Image, caption: str) -> torch.Tensor:
        """The probability of each token of the vocabulary as the first of an answer."""
        with torch.inference_mode():
            chosen: torch.Tensor = self._run(image, caption).logits[0, -1].softmax(dim=-1)
        return chosen

    def yes(self, image: Image.Image, caption: str) -> float:
        return float(self.probabilities(image, caption)[self.words[:2]].sum())

    def first_token(self, body: dict[str, Any]) -> dict[str, float]:
        """Answer a request for one token with its rivals, as servers do."""
        shown, text = body["messages"][0]["content"]
        image = opened(shown["image_url"]["url"])
        rivals = self.probabilities(image, text["text"].split('"')[1]).log().topk(body["top_logprobs"])
        tokens = self.processor.tokenizer.convert_ids_to_tokens(rivals.indices.tolist())
        return dict(zip(tokens, rivals.values.tolist(), strict=True))

    def _run(self, image: Image.Image, caption: str, **options: Any) -> Any:
        content = [{"type": "image"}, {"type": "text", "text": question(caption)}]
        chat = [{"role": "user", "content": content}]
        written = self.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return self.model(**self.processor(text=written, images=image, return_tensors="pt"), **options)


def opened(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")


def pictures() -> list[Image.Image]:
    drawn = np.random.default_rng(2)
    return [Image.fromarray(drawn.integers(256, size=(50, 80, 3), dtype=np.uint8)) for _ in range(2)]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> RealModel:
    return RealModel(write_llava(tmp_path_factory.mktemp("published") / "llava-1.5-7b-hf"))


def test_a_score_tells_the_models_own_probability_of_yes(real: RealModel, tmp_path: Path) -> None:
    (image, _) = pictures()
    expected = [real.yes(opened(jpeg_url(image, 100)), caption) for caption in CAPTIONS]
    file = io.BytesIO()
    image.save(file, "PNG")
    with ChatServer(first_token=real.first_token).served() as endpoint:
        settings: dict[str, Any] = {"vqa_url": endpoint.url, "vqa_model": "llava", "vqa_image_side": 100}
        with served_tiny(publish_tiny(tmp_path / "store"), tmp_path / "cache", **settings) as client:
            parts: list[Any] = [("file", ("image.png", file.getvalue()))]
            parts += [("captions", (None, caption)) for caption in CAPTIONS]
            answer = client.post("/score", files=parts, params={"vqa_top_k": 3}).json()
    found = [one["vqa"] for one in answer["scores"]]
    assert found == pytest.approx(expected, abs=1e-5)
    assert answer["best"] == int(np.argmax(expected))
    assert len(set(found)) == 3
    assert min(found) > 0


def test_an_evaluation_scores_by_the_models_own_probability_of_yes(real: RealModel, tmp_path: Path) -> None:
    paths = []
    for number, image in enumerate(pictures()):
        paths.append(tmp_path / f"{number}.png")
        image.save(paths[-1])
    task = Task("pairs", "groups", (Record("0", tuple(paths), tuple(CAPTIONS[:2])),), SOURCE)
    found: list[Scores] = []
    with ChatServer(first_token=real.first_token).served() as endpoint:
        judge = VqaJudge(ChatModel(Endpoint(endpoint.url), "llava", "LLaVA", 2))
        judge.score(task, lambda records, scores: found.append(scores))
    expected = [[real.yes(image, caption) for caption in CAPTIONS[:2]] for image in pictures()]
    np.testing.assert_allclose(found[0][0], expected, atol=1e-5)
    assert json.loads(json.dumps(judge.notes()))["unreadable_answers"] == 0
