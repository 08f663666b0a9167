"""CLIP and FSC-CLIP score every pair of a record as their equations say, whatever stands beside it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from services.core.refusals import Refused
from services.nn.clip_model import ClipModel, save_clip
from services.score.evaluation.clip_judge import Clip, ClipJudge
from services.score.evaluation.judges import Similarity, evaluate, score
from services.score.evaluation.records import Record, Scores, Task, read_image_file
from services.score.model.checkpoint import load_fsc_clip
from services.score.model.dense_features import encode_images, encode_texts
from tests.score.aligned_patches import aligned_patches
from tests.score.evaluation.stand_ins import SOURCE
from tests.score.tiny import CONTEXT_LENGTH, tiny_clip, write_tiny_checkpoint

# Of a model that mixes nothing in.
SAME: tuple[tuple[Similarity, Similarity], ...] = (("mix", "global"), ("local", "local"))
WORDS = ("a red dog", "a dog beside a small blue house", "two cats", "something else entirely on a table")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "fsc", local_weight=0.25)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    paths = [folder / f"{number}.png" for number in range(7)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(path)
    return paths


@pytest.fixture(scope="module")
def clip(checkpoint: Path) -> Clip:
    return Clip.load(checkpoint)


@pytest.fixture(scope="module")
def loaded(checkpoint: Path) -> ClipModel:
    return load_fsc_clip(checkpoint).clip


def judge(clip: Clip, similarity: Similarity = "mix", **options: int) -> ClipJudge:
    return ClipJudge(clip, name="tiny", similarity=similarity, **options)


def one_by_one(clip: ClipModel, record: Record, weight: float) -> Scores:
    """A record's scores by the equations, a pair at a time: (1, I, C)."""
    rows = []
    for path in record.images:
        pixels = clip.transform.normalise(torch.from_numpy(np.stack([clip.transform(read_image_file(path))])))
        row = []
        for caption in record.captions:
            image = encode_images(clip.model, pixels)
            text = encode_texts(clip.model, clip.tokenizer([caption]))
            cosine = (image.pooled * text.pooled).sum()
            words = F.normalize(text.tokens, dim=-1)
            local = (aligned_patches(image.tokens, text.tokens) * words).sum(dim=-1)[text.mask].mean()
            row.append(float((1 - weight) * cosine + weight * local))
        rows.append(row)
    return np.array([rows])


def kinds(images: list[Path]) -> list[Task]:
    texts = [Record(str(n), (path,), (WORDS[n % 4], WORDS[(n + 1) % 4])) for n, path in enumerate(images)]
    found = [Record("0", tuple(images[:5]), (WORDS[0],)), Record("1", tuple(images[2:]), (WORDS[1],))]
    groups = [Record("0", tuple(images[:2]), WORDS[:2]), Record("1", tuple(images[2:5]), WORDS[1:])]
    return [Task(name, "mine", tuple(some), SOURCE) for name, some in (("t", texts), ("f", found), ("g", groups))]


@pytest.mark.parametrize(("similarity", "weight"), [("mix", 0.25), ("global", 0.0), ("local", 1.0)])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
@pytest.mark.slow
def test_every_kind_of_record_is_scored_by_the_equations_in_batches_of_any_size(
    clip: Clip, loaded: ClipModel, images: list[Path], similarity: Similarity, weight: float, batch_size: int
) -> None:
    tiny = judge(clip, similarity, batch_size=batch_size)
    for task in kinds(images):
        found = score(tiny, task)
        for record, scores in zip(task.records, found, strict=True):
            np.testing.assert_allclose(scores, one_by_one(loaded, record, weight), atol=2e-6)
    assert tiny.notes() == {"local_weight": weight}


@pytest.mark.parametrize("similarity", ["mix", "global", "local"])
def test_captions_that_the_model_reads_alike_tie_to_the_last_bit(
    clip: Clip, images: list[Path], similarity: Similarity
) -> None:
    same = ("a red dog", "a red  dog", "A Red Dog", "two cats", "a red dog")
    records = tuple(Record(str(n), (path,), same) for n, path in enumerate(images))
    others = tuple(Record(f"other {n}", (path,), WORDS) for n, path in enumerate(images))
    task = Task("same", "mine", (*records, *others), SOURCE)
    for scores in score(judge(clip, similarity), task)[: len(images)]:
        (row,) = scores[0]
        assert row[0] == row[1] == row[2] == row[4] != row[3]
    (result,) = evaluate(judge(clip, similarity), [task.first(len(images))])
    assert result.scores == {"same": 0.0}


def test_what_the_model_reads_alike_is_one_row(clip: Clip) -> None:
    input_ids, row_of = clip.input_ids(["two cats", "a red dog", "a red  dog", "two  cats", "a dog"])
    assert row_of == {"two cats": 0, "a red dog": 1, "a red  dog": 1, "two  cats": 0, "a dog": 2}
    assert (input_ids == clip.tokenizer(["two cats", "a red dog", "a dog"])).all()


def test_an_image_of_many_records_is_read_once(clip: Clip, images: list[Path]) -> None:
    num_read = 0

    def preprocess(image: Image.Image) -> Tensor:
        nonlocal num_read
        num_read += 1
        return clip.preprocess(image)

    records = [
        Record(f"{number} {path}", (path,), (WORDS[number], WORDS[number + 1]))
        for number in range(3)
        for path in images
    ]
    judge(replace(clip, preprocess=preprocess), batch_size=4).score(
        Task("t", "mine", tuple(records), SOURCE), lambda place, scores: None
    )
    assert num_read == len(images)


def test_a_caption_that_the_context_cuts_is_counted_and_may_tie(clip: Clip, images: list[Path]) -> None:
    start = "a dog " * CONTEXT_LENGTH
    task = Task("long", "mine", (Record("0", (images[0],), (start + "left", start + "right")),), SOURCE)
    tiny = judge(clip)
    (result,) = evaluate(tiny, [task])
    assert result.scores == {"long": 0.0}
    assert result.settings == {"local_weight": 0.25, "captions_cut": 2}


def test_a_folder_of_open_clips_is_scored_by_its_pooled_features(
    clip: Clip, loaded: ClipModel, tmp_path: Path, images: list[Path]
) -> None:
    save_clip(loaded, tmp_path / "clip")
    plain = Clip.load(tmp_path / "clip")
    for task in kinds(images):
        for similarity, same in SAME:
            found, expected = score(judge(plain, similarity), task), score(judge(clip, same), task)
            assert all((one == other).all() for one, other in zip(found, expected, strict=True))


def test_a_model_without_features_of_tokens_has_a_global_similarity_alone(tmp_path: Path, images: list[Path]) -> None:
    save_clip(tiny_clip(vision={"attentional_pool": True, "attn_pooler_heads": 2}), tmp_path / "pooled")
    pooled = Clip.load(tmp_path / "pooled")
    with pytest.raises(Refused, match="tiny has no features of single tokens: FSC-CLIP needs a plain ViT"):
        judge(pooled, "local")
    (result,) = evaluate(judge(pooled), kinds(images)[:1])
    assert result.settings == {"local_weight": 0.0}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("ViT-Z:openai", "open_clip has no model 'ViT-Z'"),
        ("ViT-B-32:", "'ViT-B-32' needs weights, as in ViT-B-32:openai"),
        (Path("tests"), "'tests' is neither a directory with open_clip_config.json nor a model"),
    ],
)
def test_a_model_that_there_is_not_is_told(reference: Path | str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Clip.load(reference)


def test_an_image_that_can_not_be_read_is_named(clip: Clip, tmp_path: Path) -> None:
    path = tmp_path / "broken.png"
    path.write_bytes(b"nothing")
    task = Task("t", "mine", (Record("0", (path,), ("x", "y")),), SOURCE)
    with pytest.raises(Refused, match=r"broken\.png can't be read as an image"):
        evaluate(judge(clip), [task])
