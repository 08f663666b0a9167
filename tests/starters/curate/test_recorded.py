"""A record of results holds what the documentation's tables need, and no more."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from starters.curate.recorded import app, audit_table, quality_table, refinement_table

RUNNER = CliRunner()


def row(model: str, kind: str) -> dict[str, Any]:
    before = {"pairs": 300, "right": 180, "wrong": 120, "ties": 0, "accuracy": 60.0, "interval": [54.4, 65.4]}
    after = {"pairs": 200, "right": 99, "wrong": 99, "ties": 2, "accuracy": 49.5, "interval": [42.6, 56.4]}
    return {"model": model, "kind": kind, "before": before, "after": after}


def attacked(task: str, num_right: int) -> dict[str, Any]:
    counts = {"num_right": num_right, "num_wrong": 100 - num_right, "num_ties": 0, "chance": 0.5}
    return {"attacker": "words", "task": task, **counts, "accuracy": num_right / 100, "interval": [0, 1], "verdict": ""}


def test_a_record_becomes_three_tables(tmp_path: Path) -> None:
    (tmp_path / "refined").mkdir()
    report = {
        "pairs": "/somewhere",
        "seed": 0,
        "models": {"p": "x"},
        "results": [row("p", "swap_obj"), row("p", "negate")],
    }
    (tmp_path / "refined/report.json").write_text(json.dumps(report))
    quality = {"form": "SWAP", "model": "p", "theirs": 23.09, "ours": None, "better": 78.76, "num_compared": 5}
    (tmp_path / "quality.json").write_text(json.dumps([quality]))
    (tmp_path / "audit").mkdir()
    attacks = [attacked("one", 90), attacked("two", 52), attacked("three", 10)]
    (tmp_path / "audit/audit.json").write_text(json.dumps({"attacks": attacks}))
    options = (
        f"--refinement={tmp_path}/refined",
        f"--quality={tmp_path}/quality.json",
        f"--audit=VALSE={tmp_path}/audit",
    )
    told = RUNNER.invoke(app, [str(tmp_path / "record.json"), *options])
    assert told.exit_code == 0, told.output
    text = (tmp_path / "record.json").read_text()
    found = json.loads(text)
    assert "/somewhere" not in text and str(tmp_path) not in text
    assert "| swap_obj | 300 | 200 | 246 | 60.0 (54.4–65.4) → 49.5 |" in refinement_table(found).to_markdown()
    assert "| negate | 300 | 200 | – | " in refinement_table(found).to_markdown()
    audits = audit_table(found).to_markdown()
    assert "| VALSE | one | 100 | 50 | **90.0** |" in audits and "| VALSE | two | 100 | 50 | 52.0 |" in audits
    assert "| VALSE | three | 100 | 50 | **10.0** |" in audits
    assert "| SWAP | p | 23.1 | – | 78.8 | 5 |" in quality_table(found).to_markdown()
