"""A record of trainings becomes the tables of the documentation."""

import csv
import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from starters.curate.recorded_trainings import app, general_table, seeing_table, training_table

JUDGES = ("base", "clip", "negclip", "other")
FORMS = {"swap_obj": 40, "swap_att": 60, "negate": 150, "shuffle": 99}


def write_inputs(folder: Path) -> list[str]:
    """Results of four models on two benchmarks, audits of both, and descriptions of three of the models."""
    results: list[dict[str, Any]] = []
    for place, judge in enumerate(JUDGES):
        for benchmark, shift in (("rules", 10.0), ("refined", 0.0)):
            scores = {kind: 50 + shift * place + number for number, kind in enumerate(FORMS)}
            results.append({"judge": judge, "benchmark": benchmark, "scores": scores, "sizes": FORMS, "settings": {}})
    (folder / "results.json").write_text(json.dumps(results))
    options = [str(folder / "record.json"), f"--results={folder / 'results.json'}", "--control=clip", "--seeing=clip"]
    for benchmark, right in (("rules", 38), ("refined", 20)):
        (folder / benchmark).mkdir()
        attacks = [
            {
                "attacker": "words",
                "task": task,
                "num_right": right,
                "num_wrong": 40 - right,
                "num_ties": 0,
                "chance": 0.5,
            }
            for task in ("swap_obj", "all")
        ]
        (folder / benchmark / "audit.json").write_text(json.dumps({"attacks": attacks}))
        options.append(f"--audit={benchmark}={folder / benchmark}")
    for judge, zs in zip(JUDGES, (60.0, 70.0, 71.0, 90.0), strict=True):
        (folder / judge).mkdir()
        described = {"metrics": {"zs": zs, "i2t": 1.0, "t2i": 2.0, "comp": 3.0}}
        (folder / judge / "checkpoint.json").write_text(json.dumps(described))
        options.append(f"--checkpoint={judge}={folder / judge}")
    return options


def test_a_record_of_trainings_becomes_three_tables_and_a_file_to_correlate(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, [*write_inputs(tmp_path), f"--csv={tmp_path / 'models.csv'}"])
    assert told.exit_code == 0, told.output
    text = (tmp_path / "record.json").read_text()
    assert str(tmp_path) not in text
    found = json.loads(text)
    trainings = training_table(found).to_markdown()
    assert "| clip | 60.6 | 62.0 |" in trainings and "| negclip | 70.6 (+10.0) | 72.0 (+10.0) |" in trainings
    assert "| other | **80.6 (+20.0)** |" in trainings
    seeing = seeing_table(found).to_markdown()
    assert "| benchmark | type | pairs | words | pairs with their images | clip, with the images |" in seeing
    assert "| rules | swap_obj | 40 | **95.0** | 40 | 60.0 |" in seeing
    assert "| refined | swap_obj | 40 | 50.0 | 40 | 50.0 |" in seeing and "| all |" not in seeing
    with (tmp_path / "models.csv").open() as file:
        models = list(csv.DictReader(file))
    assert [row["model"] for row in models] == list(JUDGES)
    assert "rules shuffle" not in models[0], "99 pairs are too few"
    assert models[3]["zero-shot accuracy"] == "90.0" and models[3]["rules swap"] == "80.6"


def test_correlations_are_of_models_with_both_numbers(tmp_path: Path) -> None:
    CliRunner().invoke(app, write_inputs(tmp_path))
    found = json.loads((tmp_path / "record.json").read_text())
    varied = [{**one, "scores": {"negate": 50.0 + len(one["judge"])}, "sizes": FORMS} for one in found["results"]]
    table = general_table({**found, "results": varied}).to_markdown()
    assert "| rules negate | 0.23 |" in table and "| 4 |" in table
    del found["general"]["other"]
    assert "| 3 |" in general_table({**found, "results": varied}).to_markdown()
