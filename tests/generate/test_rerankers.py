"""Published rerankers, imported and behind the rerank routes, beside a language model."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from services.generate.app import create_generate
from services.generate.settings import GenerateSettings
from services.nn.loading import transformers
from tests.core.image_files import scene
from tests.embed.serving import as_base64
from tests.embed.tiny import wait_until_ready
from tests.generate.served_tiny import MODEL, publish_tiny
from tests.published_rerankers import (
    CROSS_ENCODERS,
    MXBAI_RERANK,
    QWEN3_RERANKER,
    QWEN3_VL_RERANKER,
    RERANKERS,
    import_rerankers,
    publish_reranker,
)

QUERY = "who lit the oldest lighthouse?"
# Of very different lengths, the last but one longer than most models read.
DOCUMENTS = [
    "Three brothers lit the lighthouse in 1789.",
    "Ships waited in the harbour until the fog had lifted; many of them carried grain. " * 9,
    "No.",
    "Käthe's café in 東京 is naïve.",
    "The oldest lighthouse of the northern coast was lit by three brothers. " * 90,
    "Question: who lit the oldest lighthouse of the northern coast",
]
LIMITS = {"gte-reranker-modernbert-base": 8192}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rerankers")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    """All rerankers as `fovea store import` publishes them, and a language model, in one service."""
    store_url = publish_tiny(folder)
    served = GenerateSettings(
        store_url=store_url,
        checkpoint_cache_dir=folder / "copies",
        models=(MODEL, *import_rerankers(folder, store_url)),
        device="cpu",
        num_threads=1,
        max_batch_cost=4096,
        max_image_pixels=3_000_000,
    )
    with TestClient(create_generate(served), raise_server_exceptions=False, base_url="http://localhost") as client:
        wait_until_ready(lambda: client.get("/readyz").status_code == 200)
        yield client


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "engine"),
    [(name, "CrossEncoder") for name in CROSS_ENCODERS]
    + [(QWEN3_RERANKER, "Qwen3Reranker"), (MXBAI_RERANK, "MxbaiRerank")],
)
def test_a_reranker_loads_in_a_process_that_has_loaded_no_other_model(tmp_path: Path, name: str, engine: str) -> None:
    program = f"""
from pathlib import Path
from services.generate.model.reranker_engine import {engine}Engine
from services.nn.devices import DeviceOptions
{engine}Engine.load(Path({str(publish_reranker(tmp_path, name))!r}), DeviceOptions("cpu"))
"""
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr


def answer_to(client: TestClient, name: str, documents: list[Any] = DOCUMENTS, **fields: Any) -> Any:
    body = {"model": name.lower(), "query": QUERY, "documents": documents, "return_documents": False, **fields}
    response = client.post("/v1/rerank", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def by_index(answer: Any) -> list[float]:
    return [one["relevance_score"] for one in sorted(answer["results"], key=lambda one: one["index"])]


def scores_of_transformers(source: Path, documents: list[str], max_length: int) -> list[float]:
    """Score with transformers alone, as model cards of cross-encoders show it, all in one batch."""
    tokenizer = transformers().AutoTokenizer.from_pretrained(source)
    model = transformers().AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32).eval()
    pairs = [[QUERY, document] for document in documents]
    inputs = tokenizer(pairs, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    with torch.inference_mode():
        scores: list[float] = model(**inputs).logits[:, 0].double().sigmoid().tolist()
    return scores


@pytest.mark.parametrize("name", CROSS_ENCODERS)
def test_a_cross_encoder_scores_as_transformers_does(client: TestClient, folder: Path, name: str) -> None:
    expected = scores_of_transformers(folder / "hub" / name, DOCUMENTS, LIMITS.get(name, 512))
    answer = answer_to(client, name)
    assert max(expected) - min(expected) > 0.01
    assert by_index(answer) == pytest.approx(expected, abs=1e-6)
    assert [one["index"] for one in answer["results"]] == sorted(range(len(expected)), key=lambda k: -expected[k])
    alone = [by_index(answer_to(client, name, [document]))[0] for document in DOCUMENTS]
    assert alone == pytest.approx(expected, abs=1e-6)


def scores_of_its_model_card(source: Path, documents: list[str], instruct: str) -> list[float]:
    """Score with transformers alone, as the model card of Qwen3-Reranker says: padded on the left, p(yes) of both."""
    tokenizer = transformers().AutoTokenizer.from_pretrained(source, padding_side="left")
    model = transformers().AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    before = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    )
    after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ends = [tokenizer.encode(text, add_special_tokens=False) for text in (before, after)]
    texts = [f"<Instruct>: {instruct}\n<Query>: {QUERY}\n<Document>: {document}" for document in documents]
    most = 8192 - len(ends[0]) - len(ends[1])
    bodies = tokenizer(texts, padding=False, truncation="longest_first", max_length=most)["input_ids"]
    rows = {"input_ids": [ends[0] + body + ends[1] for body in bodies]}
    inputs = tokenizer.pad(rows, padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**inputs, logits_to_keep=1).logits[:, -1]
    both = logits[:, tokenizer.convert_tokens_to_ids(["no", "yes"])].double()
    scores: list[float] = both.log_softmax(dim=1)[:, 1].exp().tolist()
    return scores


INSTRUCT = "Given a web search query, retrieve relevant passages that answer the query"


def test_qwen3_reranker_scores_as_its_model_card_does(client: TestClient, folder: Path) -> None:
    source = folder / "hub" / QWEN3_RERANKER
    expected = scores_of_its_model_card(source, DOCUMENTS, INSTRUCT)
    assert max(expected) - min(expected) > 0.01
    assert by_index(answer_to(client, QWEN3_RERANKER)) == pytest.approx(expected, abs=1e-5)
    alone = [by_index(answer_to(client, QWEN3_RERANKER, [document]))[0] for document in DOCUMENTS]
    assert alone == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
@pytest.mark.parametrize("field", ["instruct", "instruction"])
def test_qwen3_reranker_reads_an_instruction_on_every_route(
    client: TestClient, folder: Path, path: str, field: str
) -> None:
    instruct, name = "Find what tells of ships, whoever lit what", QWEN3_RERANKER.lower()
    expected = scores_of_its_model_card(folder / "hub" / QWEN3_RERANKER, DOCUMENTS[:3], instruct)
    documents = "texts" if path == "/rerank" else "documents"
    found = client.post(path, json={"model": name, "query": QUERY, documents: DOCUMENTS[:3], field: instruct}).json()
    results = found if path == "/rerank" else found["results"]
    scores = {one["index"]: one.get("score", one.get("relevance_score")) for one in results}
    assert [scores[place] for place in range(3)] == pytest.approx(expected, abs=1e-5)
    assert by_index(answer_to(client, name, DOCUMENTS[:3])) != pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("name", [MODEL, *CROSS_ENCODERS])
@pytest.mark.parametrize(
    ("path", "field"), [("/v1/rerank", "instruct"), ("/v2/rerank", "instruction"), ("/rerank", "instruction")]
)
def test_an_instruction_for_a_model_that_reads_none_is_refused_by_name(
    client: TestClient, path: str, field: str, name: str
) -> None:
    documents = "texts" if path == "/rerank" else "documents"
    body = {"model": name.lower(), "query": QUERY, documents: DOCUMENTS[:2], field: "Find ships."}
    response = client.post(path, json=body)
    kind = "causal-lm" if name == MODEL else "cross-encoder"
    assert response.status_code == 400
    assert f"{field}: {name.lower()} is a {kind}, which ranks without instructions" in response.text


def test_qwen3_reranker_cuts_a_long_document_at_its_end(client: TestClient, folder: Path) -> None:
    long = ["The oldest lighthouse was lit by three brothers. " * 900]
    answer = answer_to(client, QWEN3_RERANKER, long)
    expected = scores_of_its_model_card(folder / "hub" / QWEN3_RERANKER, long, INSTRUCT)
    assert by_index(answer) == pytest.approx(expected, abs=1e-5)
    assert answer["usage"]["prompt_tokens"] == 8192
    assert answer["meta"]["warnings"] == ["Cut to the model's 8192 tokens of query and document: document 0."]


def scores_of_its_publishers_code(source: Path, query: str, documents: list[str], instruct: str = "") -> list[float]:
    """Score with transformers alone, as mixedbread's package of mxbai-rerank-v2 does."""
    tokenizer = transformers().AutoTokenizer.from_pretrained(source, padding_side="left")
    model = transformers().AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()

    def ids(text: str, most: int | None = None) -> list[int]:
        found: list[int] = tokenizer(
            text, add_special_tokens=False, truncation=most is not None, max_length=most
        ).input_ids
        return found

    task = (
        "You are a search relevance expert who evaluates how well documents match search queries. For each "
        "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
        "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
    )
    before = ids(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n"
    )
    after = [*ids("\n"), *ids(task), *ids("<|im_end|>\n<|im_start|>assistant\n")]
    asked = ids(f"instruction: {instruct}\nquery: {query}" if instruct else f"query: {query}", 8192 * 3 // 4)
    pairs = [[*asked, *ids("\n"), *ids(f"document: {document}", 8192)][:8192] for document in documents]
    inputs = tokenizer.pad({"input_ids": [[*before, *pair, *after] for pair in pairs]}, return_tensors="pt")
    one, zero = tokenizer.convert_tokens_to_ids(["1", "0"])
    with torch.inference_mode():
        logits = model(**inputs, logits_to_keep=1).logits[:, -1].double()
    scores: list[float] = (logits[:, one] - logits[:, zero]).sigmoid().tolist()
    return scores


@pytest.mark.parametrize("instruct", ["", "Find what tells of ships, whoever lit what"])
def test_mxbai_rerank_scores_as_its_publishers_code_does(client: TestClient, folder: Path, instruct: str) -> None:
    expected = scores_of_its_publishers_code(folder / "hub" / MXBAI_RERANK, QUERY, DOCUMENTS, instruct)
    assert max(expected) - min(expected) > 0.01
    answer = answer_to(client, MXBAI_RERANK, instruct=instruct) if instruct else answer_to(client, MXBAI_RERANK)
    assert by_index(answer) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("num_words", "num_sentences"), [(1, 900), (7000, 900), (7000, 1)])
def test_mxbai_rerank_cuts_a_long_pair_as_its_publishers_code_does(
    client: TestClient, folder: Path, num_words: int, num_sentences: int
) -> None:
    query, documents = "lighthouse " * num_words, ["The oldest was lit by three brothers. " * num_sentences]
    expected = scores_of_its_publishers_code(folder / "hub" / MXBAI_RERANK, query, documents)
    answer = answer_to(client, MXBAI_RERANK, documents, query=query)
    assert by_index(answer) == pytest.approx(expected, abs=1e-5)
    assert answer["meta"]["warnings"] == ["Cut to the model's 8192 tokens of query and document: document 0."]


VL_INSTRUCT = "Given a search query, retrieve relevant candidates that answer the query."
# Text, image and both, of different lengths, sizes and shapes.
CONTENTS: list[dict[str, Any]] = [
    {"text": DOCUMENTS[0]},
    {"image": scene((96, 64))},
    {"text": DOCUMENTS[1], "image": scene((20, 300))},
    {"text": "No."},
    {"image": scene((640, 100)), "text": DOCUMENTS[3]},
    {"image": scene((300, 200))},
]


def sent(content: dict[str, Any]) -> dict[str, Any]:
    """Write a content as clients send it."""
    image = {"image": as_base64(content["image"])} if "image" in content else {}
    return {**content, **image}


def scores_of_its_script(
    source: Path, query: dict[str, Any], documents: list[dict[str, Any]], instruct: str = VL_INSTRUCT
) -> list[float]:
    """Score each pair alone with transformers, as the script beside Qwen3-VL-Reranker does."""
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    processor = transformers().AutoProcessor.from_pretrained(source, padding_side="left")
    whole = transformers().Qwen3VLForConditionalGeneration.from_pretrained(source, dtype=torch.float32).eval()
    yes, no = whole.lm_head.weight[processor.tokenizer.convert_tokens_to_ids(["yes", "no"])]

    def parts(prefix: str, content: dict[str, Any]) -> list[dict[str, str]]:
        shown = [{"type": "image"}] if "image" in content else []
        told = [{"type": "text", "text": content["text"]}] if "text" in content else []
        return [{"type": "text", "text": prefix}, *shown, *told]

    def resized(image: Image.Image) -> Image.Image:
        height, width = smart_resize(image.height, image.width, 32, 4 * 32 * 32, 1800 * 32 * 32)
        return image.resize((width, height))

    system = (
        "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
        'answer can only be "yes" or "no".'
    )
    scores = []
    for document in documents:
        user = [{"type": "text", "text": f"<Instruct>: {instruct}"}, *parts("<Query>:", query)]
        messages = [
            {"role": "system", "content": [{"type": "text", "text": system}]},
            {"role": "user", "content": [*user, *parts("\n<Document>:", document)]},
        ]
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        images = [resized(one["image"]) for one in (query, document) if "image" in one]
        inputs = processor(text=[text], images=images or None, do_resize=False, return_tensors="pt")
        ids, special = inputs["input_ids"][0].tolist(), set(processor.tokenizer.all_special_ids)
        if (over := len(ids) - 5 - 10240) > 0:
            dropped = [place for place, one in enumerate(ids[:-5]) if one not in special][-over:]
            kept = [place for place in range(len(ids)) if place not in set(dropped)]
            inputs |= {name: inputs[name][:, kept] for name in ("input_ids", "attention_mask", "mm_token_type_ids")}
        with torch.no_grad():
            hidden = whole.model(**inputs).last_hidden_state[0, -1]
            scores.append(torch.sigmoid(hidden @ (yes - no)).item())
    return scores


@pytest.mark.parametrize("query", [{"text": QUERY}, {"image": scene((70, 50))}, {"text": QUERY, "image": scene()}])
def test_qwen3_vl_reranker_scores_texts_and_images_as_its_publishers_script_does(
    client: TestClient, folder: Path, query: dict[str, Any]
) -> None:
    expected = scores_of_its_script(folder / "hub" / QWEN3_VL_RERANKER, query, CONTENTS)
    assert max(expected) - min(expected) > 0.01
    documents = [sent(one) for one in CONTENTS]
    answer = answer_to(client, QWEN3_VL_RERANKER, documents, query=sent(query))
    assert by_index(answer) == pytest.approx(expected, abs=1e-5)
    alone = [by_index(answer_to(client, QWEN3_VL_RERANKER, [one], query=sent(query)))[0] for one in documents]
    assert alone == pytest.approx(expected, abs=1e-5)


def test_a_long_pair_of_images_and_texts_loses_the_ends_of_its_texts(client: TestClient, folder: Path) -> None:
    query = {"text": QUERY, "image": scene()}
    long = {"text": "It was lit by three brothers. " * 2500, "image": scene((2000, 1200))}
    answer = answer_to(client, QWEN3_VL_RERANKER, [sent(long)], query=sent(query))
    expected = scores_of_its_script(folder / "hub" / QWEN3_VL_RERANKER, query, [long])
    assert by_index(answer) == pytest.approx(expected, abs=1e-5)
    assert answer["usage"]["prompt_tokens"] == 10245
    assert answer["meta"]["warnings"] == ["Cut to the model's 10245 tokens of query and document: document 0."]


def test_vllms_parts_and_an_instruction_are_read_as_jinas_fields_are(client: TestClient, folder: Path) -> None:
    instruct = "Find what tells of ships, whoever lit what"
    query, documents = {"text": QUERY}, CONTENTS[:3]
    expected = scores_of_its_script(folder / "hub" / QWEN3_VL_RERANKER, query, documents, instruct)

    def in_parts(content: dict[str, Any]) -> dict[str, Any]:
        url = f"data:image/png;base64,{sent(content).get('image')}"
        image = [{"type": "image_url", "image_url": {"url": url}}] if "image" in content else []
        text = [{"type": "text", "text": content["text"]}] if "text" in content else []
        return {"content": [*image, *text]}

    for form in (sent, in_parts):
        for path in ("/v1/rerank", "/v2/rerank"):
            body = {"query": form(query), "documents": [form(one) for one in documents], "instruction": instruct}
            answer = client.post(path, json={"model": QWEN3_VL_RERANKER.lower(), **body}).json()
            assert by_index(answer) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", [MODEL, *CROSS_ENCODERS, QWEN3_RERANKER])
def test_a_model_that_reads_text_only_refuses_an_image_by_the_name_of_its_field(client: TestClient, name: str) -> None:
    image = as_base64(scene())
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    for fields, param in (
        ({"documents": ["a", "b", "c", {"image": image}]}, "documents.3.image"),
        ({"documents": ["a", {"content": [{"type": "text", "text": "b"}, part]}]}, "documents.1.content.1"),
        ({"query": {"image": image}}, "query.image"),
    ):
        body = {"model": name.lower(), "query": QUERY, "documents": DOCUMENTS[:2], **fields}
        for path in ("/v1/rerank", "/v2/rerank"):
            error = client.post(path, json=body).json()["error"]
            assert error["param"] == param
            assert f"{param}: {name.lower()} is a " in error["message"]
            assert "which reads text only" in error["message"]


@pytest.mark.parametrize(
    ("document", "status", "param"),
    [
        ({"image": "https://example.com/image.png"}, 400, "documents.1.image"),
        ({"image": "aGVsbG8="}, 400, "documents.1.image"),
        ({"image": "no base64"}, 400, "documents.1.image"),
        ({"image": 5}, 422, "documents.1.image"),
        ({"image": as_base64(Image.new("RGB", (2, 900)))}, 400, "documents.1.image"),
        ({"image": as_base64(Image.new("RGB", (2000, 1600)))}, 413, "documents.1.image"),
        ({"content": []}, 422, "documents.1.content"),
        ({"content": [{"type": "text", "text": "a"}] * 2}, 422, "documents.1.content"),
        ({"content": [{"type": "video_url", "video_url": {"url": "a"}}]}, 422, "documents.1.content.0"),
        ({"content": "a"}, 422, "documents.1.text"),
        ({}, 422, "documents.1.text"),
    ],
)
def test_what_is_no_content_is_refused_by_its_field(
    client: TestClient, document: dict[str, Any], status: int, param: str
) -> None:
    body = {"model": QWEN3_VL_RERANKER.lower(), "query": QUERY, "documents": ["a", document]}
    response = client.post("/v1/rerank", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param), response.text


@pytest.mark.parametrize("query", ["", {"text": ""}, {"text": None}, {}, {"text": "\u200b"}])
def test_a_query_that_says_and_shows_nothing_is_refused(client: TestClient, query: Any) -> None:
    body = {"model": QWEN3_VL_RERANKER.lower(), "query": query, "documents": ["a"]}
    response = client.post("/v1/rerank", json=body)
    assert response.status_code == 422
    assert response.json()["error"]["param"].startswith("query")


def test_documents_come_back_as_they_were_sent(client: TestClient) -> None:
    documents = [{**sent(CONTENTS[1]), "page": 4}, {"text": "a", "content": [1]}, {"text": "a", "content": "b"}]
    answer = answer_to(client, QWEN3_VL_RERANKER, documents, return_documents=True)
    assert [documents[one["index"]] for one in answer["results"]] == [one["document"] for one in answer["results"]]


@pytest.mark.parametrize("name", CROSS_ENCODERS)
def test_documents_beyond_the_models_limit_are_named(client: TestClient, name: str) -> None:
    warnings = answer_to(client, name)["meta"].get("warnings")
    limit = LIMITS.get(name, 512)
    told = [f"Cut to the model's {limit} tokens of query and document: document 4."]
    assert warnings == (told if limit == 512 else None)


def test_only_so_much_of_a_long_text_is_read_as_counts(client: TestClient, folder: Path) -> None:
    name = "ms-marco-MiniLM-L6-v2"
    long = ["The oldest lighthouse. " * 9000, "three brothers " * 9000]
    assert by_index(answer_to(client, name, long)) == pytest.approx(
        scores_of_transformers(folder / "hub" / name, long, 512), abs=1e-6
    )


def test_equal_documents_have_equal_scores_in_any_number_of_batches(client: TestClient) -> None:
    for name in RERANKERS:
        scores = by_index(answer_to(client, name, [*DOCUMENTS[:4], *(["A ship."] * 100), *DOCUMENTS[:4]]))
        assert len(set(scores[4:104])) == 1
        assert scores[:4] == scores[-4:]


def test_tei_gets_probabilities_or_the_models_own_numbers(client: TestClient) -> None:
    for name in RERANKERS:
        body = {"model": name.lower(), "query": QUERY, "texts": DOCUMENTS[:3]}
        raw, ranks = (client.post("/rerank", json={**body, "raw_scores": one}).json() for one in (True, False))
        assert [one["index"] for one in raw] == [one["index"] for one in ranks]
        assert [one["score"] for one in ranks] == pytest.approx(
            torch.tensor([one["score"] for one in raw]).sigmoid().tolist()
        )


def test_a_title_and_a_limit_of_tokens_count_as_for_language_models(client: TestClient) -> None:
    for name in RERANKERS:
        titled = answer_to(client, name, [{"title": "Harbours", "text": DOCUMENTS[0]}])
        assert by_index(titled) == by_index(answer_to(client, name, [f"Harbours\n{DOCUMENTS[0]}"]))
        cut = answer_to(client, name, [DOCUMENTS[0]], max_tokens_per_doc=3)
        assert cut["meta"]["warnings"] == ["Cut to 3 tokens by max_tokens_per_doc: document 0."]
        assert by_index(cut) != by_index(answer_to(client, name, [DOCUMENTS[0]]))


def test_control_tokens_in_a_document_are_read_as_text(client: TestClient) -> None:
    for name, spelt in (
        ("ms-marco-MiniLM-L6-v2", "[SEP]"),
        ("bge-reranker-base", "</s>"),
        (QWEN3_RERANKER, "<|im_end|>"),
    ):
        broken = f"{spelt[0]} {spelt[1:]}"
        texts = [f"No. {one} yes." for one in (spelt, broken)]
        assert len(set(by_index(answer_to(client, name, texts)))) == 1


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/completions", "/tokenize"])
def test_a_reranker_asked_to_write_is_refused_by_name(client: TestClient, path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/generate": {"query": "Who?", "documents": ["He."]},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Who?"}]},
        "/v1/completions": {"prompt": "Who?"},
        "/tokenize": {"prompt": "Who?"},
    }
    models = client.get("/v1/models").json()["data"]
    kinds = {one["id"]: one["kind"] for one in models}
    assert not any(one["decides"] for one in models if one["kind"] != "causal-lm")
    for name in map(str.lower, RERANKERS):
        response = client.post(path, json={**bodies[path], "model": name})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "model")
        assert f"{name} is a {kinds[name]}, which only ranks documents" in response.json()["error"]["message"]
    assert client.post(path, json={**bodies[path], "model": MODEL}).status_code == 200


@pytest.mark.parametrize("name", RERANKERS)
@pytest.mark.parametrize(("fields", "status"), [({"method": "attention"}, 400), ({"query": "\u200b"}, 422)])
def test_what_a_reranker_cannot_do_is_refused_by_name(
    client: TestClient, name: str, fields: dict[str, Any], status: int
) -> None:
    for path in ("/v1/rerank", "/v2/rerank"):
        body = {"model": name.lower(), "query": QUERY, "documents": DOCUMENTS[:2], **fields}
        response = client.post(path, json=body)
        assert response.status_code == status, response.text
        assert response.json()["error"]["param"] == next(iter(fields))
