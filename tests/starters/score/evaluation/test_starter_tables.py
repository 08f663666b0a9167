"""Results of the starter's runs are collected by row and seed, and shown with their spread."""

import json
from pathlib import Path
from typing import Any

import pytest

from starters.score.data.scene_captions import ATTRIBUTES
from starters.score.evaluation.starter_tables import COMPOSITION, KEPT, RESULT_FILES, Result, collect, tables


def describe(runs: Path, name: str, seed: int, start: float, **changes: Any) -> None:
    """A finished run whose metrics are `start` and the numbers behind it."""
    names = (*COMPOSITION, *KEPT, *(f"zs_{attribute}" for attribute in ATTRIBUTES))
    metrics = {name: start + i for i, name in enumerate(names)}
    directory = runs / name / "checkpoint"
    directory.mkdir(parents=True)
    description = {"seed": seed, "metrics": {**metrics, **changes.pop("metrics", {})}, **changes}
    (directory / "checkpoint.json").write_text(json.dumps(description))


def test_runs_are_rows_and_seeds_their_columns(tmp_path: Path) -> None:
    describe(tmp_path, "base", 0, 50)
    describe(tmp_path, "fsc-clip-0", 0, 60)
    describe(tmp_path, "fsc-clip-1", 1, 62)
    describe(tmp_path, "something-else", 1, 62)
    found = {result.run: result.scores for result in collect(tmp_path)}
    assert found.keys() == {"base", "fsc-clip"}
    assert found["fsc-clip"]["1"]["comp"] == 62


def test_what_is_served_is_scored_by_its_local_weight_and_the_row_above_without(tmp_path: Path) -> None:
    alone = {f"global_{kind}": 40.0 for kind in COMPOSITION}
    describe(tmp_path, "wise-ft-0", 0, 70, metrics=alone, training={"alpha": 0.6, "local_weight": 0.2})
    found = {result.run: result.scores["0"] for result in collect(tmp_path)}
    assert (found["wise-ft"]["comp"], found["wise-ft-local"]["comp"]) == (40, 70)
    assert found["wise-ft"]["alpha"] == 0.6
    assert not any(key.startswith("global_") for key in found["wise-ft"])


def test_the_packaged_starter_is_one_row_as_it_is_served(tmp_path: Path) -> None:
    alone = {f"global_{kind}": 40.0 for kind in COMPOSITION}
    describe(tmp_path, "wide-base-0", 0, 50)
    describe(tmp_path, "starter-0", 0, 70, metrics=alone, training={"alpha": 0.6, "local_weight": 0.2})
    describe(tmp_path, "wide-0", 0, 65, metrics=alone, training={"alpha": 0.5, "local_weight": 0.2})
    found = {result.run: result.scores["0"] for result in collect(tmp_path)}
    assert found.keys() == {"wide-base", "wide", "starter"}
    assert (found["starter"]["comp"], found["starter"]["alpha"]) == (70, 0.6)
    assert (found["wide"]["comp"], found["wide"]["alpha"]) == (65, 0.5)


def test_tables_tell_mean_and_spread(tmp_path: Path) -> None:
    describe(tmp_path, "base", 0, 50)
    describe(tmp_path, "fsc-clip-0", 0, 60)
    describe(tmp_path, "fsc-clip-1", 1, 62)
    text = "".join(table.to_markdown() for table in tables(collect(tmp_path)))
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| FSC-CLIP")]
    assert rows[0][1] == "61.0 ± 1.4"
    assert "| before | 50.0 |" in text
    assert text.index("| before") < text.index("| FSC-CLIP")


def test_later_runs_of_a_seed_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    RESULT_FILES.save([Result("clip", {"0": {"comp": 1.0}, "1": {"comp": 2.0}})], path)
    RESULT_FILES.save([Result("clip", {"1": {"comp": 3.0}})], path)
    assert RESULT_FILES.load([path]) == [Result("clip", {"0": {"comp": 1.0}, "1": {"comp": 3.0}})]


def test_a_folder_without_runs_has_no_tables(tmp_path: Path) -> None:
    assert collect(tmp_path) == []
    with pytest.raises(ValueError, match="does not contain results"):
        (tmp_path / "bad.json").write_text("3")
        RESULT_FILES.load([tmp_path / "bad.json"])
