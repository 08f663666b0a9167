"""Two language models, two CLIPs and three students behind one gateway, imported as they are published."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from typer.testing import CliRunner

from services.cli.store import app
from tests.contract.running_fovea import Fovea, settings_of_a_test
from tests.contract.served_system import wait_until
from tests.core.image_files import encode, scene
from tests.published_clips import write_laion, write_openai
from tests.published_models import publish

PICTURE = encode(scene(), "PNG")
LANGUAGE_MODELS = {"vicuna": "vicuna-7b-v1.5", "tulu": "tulu-2-7b"}
TASK = "task: tickets\nfields: [subject]\nlabels: [billing, bug]\n"


@dataclass(frozen=True)
class Answer:
    """The answer to a request for a model: the model that answered, if one did."""

    asked: str
    status: int
    model: str
    text: str


@dataclass(frozen=True)
class Site:
    """A gateway whose pools are a process for each language model, one for both CLIPs, and one for three students."""

    fovea: Fovea

    @property
    def models(self) -> list[str]:
        return ["vicuna", "tulu", "laion", "openai", "word-problems", "inferences", "tickets"]

    def ask(self, model: str) -> Answer:
        match model:
            case "vicuna" | "tulu":
                body: dict[str, Any] = {"query": "Who?", "documents": ["He did."], "max_tokens": 4, "model": model}
                response = requests.post(f"{self.fovea.url}/generate", json=body, timeout=120)
            case "laion" | "openai":
                response = requests.post(
                    f"{self.fovea.url}/score",
                    files={"file": PICTURE},
                    data={"captions": ["a hat", "a cat"], "model": model},
                    timeout=120,
                )
            case "tickets":
                response = self._predict(model, {"subject": "I was charged twice"})
            case "inferences":
                response = self._predict(model, {"premise": "The car is red.", "hypothesis": "The car is blue."})
            case _:
                response = self._predict(model, {"body": "Ann has 3 pens.", "question": "How many pens has she?"})
        return Answer(model, response.status_code, response.headers.get("X-Fovea-Model", ""), response.text)

    def _predict(self, model: str, fields: dict[str, str]) -> requests.Response:
        body = {"model": model, "inputs": [fields]}
        return requests.post(f"{self.fovea.url}/predict", json=body, timeout=120)


def run(*arguments: str, store: str) -> None:
    done = CliRunner().invoke(app, ["import", *arguments, "--store-url", store])
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    settings = settings_of_a_test(folder)
    store = settings["FOVEA_STORE_URL"]
    (folder / "tickets.yaml").write_text(TASK)
    for name, published in LANGUAGE_MODELS.items():
        run(str(publish(folder, published)), "--name", name, store=store)
    run(str(write_laion(folder / "laion")), "--name", "laion", store=store)
    run(str(write_openai(folder / "ViT-B-32.pt")), "--name", "openai", store=store)
    run(str(publish(folder, "flan-t5-base")), "--name", "tickets", "--task", str(folder / "tickets.yaml"), store=store)

    fovea = Fovea(folder, settings)
    try:
        pools = [
            ("vicuna", "generate", ["vicuna"]),
            ("tulu", "generate", ["tulu"]),
            ("clips", "score", ["laion", "openai"]),
            ("students", "predict", ["word-problems", "inferences", "tickets"]),
        ]
        described = []
        for name, service, models in pools:
            served = {f"FOVEA_{service.upper()}_MODELS": ",".join(models)}
            process = fovea.start(service, served, instance=name)
            described.append({"name": name, "service": service, "models": models, "urls": [process.url]})
        (folder / "pools.json").write_text(json.dumps({"pools": described}))
        fovea.start("gateway", {"FOVEA_GATEWAY_POOLS": str(folder / "pools.json")})
        for process in list(fovea.processes.values()):
            process.wait_until_ready()
        yield Site(fovea)
    finally:
        fovea.kill()


@pytest.mark.process
def test_requests_by_name_are_answered_by_their_model_and_a_killed_pool_takes_no_other_with_it(site: Site) -> None:
    asked = site.models * 5
    with ThreadPoolExecutor(7) as threads:
        for answer in threads.map(site.ask, asked):
            assert answer.status == 200, answer
            assert answer.model.startswith(f"{answer.asked}@"), answer

        listed = requests.get(f"{site.fovea.url}/v1/models", timeout=60).json()["data"]
        assert sorted(one["id"] for one in listed) == sorted(site.models)

        running = [threads.submit(site.ask, model) for model in asked]
        killed = site.fovea.processes["tulu"]
        killed.process.kill()
        killed.process.wait()
        during = [one.result() for one in running]
        after = list(threads.map(site.ask, asked))
    for answer in (*during, *after):
        if answer.asked != "tulu":
            assert answer.status == 200, answer
            assert answer.model.startswith(f"{answer.asked}@"), answer
    missed = [answer for answer in after if answer.asked == "tulu"]
    assert {answer.status for answer in missed} == {503}
    assert all("tulu" in answer.text for answer in missed)

    served = {"FOVEA_GENERATE_MODELS": "tulu"}
    again = site.fovea.start("generate", served, instance="tulu", port=killed.port)
    again.wait_until_ready()
    wait_until(lambda: site.ask("tulu").status == 200)


@pytest.mark.process
def test_a_model_that_no_pool_has_is_told_which_there_are(site: Site) -> None:
    answer = site.ask("vicuna")
    assert answer.status == 200
    body = {"query": "Who?", "documents": ["He did."], "model": "llama"}
    response = requests.post(f"{site.fovea.url}/generate", json=body, timeout=60)
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "vicuna" in error["message"]
    assert "tulu" in error["message"]
