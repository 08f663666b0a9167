"""Published CLIPs become checkpoints that both services serve with the numbers of the libraries they come from."""

import gzip
import json
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from services.core.refusals import Refused
from services.embed.model.items import ImageItem
from services.embed.model.plain_engine import PlainEngine
from services.jobs.imports.clip_weights import (
    clip_files,
    convert_openai_clip,
    convert_trained_clip,
)
from services.jobs.imports.weights import read_torch_script
from services.nn.clip_model import MERGES, OPEN_CLIP_WEIGHTS, load_clip, open_clip, save_clip
from services.nn.devices import DeviceOptions
from services.nn.loading import transformers
from services.score.engine import ScoreEngine
from services.score.model.pairing import PairItem
from tests.core.image_files import scene
from tests.published_clips import (
    RELEASED,
    convert_folder,
    openai_state,
    with_lora,
    write_hugging_face,
    write_json,
    write_laion,
    write_openai,
    write_siglip,
    write_xlm_roberta,
    xlm_roberta_clip,
)

CPU = DeviceOptions("cpu", "float32", num_threads=1)
TEXTS = ["a red square", "A photo of two dogs, playing!", "red"]
IMAGES = [scene(), scene().rotate(90, expand=True)]
# Cosines and numbers of unit vectors.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Theirs:
    """Unit vectors of IMAGES and TEXTS, and the logits of all pairs, by the library that a model comes from."""

    images: Tensor
    texts: Tensor
    logits: Tensor


def by_open_clip(source: Path) -> Theirs:
    model, _, transform = open_clip().create_model_and_transforms(f"local-dir:{source}")
    tokenizer = open_clip().get_tokenizer(f"local-dir:{source}")
    return _compared(model.eval(), transform, tokenizer(TEXTS))


def by_openai(source: Path) -> Theirs:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # open_clip reads TorchScript
        model = open_clip().load_openai_model(str(source), precision="fp32", device="cpu")
    transform = open_clip().image_transform(
        model.visual.image_size, is_train=False, mean=model.visual.image_mean, std=model.visual.image_std
    )
    return _compared(model.eval(), transform, open_clip().tokenize(TEXTS))


def by_transformers(source: Path) -> Theirs:
    model = transformers().CLIPModel.from_pretrained(source).eval()
    texts = transformers().CLIPTokenizer.from_pretrained(source)(TEXTS, padding=True, return_tensors="pt")
    images = transformers().CLIPImageProcessorPil.from_pretrained(source)(IMAGES, return_tensors="pt")
    with torch.no_grad():
        found = model(**texts, pixel_values=images["pixel_values"])
    return Theirs(found.image_embeds, found.text_embeds, found.logits_per_image)


def by_text_tower(source: Path) -> Theirs:
    """The numbers of open_clip's model, whose text tower it would download the configuration of."""
    model = xlm_roberta_clip(source.parent / "tower")
    state = torch.load(source / "open_clip_pytorch_model.bin")
    model.load_state_dict({name: weight for name, weight in state.items() if not name.endswith("position_ids")})
    transform = open_clip().image_transform(64, is_train=False)
    tokenizer = open_clip().tokenizer.HFTokenizer(str(source), context_length=77)
    return _compared(model.eval(), transform, tokenizer(TEXTS))


def _compared(model: Any, transform: Callable[[Image.Image], Tensor], input_ids: Tensor) -> Theirs:
    with torch.no_grad():
        pixels = torch.stack([transform(image) for image in IMAGES])
        logits, _ = model.get_logits(pixels, input_ids)
        return Theirs(model.encode_image(pixels, normalize=True), model.encode_text(input_ids, normalize=True), logits)


@dataclass(frozen=True)
class Published:
    write: Callable[[Path], Path]
    convert: Callable[[Path, Path], None]
    theirs: Callable[[Path], Theirs]


def write_resnet(path: Path) -> Path:
    return write_openai(path, is_resnet=True)


PUBLISHED = {
    "CLIP-ViT-B-32-laion2B": Published(write_laion, convert_folder, by_open_clip),
    "clip-vit-large-patch14-336": Published(write_hugging_face, convert_folder, by_transformers),
    "ViT-B-32.pt": Published(write_openai, convert_openai_clip, by_openai),
    "RN50.pt": Published(write_resnet, convert_openai_clip, by_openai),
    "ViT-B-16-SigLIP": Published(write_siglip, convert_folder, by_open_clip),
    "CLIP-ViT-B-32-xlm-roberta": Published(write_xlm_roberta, convert_folder, by_text_tower),
}


@pytest.fixture(scope="module", params=list(PUBLISHED))
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Theirs]:
    """The folder that a published model was made into, and the numbers of its own library."""
    published = PUBLISHED[request.param]
    folder = tmp_path_factory.mktemp("published")
    source = published.write(folder / request.param)
    published.convert(source, folder / "converted")
    return folder / "converted", published.theirs(source)


def difference(ours: Any, theirs: Any) -> float:
    return float(np.abs(np.asarray(ours) - np.asarray(theirs)).max())


def test_embeddings_are_those_of_the_library_that_a_model_comes_from(converted: tuple[Path, Theirs]) -> None:
    directory, theirs = converted
    engine = PlainEngine.load(directory, CPU)
    engine.warm_up()
    engine.self_check()
    images = [
        ImageItem(str(place), engine.transform(image.convert("RGB")), (None,)) for place, image in enumerate(IMAGES)
    ]
    rows = np.concatenate([one.rows for one in engine.run_batch([*images, *map(engine.prepare_text, TEXTS)])])
    assert difference(rows[: len(IMAGES)], theirs.images) < TOLERANCE
    assert difference(rows[len(IMAGES) :], theirs.texts) < TOLERANCE
    assert difference(theirs.images[0], theirs.images[1]) > 100 * TOLERANCE  # the comparison can fail
    assert engine.embedding_width == rows.shape[1]


def test_scores_are_those_of_the_library_that_a_model_comes_from(converted: tuple[Path, Theirs]) -> None:
    directory, theirs = converted
    engine = ScoreEngine.load_plain(directory, CPU)
    engine.warm_up()
    engine.self_check()
    captions = engine.run_batch([engine.prepare_caption(text) for text in TEXTS])
    images = engine.run_batch(
        [engine.prepare_image(image.convert("RGB"), str(place)) for place, image in enumerate(IMAGES)]
    )
    for place, compared in enumerate(engine.pairing.run_batch([PairItem(image, captions) for image in images])):
        scores = engine.mix(compared)
        assert difference(scores, theirs.images[place] @ theirs.texts.T) < TOLERANCE
        logits = engine.logit_scale * scores + (engine.logit_bias or 0)
        assert difference(logits, theirs.logits[place]) < TOLERANCE * engine.logit_scale


def test_half_precision_nearly_keeps_the_embeddings(converted: tuple[Path, Theirs]) -> None:
    directory, theirs = converted
    engine = PlainEngine.load(directory, DeviceOptions("cpu", "bfloat16", num_threads=1))
    engine.self_check()
    rows = np.concatenate([one.rows for one in engine.run_batch([engine.prepare_text(text) for text in TEXTS])])
    assert float((rows * np.asarray(theirs.texts)).sum(axis=1).min()) > 0.99
    scale = ScoreEngine.load_plain(directory, DeviceOptions("cpu", "bfloat16", num_threads=1)).logit_scale
    assert scale == ScoreEngine.load_plain(directory, CPU).logit_scale


def test_a_text_costs_what_its_tower_reads(tmp_path: Path) -> None:
    convert_folder(write_siglip(tmp_path / "siglip"), tmp_path / "padded")
    convert_folder(write_laion(tmp_path / "laion"), tmp_path / "cut")
    for folder, cost in (("padded", 64), ("cut", 3)):
        for engine in (PlainEngine.load(tmp_path / folder, CPU), ScoreEngine.load_plain(tmp_path / folder, CPU)):
            tokenised = engine.prepare_text if isinstance(engine, PlainEngine) else engine.prepare_caption
            assert engine.cost(tokenised("red")) == cost


def test_weights_keep_their_dtypes(tmp_path: Path) -> None:
    state = openai_state()
    convert_openai_clip(write_openai(tmp_path / "ViT-B-32.pt"), tmp_path / "out")
    written = load_file(tmp_path / "out" / OPEN_CLIP_WEIGHTS)
    assert {name: weight.dtype for name, weight in written.items()} == {n: w.dtype for n, w in state.items()}
    assert {weight.dtype for weight in written.values()} == {torch.float16, torch.float32}


@pytest.mark.parametrize("name", RELEASED)
def test_a_file_of_training_is_read_by_its_architecture(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {key: weight.float() for key, weight in openai_state(seed=3).items()}
    layout, has_lora = RELEASED[name]
    released, state = with_lora(state) if has_lora else (state, state)
    torch.save(layout(released), tmp_path / "released.pt")
    convert_openai_clip(write_openai(tmp_path / "ViT-B-32.pt"), tmp_path / "configs")
    model = json.loads((tmp_path / "configs/open_clip_config.json").read_text())["model_cfg"]
    monkeypatch.setitem(open_clip().factory._MODEL_CONFIGS, "ViT-tiny-quickgelu", model)
    convert_trained_clip(tmp_path / "released.pt", tmp_path / "out", architecture="ViT-tiny-quickgelu")
    engine = PlainEngine.load(tmp_path / "out", CPU)
    torch.save(state, tmp_path / "plain.pt")
    rows = np.concatenate([one.rows for one in engine.run_batch([engine.prepare_text(text) for text in TEXTS])])
    assert difference(rows, by_openai(tmp_path / "plain.pt").texts) < TOLERANCE


def test_pickled_weights_of_a_hub_folder_are_read_where_there_are_no_others(tmp_path: Path) -> None:
    source = write_laion(tmp_path / "source", has_safetensors=False)
    convert_folder(source, tmp_path / "out")
    write_hugging_face(tmp_path / "hf", is_pickled=True, act="gelu")
    convert_folder(tmp_path / "hf", tmp_path / "of-hf")
    assert "quick_gelu" not in json.loads((tmp_path / "of-hf/open_clip_config.json").read_text())["model_cfg"]
    for folder in ("out", "of-hf"):
        PlainEngine.load(tmp_path / folder, CPU).self_check()


def test_only_what_serving_needs_is_read(tmp_path: Path) -> None:
    source = write_laion(tmp_path / "source")
    names = [path.name for path in source.iterdir()]
    assert clip_files("open-clip", names) == (
        "open_clip_config.json",
        "open_clip_model.safetensors",
        "tokenizer_config.json",
    )
    assert clip_files("hugging-face", ["config.json", "pytorch_model.bin", "model.safetensors.index.json"])[1] == (
        "model.safetensors.index.json"
    )
    with pytest.raises(Refused, match="there are no weights"):
        clip_files("open-clip", ["open_clip_config.json", "flax_model.msgpack"])


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    source = write_hugging_face(tmp_path / "source")
    convert_folder(source, tmp_path / "whole")
    state = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    half = {name: f"pytorch_model-0000{1 + place % 2}-of-00002.bin" for place, name in enumerate(state)}
    for shard in set(half.values()):
        torch.save({name: state[name] for name in state if half[name] == shard}, source / shard)
    write_json(source / "pytorch_model.bin.index.json", {"metadata": {}, "weight_map": half})
    convert_folder(source, tmp_path / "sharded")
    whole, sharded = (load_file(tmp_path / name / OPEN_CLIP_WEIGHTS) for name in ("whole", "sharded"))
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(weight, sharded[name]) for name, weight in whole.items())


def test_a_vocabulary_of_ones_own_comes_along(tmp_path: Path) -> None:
    source = write_hugging_face(tmp_path / "source")
    lines = (source / "merges.txt").read_text().splitlines()[:-1]
    (source / "merges.txt").write_text("\n".join(lines))
    with pytest.raises(Refused, match="48893 merges and 49408 tokens is not of CLIP's kind"):
        convert_folder(source, tmp_path / "out")
    config = json.loads((source / "config.json").read_text())
    config["text_config"]["vocab_size"] = 49407
    write_json(source / "config.json", config)
    convert_folder(source, tmp_path / "out")
    assert gzip.decompress((tmp_path / "out" / MERGES).read_bytes()).decode().splitlines() == lines
    vocabulary = json.loads((source / "vocab.json").read_text())
    write_json(source / "vocab.json", {token: number + 1 for token, number in vocabulary.items()})
    with pytest.raises(Refused, match="not of CLIP's kind"):
        convert_folder(source, tmp_path / "out")


class Runs:
    """An object whose unpickling would write a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self._path, "run")


def test_nothing_of_an_archive_is_ever_run(tmp_path: Path) -> None:
    archive = write_openai(tmp_path / "ViT-B-32.pt")
    with zipfile.ZipFile(archive) as before, zipfile.ZipFile(tmp_path / "evil.pt", "w") as after:
        for name in before.namelist():
            body = before.read(name)
            after.writestr(name, pickle.dumps(Runs(tmp_path / "ran")) if name.endswith("/data.pkl") else body)
    with pytest.raises(Refused, match="more than weights: it refers to pathlib"):
        read_torch_script(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


class Repeats(torch.nn.Module):
    """Holds one stored number as four thousand million."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ones", torch.ones(1).expand(2**32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_archive_that_repeats_few_numbers_as_many_is_refused(tmp_path: Path) -> None:
    torch.jit.trace(Repeats(), torch.ones(1)).save(tmp_path / "repeats.pt")  # type: ignore[no-untyped-call]
    with pytest.raises(Refused, match=r"ones \[4294967296\] repeats 4 stored bytes"):
        read_torch_script(tmp_path / "repeats.pt")


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_a_damaged_archive_is_refused(tmp_path: Path, share: float) -> None:
    body = write_openai(tmp_path / "ViT-B-32.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(body[: int(share * len(body))])
    with pytest.raises(Refused):
        convert_openai_clip(tmp_path / "cut.pt", tmp_path / "out")


def test_a_tokenizer_that_refers_to_code_or_is_missing_is_refused(tmp_path: Path) -> None:
    source = write_siglip(tmp_path / "source")
    options = json.loads((source / "tokenizer_config.json").read_text())
    write_json(source / "tokenizer_config.json", {**options, "auto_map": {"AutoTokenizer": ["code.Mine", None]}})
    with pytest.raises(Refused, match=r"tokenizer_config\.json refers to code"):
        convert_folder(source, tmp_path / "out")
    (source / "tokenizer.json").unlink()
    with pytest.raises(Refused, match=r"there is no tokenizer\.json"):
        convert_folder(source, tmp_path / "out")


def test_a_saved_model_keeps_its_tokenizer(tmp_path: Path) -> None:
    for write in (write_siglip, write_xlm_roberta):
        converted = tmp_path / f"{write.__name__}-converted"
        convert_folder(write(tmp_path / write.__name__), converted)
        clip = load_clip(str(converted))
        save_clip(clip, tmp_path / f"{write.__name__}-saved")
        again = load_clip(str(tmp_path / f"{write.__name__}-saved"))
        assert torch.equal(again.tokenizer(TEXTS), clip.tokenizer(TEXTS))
        assert again.tokenizer.num_tokens(TEXTS[0]) == clip.tokenizer.num_tokens(TEXTS[0])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vision_cfg": {"timm_model_name": "hf-hub:someone/model", "image_size": 64}}, "timm's models"),
        ({"text_cfg": {"hf_model_name": "someone/text"}}, "its configuration is not in text_tower"),
        ({"text_cfg": {"hf_tokenizer_name": "someone/text"}}, r"its tokenizer\.json is not in the folder"),
        ({"multimodal_cfg": {}}, "CoCa"),
    ],
)
def test_what_would_have_to_be_downloaded_is_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    source = shutil.copytree(write_laion(tmp_path / "source"), tmp_path / "changed")
    config = json.loads((source / "open_clip_config.json").read_text())
    for name, fields in changed.items():
        config["model_cfg"][name] = {**config["model_cfg"].get(name, {}), **fields}
    write_json(source / "open_clip_config.json", config)
    with pytest.raises(ValueError, match=said):
        PlainEngine.load(source, CPU)


def test_weights_of_another_model_are_refused_by_name(tmp_path: Path) -> None:
    source = write_laion(tmp_path / "source")
    config = json.loads((source / "open_clip_config.json").read_text())
    config["model_cfg"]["vision_cfg"]["layers"] = 3
    write_json(source / "open_clip_config.json", config)
    with pytest.raises(ValueError, match=r"the file has no visual\.transformer\.resblocks\.2\.attn"):
        PlainEngine.load(source, CPU)
