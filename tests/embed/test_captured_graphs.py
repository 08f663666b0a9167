"""Engines whose towers are captured as graphs, run without a GPU: a graph serves every batch of its shapes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.embed.imports.magiclens import convert_magiclens
from services.embed.model.focallens_engine import FocalLensEngine
from services.embed.model.image_engine import ImageEngine
from services.embed.model.items import Item
from services.embed.model.magiclens_engine import MagicLensEngine
from services.embed.model.plain_engine import PlainEngine
from services.jobs.imports.clip_weights import convert_openai_clip
from services.nn import captured
from services.nn.broken_model import BrokenModel
from services.nn.devices import DeviceOptions
from services.nn.plain_clip import PlainClip
from services.nn.reference_outputs import REFERENCE_FILE, make_reference
from tests.core.image_files import scene
from tests.embed.tiny import write_tiny_checkpoint
from tests.nn.counted_gpu import GPU, CountedGPU
from tests.nn.eager_graphs import eager_graphs
from tests.published_clips import convert_folder, write_laion, write_openai, write_siglip
from tests.published_magiclens import write_magiclens

# packed weights, of float32, are not those of a GPU
CPU = DeviceOptions("cpu", "bfloat16", num_threads=1)


def write_focallens(folder: Path, **options: Any) -> Path:
    write_tiny_checkpoint(folder, **options)
    return folder


def import_openai(folder: Path, *, is_resnet: bool) -> Path:
    convert_openai_clip(write_openai(folder / "model.pt", is_resnet=is_resnet), folder / "checkpoint")
    return folder / "checkpoint"


def import_folder(folder: Path, write: Callable[[Path], object]) -> Path:
    write(folder / "published")
    convert_folder(folder / "published", folder / "checkpoint")
    return folder / "checkpoint"


def import_magiclens(folder: Path) -> Path:
    convert_magiclens(write_magiclens(folder / "magic_lens_clip_base.pkl"), folder / "checkpoint")
    return folder / "checkpoint"


MODELS: dict[str, tuple[type[ImageEngine[Any]], Callable[[Path], Path]]] = {
    "readout": (FocalLensEngine, lambda folder: write_focallens(folder, visibility="readout")),
    "readout from block 1": (FocalLensEngine, lambda folder: write_focallens(folder, condition_layer=1)),
    "full": (FocalLensEngine, lambda folder: write_focallens(folder, visibility="full")),
    "OpenAI's ViT": (PlainEngine, lambda folder: import_openai(folder, is_resnet=False)),
    "OpenAI's ResNet": (PlainEngine, lambda folder: import_openai(folder, is_resnet=True)),
    "LAION's ViT": (PlainEngine, lambda folder: import_folder(folder, write_laion)),
    "SigLIP": (PlainEngine, lambda folder: import_folder(folder, write_siglip)),
    "MagicLens": (MagicLensEngine, import_magiclens),
}


@pytest.fixture(params=MODELS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> ImageEngine[Any]:
    engine, write = MODELS[request.param]
    folder = write(tmp_path)
    (folder / REFERENCE_FILE).write_bytes(make_reference(engine.load(folder, CPU)))
    return engine.load(folder, CPU)


def batches(engine: ImageEngine[Any]) -> list[list[Item]]:
    """Batches of one to three images, under up to three conditions each, with texts between them."""
    picture, found = scene(), []
    for round_ in range(2):
        for sizes in ((0,), (1,), (3,), (1, 1), (3, 0), (2, 1, 3)):
            items: list[Item] = []
            for number, size in enumerate(sizes):
                num_conditions = size if engine.sample_condition is not None else 0
                asked = [engine.prepare_condition(f"which {round_} {one}?") for one in range(num_conditions)]
                turned = picture.rotate(10 * number + 90 * round_)
                items += engine.prepare_image(turned, f"{round_} {number}", asked or [None])
            if engine.image_only is None:
                items += [engine.prepare_text(f"{'red ' * size} square {round_}") for size in sizes]
            found.append(items)
    return found


def test_every_batch_gets_the_answer_of_the_towers_themselves(
    engine: ImageEngine[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(some: Sequence[list[Item]]) -> list[np.ndarray[Any, Any]]:
        return [np.concatenate([one.rows for one in engine.run_batch(items)]) for items in some]

    asked = batches(engine)
    with eager_graphs() as graphs:
        answered = run(asked)
        assert graphs
        monkeypatch.setattr(captured, "MAX_ROWS", 0)
        expected = run(asked)
    for one, other in zip(answered, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_model_passes_its_checks_with_graphs(engine: ImageEngine[Any]) -> None:
    with eager_graphs() as graphs:
        engine.warm_up()
        engine.self_check()
    assert graphs


def test_a_model_whose_graphs_compute_something_else_fails_its_checks(engine: ImageEngine[Any]) -> None:
    with eager_graphs(are_wrong=True), pytest.raises(BrokenModel):
        engine.warm_up()
        engine.self_check()


@pytest.mark.parametrize("name", MODELS)
def test_what_is_captured_copies_nothing_from_or_to_the_host(name: str, tmp_path: Path) -> None:
    engine_class, write = MODELS[name]
    checkpoint = engine_class.read(write(tmp_path), torch.device("cpu"), torch.bfloat16)
    (checkpoint.clip if isinstance(checkpoint, PlainClip) else checkpoint).model.to(GPU)
    engine = engine_class(checkpoint, GPU, torch.bfloat16)
    counted = CountedGPU.of(lambda: [engine.run_batch(items) for items in batches(engine)])
    assert counted.operations["graph"] >= 6
