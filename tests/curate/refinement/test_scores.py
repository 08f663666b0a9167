"""A recipe's refinement is that of the command."""

from pathlib import Path

from services.curate.refinement.scores import RefineOptions, refined
from services.jobs.sugarcrepe import read_pairs
from tests.curate.refinement.test_command import refine


def test_a_recipe_keeps_what_the_command_keeps(folder: Path, tmp_path: Path) -> None:
    told = refine(folder, tmp_path, "--seed=3")
    assert told.exit_code == 0, told.output
    options = RefineOptions(
        model=[f"plausible={folder / 'vera'}", str(folder / "cola"), str(folder / "gpt2")],
        seed=3,
        cache=tmp_path / "cache",
        device="cpu",
    )
    pairs = read_pairs(folder / "pairs.jsonl")
    assert refined(pairs, options) == read_pairs(tmp_path / "pairs.jsonl")
    assert refined([], options) == []
