"""Recipes are the published ones, and refuse what makes no training."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.jobs.training import learning_rate
from services.nn.clip_model import open_clip
from services.score.fsc_clip import FscClipWeights
from services.score.negatives.hard_negatives import KINDS
from services.score.training.recipe import Recipe

NEGCLIP: dict[str, Any] = {"method": "negclip", "negatives": ("negclip",), "gather_negatives": False}
LORA: dict[str, Any] = {"lora_rank": 4, "lora_official_init": True, "learning_rate": 5e-5}
GOLDENS = Path(__file__).parents[2] / "goldens" / "lr_schedules.json"


def test_the_default_is_the_papers() -> None:
    paper = Recipe.read("fsc-clip-laion-coco")
    assert replace(paper, pretrained=None) == Recipe()
    assert paper.weights == FscClipWeights(lambda_global=0.5, lambda_local=0.2, gamma=2.0, beta=0.02)
    assert (paper.pretrained, paper.kinds) == ("openai", ("negclip", "replace", "bigram_shuffle"))
    # 100,000 images in batches of 256, five times
    assert paper.num_steps(100_000) == 1_955


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fsc-clip-coco", {}),
        ("fsc-clip-vit-l-14", {"base": "ViT-L-14", "lambda_local": 0.5}),
        ("clip-laion-coco", {"method": "clip"}),
        # Table 1
        ("negclip-laion-coco", NEGCLIP),
        ("fsc-clip-lora-laion-coco", LORA),
        ("negclip-cc3m", NEGCLIP),
        ("fsc-clip-cc3m", {}),
        ("fsc-clip-cc3m-released", {"lambda_global": 1.0}),
        ("fsc-clip-lora-cc3m", LORA),
        ("fsc-clip-lora-cc3m-released", {**LORA, "lambda_global": 1.0}),
        # Table 4
        ("negclip-vit-b-16", {**NEGCLIP, "base": "ViT-B-16"}),
        ("fsc-clip-vit-b-16", {"base": "ViT-B-16"}),
        ("fsc-clip-vit-b-16-released", {"base": "ViT-B-16", "batch_size": 128, "lambda_local": 0.5}),
        ("fsc-clip-lora-vit-b-16", {**LORA, "base": "ViT-B-16"}),
        ("fsc-clip-lora-vit-b-16-released", {**LORA, "base": "ViT-B-16", "batch_size": 128, "lambda_local": 0.5}),
        # Table 5
        ("negclip-datacomp-xl", {**NEGCLIP, "pretrained": "datacomp_xl_s13b_b90k"}),
        ("fsc-clip-datacomp-xl", {"pretrained": "datacomp_xl_s13b_b90k"}),
        ("fsc-clip-lora-datacomp-xl", {**LORA, "pretrained": "datacomp_xl_s13b_b90k"}),
    ],
)
def test_the_others_differ_from_it_in_what_their_rows_of_the_tables_say(name: str, changes: dict[str, Any]) -> None:
    assert Recipe.read(name) == replace(Recipe.read("fsc-clip-laion-coco"), **changes)


@pytest.mark.parametrize("method", ["clip", "negclip"])
def test_table_4_5s_recipes_are_those_of_appendix_c(method: str) -> None:
    tuned, scratch = Recipe.read(f"{method}-coco"), Recipe.read(f"{method}-coco-rn50")
    for one in (tuned, scratch):
        assert (one.method, one.warmup_steps, one.batch_size, one.learning_rate) == (method, 1000, 256, 1e-4)
        assert (one.weight_decay, one.epochs) == (0.1, 30)
    assert (tuned.base, tuned.pretrained) == ("ViT-B-32", "openai")
    assert (scratch.base, scratch.pretrained) == ("RN50", "random")


@pytest.mark.parametrize("name", Recipe.names())
def test_every_recipe_names_weights_that_open_clip_knows(name: str) -> None:
    recipe = Recipe.read(name)
    tags = open_clip().list_pretrained_tags_by_model(recipe.base)
    assert recipe.pretrained in (*tags, "random")


def test_the_schedule_is_the_reference_one(tmp_path: Path) -> None:
    golden = json.loads(GOLDENS.read_text())["open_clip_cosine"]
    for case in golden:
        recipe = Recipe(learning_rate=case["base"], warmup_steps=case["warmup"], steps=case["steps"])
        run = recipe.run(tmp_path, None, seed=0)
        for step, expected in case["lr"].items():
            assert learning_rate(run, int(step)) == pytest.approx(expected, rel=1e-9, abs=1e-18)


def test_clip_alone_makes_no_negatives() -> None:
    assert Recipe(method="clip").kinds == ()
    assert Recipe(negatives=KINDS).kinds == KINDS


def test_a_recipe_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('method = "global"\nsteps = 7\nnegatives = ["relation"]\n')
    assert Recipe.read(str(path)) == Recipe(method="global", steps=7, negatives=("relation",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('method = "siglip"', "method: Input should be 'clip'"),
        ('negatives = ["negation"]', "negatives.0: Input should be"),
        ('negatives = ["negclip", "negclip"]', "each once"),
        ("negatives = []", "at least one"),
        ("steps = 0", "steps"),
        ("beta = 1.0", "beta"),
        ('missing = "zeros"', "missing: Input should be 'exclude' or 'zero'"),
        ("lambda_local = -1.0", "lambda_local"),
        ("learning_rate = 0.0", "learning_rate"),
        ("lerning_rate = 1e-3", "lerning_rate"),
        ('package = "tests"', "unknown keys: package"),
        ("alpha = 1.5", "alpha: Input should be less"),
    ],
)
def test_what_makes_no_training_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        Recipe.read(str(tmp_path / "bad.toml"))


def test_an_unknown_recipe_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match="fsc-clip-coco"):
        Recipe.read("coco")


def test_endless_data_want_a_number_of_steps() -> None:
    with pytest.raises(ValueError, match="is endless"):
        Recipe().num_steps(None)
    with pytest.raises(ValueError, match="do not fill"):
        Recipe().num_steps(100)


def test_a_batch_must_be_shareable(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="can't evenly split"):
        Recipe(steps=3, batch_size=10).run(tmp_path, None, seed=0, accumulate=4)
    assert Recipe(steps=3, batch_size=12).run(tmp_path, None, seed=0, accumulate=4).num_examples == 3
