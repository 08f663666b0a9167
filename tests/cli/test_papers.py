"""The ledger of the papers: its rows, their commands, and what runs of them print and record."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from services.cli.delegation import Delegate
from services.cli.main import app
from services.cli.papers import ledger
from services.cli.papers.command import app as papers_app
from services.cli.papers.command import comparison_tables
from services.cli.papers.ledger import Row
from services.cli.papers.run import Record, choose_models, find_data, read_all, value_at
from services.core.refusals import Refused
from tests.predict.toy_data_sets import write_svamp

ROWS = ledger.rows()
ROOT = Path(__file__).parents[2]


def papers(*words: object) -> Any:
    return CliRunner().invoke(papers_app, list(map(str, words)))


def fovea(*words: object, store: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-m", "services.cli.main", "papers", *map(str, words)]
    environment = dict(os.environ) if store is None else {**os.environ, "FOVEA_STORE_URL": f"file://{store}"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)


def complaints(step: tuple[str, ...]) -> list[str]:
    """What the real command says of the words of a step, except of placeholders; nothing where it would run."""
    words, command = [word.replace("{seed}", "0") for word in step], get_command(app)
    while words and (commands := getattr(command, "commands", {})):
        if words[0] not in commands:
            return [f"there is no command {words[0]}: {step}"]
        command = commands[words.pop(0)]
        command = command.load() if isinstance(command, Delegate) else command
    context: Any = command.make_context(step[-1], [], resilient_parsing=True)
    context.resilient_parsing = False
    parameters: Any = command.params
    try:
        values, left, _ = command.make_parser(context).parse_args(args=words)
    except Exception as refused:  # of a class of typer's own
        return [f"{step}: {refused}"]
    if left and context.allow_extra_args:  # the ablations', for each of their trainings
        return complaints(("train", "fsc-clip", "--output", "{out}", *left))
    found = [f"{step}: too many words: {left}"] if left else []
    for parameter in parameters:
        try:
            parameter.handle_parse_result(context, values, [])
        except Exception as refused:
            found += [] if "{" in str(refused) else [f"{step}: {parameter.name}: {refused}"]
    return found


def all_steps(row: Row) -> list[tuple[str, ...]]:
    """The row's steps, with the words of each of its recipes."""
    return [step for beside in row.recipes or [""] for step in row.steps_for(beside, "")]


@pytest.mark.slow  # imports every job
def test_every_step_of_every_row_is_a_command_with_options_that_it_has() -> None:
    steps = dict.fromkeys(step for row in ROWS.values() for step in all_steps(row))
    assert [said for step in steps for said in complaints(step)] == []


@pytest.mark.slow  # imports the jobs that it names
def test_a_vanished_command_an_unknown_option_and_a_missing_argument_are_noticed() -> None:
    refine = ("curate", "refine", "{data.pairs}", "--output", "{out}/refined")
    assert complaints(refine) == []
    for step, said in (
        (("curate", "vanished"), "no command vanished"),
        ((*refine, "--vanished"), "--vanished"),
        (refine[:3], "output"),
        ((*refine, "--seed=many"), "many"),
        ((*refine, "{data.more}"), "too many words"),
    ):
        (found,) = complaints(step)
        assert said in found


def test_every_recipe_of_a_step_is_one_that_its_command_has() -> None:
    folders = {"fsc-clip": "score/training/recipes", "focallens": "embed/training/recipes/focallens"}
    folders["focallens-mllm"] = "embed/training/recipes/focallens-mllm"
    recipes = {
        f"{folders[step[1]]}/{word.removeprefix('--recipe=')}.toml"
        for row in ROWS.values()
        for step in all_steps(row)
        for word in step
        if word.startswith("--recipe=")
    }
    assert len(recipes) > 15
    assert [path for path in recipes if not (ROOT / "services" / path).is_file()] == []


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_names_only_places_that_exist(row: Row) -> None:
    """Placeholders are those that a run fills, data is read by a step, and a comparison's names are published ones."""
    known = {"model", "seed", "out", "beside", "recipe", *(f"data.{name}" for name in row.data)}
    text = " ".join(word for step in [*row.steps, *row.recipes.values()] for word in step)
    assert all(f"{{data.{name}}}" in text for name in row.data)
    found = {name.partition("}")[0] for name in text.split("{")[1:]}
    assert found <= known
    for comparison in row.compare:
        (published,) = (one for one in row.published if one.source == comparison.source)
        assert comparison.columns.keys() <= set(published.columns)
        filled = {
            name.replace("{beside}", beside)
            for name in comparison.rows
            for beside in [*row.models, *row.recipes] or [""]
        }
        assert filled <= published.rows.keys()
        assert comparison.file == "" or "{out}" in text


def test_every_published_cell_has_a_page_and_a_table() -> None:
    for row in ROWS.values():
        for published in row.published:
            assert published.page >= 1 and published.source
            assert list(published.cells())


def test_ids_are_unique_and_those_of_the_two_documents_cannot_clash() -> None:
    ids = Counter(row.id for paper in ledger.papers() for row in paper.row)
    assert max(ids.values()) == 1
    documents = {row.id: paper.document for paper in ledger.papers() for row in paper.row}
    assert len({document for row, document in documents.items() if row.startswith("FSC-")}) == 1
    assert len({document for row, document in documents.items() if not row.startswith("FSC-")}) == 1
    assert {row.status for row in ROWS.values()} == set(ledger.count_by_status())


@pytest.mark.parametrize(
    ("document", "kind", "numbers"),
    [
        ("T", "table", "2.1 2.2 3.1 3.2 3.3 4.1 4.2 4.3 4.4 4.5 4.6 5.1 5.2 5.3 5.4 5.5 5.6 A.1 B.1 B.2"),
        ("T", "table", "C.1 C.2 C.3 C.4 D.1 D.2 D.3 D.4 D.5"),
        ("F", "figure", "2.1 2.2 2.3 2.4 2.5 2.6 2.7 2.8 2.9 3.1 3.2 3.3 3.4 3.5 3.6 4.1 4.2 4.3 4.4 4.5"),
        ("F", "figure", "5.1 5.2 5.3 5.4 5.5 C.1 C.2 C.3 C.4"),
        ("FSC-T", "table", "1 2 3 4 5 6 7 8 9"),
        ("FSC-F", "figure", "1 2 3 4"),
    ],
)
def test_no_table_and_no_figure_of_the_documents_is_left_out(document: str, kind: str, numbers: str) -> None:
    assert {ROWS[f"{document}{number}"].kind for number in numbers.split()} == {kind}


def test_records_that_rows_point_to_exist() -> None:
    named = {text.partition(":")[0] for row in ROWS.values() for text in row.recorded}
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_the_list_counts_the_rows_by_status() -> None:
    listed = papers()
    assert listed.exit_code == 0
    counts = ledger.count_by_status()
    assert f"{len(ROWS)} rows: " + ", ".join(f"{count} {status}" for status, count in counts.items()) in listed.output
    assert listed.output.count("│ id ") + listed.output.count("┃ id ") == len(ledger.papers())
    assert "needs data: images, weights" in listed.output and "`fovea papers show T4.6`" in listed.output
    assert json.loads(papers("--json").output).keys() == ROWS.keys()


def test_a_row_is_shown_with_its_published_numbers_command_data_and_weights() -> None:
    shown = papers("show", "t4.4").output
    for text in ("page 72", "77.71", "fovea curate measure quality", "https://cocodataset.org", "liujch1998/vera"):
        assert text in shown


def test_missing_data_and_weights_are_named_with_their_sources_and_have_a_status_of_their_own(tmp_path: Path) -> None:
    missing = papers("run", "T4.6", "--data", tmp_path)
    assert missing.exit_code == 3
    for text in ("sugar-crepe/data", "https://github.com/RAIVNLab/sugar-crepe", "coco/val2017", str(tmp_path)):
        assert text in missing.output
    assert papers("run", "T3.3").exit_code == 3
    assert "--data is not given" in papers("run", "T3.3").output


def test_an_empty_folder_is_no_data_and_what_should_be_in_it_is_named(tmp_path: Path) -> None:
    for name in ("benchmarks", "imagenet/val", "sugar-crepe/data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "sugar-crepe" / "data" / "add_obj.json").write_text("{}")
    for row, wanted in (
        ("FSC-T4", "benchmarks/crepe/prod_hard_negatives/*/*.csv"),
        ("FSC-T4", "from https://github.com/RAIVNLab/CREPE"),
        ("T5.3", "imagenet/val/n*/* from https://image-net.org"),
        (
            "P4.5",
            "sugar-crepe/data/swap_att.json, sugar-crepe/data/add_att.json from https://github.com/RAIVNLab/sugar-crepe",
        ),
    ):
        missing = papers("run", row, "--data", tmp_path)
        assert (missing.exit_code, wanted in missing.output) == (3, True), missing.output
    assert "add_obj.json" not in papers("run", "P4.5", "--data", tmp_path).output


def test_part_of_the_data_is_enough_for_options_that_choose_it(tmp_path: Path) -> None:
    write_svamp(tmp_path / "distill")
    row = ROWS["T2.1"]
    whole = papers("run", "T2.1", "--data", tmp_path)
    assert whole.exit_code == 3
    assert "cqa/cqa_train.json" in whole.output and "or give options" in whole.output and "svamp" not in whole.output
    assert find_data(row, tmp_path, choose_models(row, []), is_whole=False) == {"distill": tmp_path / "distill"}


def test_every_data_set_is_that_of_a_row_and_has_an_address() -> None:
    used = {name: data for row in ROWS.values() for name, data in row.data.items()}
    assert used.keys() == tomllib.loads((ledger.FOLDER / "data.toml").read_text()).keys()
    for data in used.values():
        assert all("https://" in source or "fovea curate" in source or "people" in source for source in data.files)


def test_a_row_without_a_command_says_why_and_has_a_status_of_its_own() -> None:
    refused = papers("run", "F5.2")
    assert refused.exit_code == 4
    assert "a diagram" in refused.output


def test_wrong_names_are_refused_in_one_line_with_the_nearest_ones(tmp_path: Path) -> None:
    for words, said in (
        (("show", "T4.66"), "the ledger has no row 'T4.66'; did you mean T4.6?"),
        (("run", "XYZ"), "the ledger has no row 'XYZ'; `fovea papers` lists them"),
        (
            ("run", "T4.6", "--model", "ViTL14=mine"),
            "--model ViTL14=mine: T4.6 has no row or model 'ViTL14'; "
            "the nearest are 'ViT-L-14', 'ViT-H-14', 'ViT-g-14'",
        ),
        (("run", "T4.2", "--model", "mine"), "T4.2 has no model: leave --model out"),
    ):
        refused = papers(*words)
        assert (refused.exit_code, refused.output) == (2, f"fovea papers: {said}\n")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (["name=b", "scores", "x"], 3.0),
        (["scores", "x"], 3.0),
        (["name=a", "scores", "*"], 1.5),
        (["*", "scores", "x"], 2.0),
        (["name!=b", "scores", "x"], 1.0),
        (["name=a", "scores", "x+y"], 3.0),
        (["#"], 2.0),
        (["0", "scores", "x"], 1.0),
        (["2", "scores", "x"], None),
        (["name=c", "scores", "x"], None),
        (["name=a", "scores", "z"], None),
        (["name=a", "scores", "x", "y"], None),
    ],
)
def test_a_key_leads_to_a_number_or_to_nothing(key: list[str], value: float | None) -> None:
    document = [{"name": "a", "scores": {"x": 1, "y": 2}}, {"name": "b", "scores": {"x": 3}}]
    assert value_at(document, key) == value


def sugar_crepe(folder: Path, num: int) -> Path:
    """SugarCrepe's files with a few pairs of each type, and released answers that are right on the first of each."""
    for name in ("data", "gpt4v"):
        (folder / "sugar-crepe" / name).mkdir(parents=True)
    kinds = ("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att")
    pairs = {
        str(i): {"filename": f"{i}.jpg", "caption": f"a cat on mat {i}", "negative_caption": f"a dog on a mat {i}"}
        for i in range(num)
    }
    for kind in kinds:
        (folder / "sugar-crepe" / "data" / f"{kind}.json").write_text(json.dumps(pairs))
    (folder / "sugar-crepe" / "swap_obj_paper246.json").write_text(json.dumps(pairs))
    answers = {kind: {name: int(name == "0") for name in pairs} for kind in kinds}
    (folder / "sugar-crepe" / "gpt4v" / "gpt4v_correct.json").write_text(json.dumps({"positive-first": answers}))
    return folder


def word_problems(folder: Path) -> Path:
    write_svamp(folder / "distill")
    return folder


def articles(folder: Path) -> Path:
    """SynthWiki's file with an article and a question about each of 40 people."""
    lines = ["context,question,answer"]
    lines += [f"Person{i} was born in Town{i} and paints.,Where was Person{i} born?,Town{i}" for i in range(40)]
    (folder / "synthwiki").mkdir(parents=True)
    (folder / "synthwiki" / "madlibs1.csv").write_text("\n".join(lines) + "\n")
    return folder


def captions(folder: Path) -> Path:
    """COCO's captions of three images."""
    (folder / "coco" / "annotations").mkdir(parents=True)
    texts = ["A black cat sits on a red mat.", "A man rides a brown horse.", "Two dogs play in the green grass."]
    coco = {
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in range(3)],
        "annotations": [{"id": i, "image_id": i, "caption": text} for i, text in enumerate(texts)],
    }
    (folder / "coco" / "annotations" / "captions_val2017.json").write_text(json.dumps(coco))
    return folder


def humans(folder: Path) -> Path:
    """People's choices and judgements: one right of two of each type, and a tie."""
    (folder / "humans").mkdir(parents=True)
    for name in ("aro+crepe", "sugarcrepe"):
        choices = [
            {"id": f"{kind}-{i}", "kind": kind, "is_right": i == 0}
            for kind in ("replace_obj", "swap_obj")
            for i in range(2)
        ]
        (folder / "humans" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, choices)))
    for quality in ("commonsense", "grammar"):
        told = [{"form": "SWAP", "quality": quality, "better": better} for better in ("ours", "ours", "ours", "tie")]
        (folder / "humans" / f"{quality}.jsonl").write_text("\n".join(map(json.dumps, told)))
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store into which the packaged models are published once."""
    return tmp_path_factory.mktemp("store")


def ran(row_id: str, data: Path, store: Path, *options: str) -> tuple[str, list[Record]]:
    save = data / "papers.jsonl"
    done = fovea("run", row_id, "--data", data, "--save", save, *options, store=store)
    assert done.returncode == 0, done.stderr
    return done.stdout, read_all(save)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("row_id", "make_data", "options", "num_cells"),
    [
        pytest.param("E2.1", word_problems, ["--steps", "1", "--batch-size", "4"], 0, marks=pytest.mark.training),
        ("TB.2s", articles, ["--documents", "3", "--limit", "1", "--methods", "Vanilla attention"], 0),
        ("FSC-P4", captions, [], 0),
    ],
)
def test_a_row_of_each_method_runs_from_its_command_to_its_record(
    row_id: str, make_data: Callable[[Path], Path], options: list[str], num_cells: int, tmp_path: Path, store: Path
) -> None:
    printed, records = ran(row_id, make_data(tmp_path / "data"), store, *options)
    assert f"{row_id}: {ROWS[row_id].title}\n" in printed
    assert [(record.id, len(record.cells)) for record in records] == [(row_id, num_cells)]
    assert records[0].commands[-1][-len(options) :] == options or not options
    assert bool(records[0].model_digest) is (row_id == "TB.2s")
    assert records[0].data.keys() == ROWS[row_id].data.keys()


@pytest.mark.process
def test_a_row_of_several_shapes_is_recorded_without_a_digest(tmp_path: Path, store: Path) -> None:
    printed, (record,) = ran("F2.8", word_problems(tmp_path / "data"), store, "--tasks", "svamp", "--report-only")
    assert "few-shot-cot" in printed
    assert (record.model, record.model_digest) == ("tiny,mini", "")


@pytest.mark.process
@pytest.mark.slow
def test_a_run_prints_published_and_own_numbers_and_records_what_it_was_made_of(tmp_path: Path, store: Path) -> None:
    kept = tmp_path / "kept"
    printed, (record,) = ran("T4.6g", sugar_crepe(tmp_path / "data", 4), store, "--output", str(kept))
    assert f"Kept in {kept / 'T4.6g'}" in printed.replace("\n", "")
    assert (kept / "T4.6g" / "results.json").is_file()
    assert "Table 4.6, page 76" in printed and "96.31" in printed
    assert {(cell.column, cell.ours) for cell in record.cells} >= {("REPLACE, Object", 25.0), ("Average", 25.0)}
    assert not any(cell.is_within for cell in record.cells)
    assert all(len(digest) == 64 for digest in record.data.values())
    assert str(tmp_path) not in json.dumps(record.commands)


@pytest.mark.process
def test_a_shortened_run_says_so_and_is_not_judged_by_the_tolerance(tmp_path: Path, store: Path) -> None:
    printed, (record,) = ran("T4.6g", sugar_crepe(tmp_path / "data", 4), store, "--limit", "2")
    assert record.more == ["--limit", "2"]
    assert "Ours: no model, with --limit 2, so not the row's whole protocol\n" in printed
    assert "--output FOLDER keeps it" in printed
    last = [row[-1] for table in comparison_tables(record) for row in table.rows]
    assert {cell.text for cell in last} == {"in part"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("row_id", "ours"),
    [
        ("T4.5h", {("Human", "ARO+CREPE, SWAP"): 50, ("Human", "SugarCrepe, REPLACE"): 50}),
        ("T4.6h", {("Human", "SWAP, Object"): 50, ("Human", "Average"): 50}),
        ("TC.3", {("SWAP, Grammar", "SugarCrepe"): 75, ("SWAP, Commonsense", "Tie"): 25}),
    ],
)
def test_people_stand_beside_the_published_people(
    row_id: str, ours: dict[tuple[str, str], float], tmp_path: Path, store: Path
) -> None:
    _, (record,) = ran(row_id, humans(tmp_path / "data"), store)
    assert ours.items() <= {(cell.row, cell.column): cell.ours for cell in record.cells}.items()


@pytest.mark.process
def test_a_row_without_published_numbers_prints_what_its_commands_do(tmp_path: Path, store: Path) -> None:
    printed, (record,) = ran("FC.2", captions(tmp_path / "data"), store)
    assert "A black cat sits on a red mat." in printed
    assert (len(record.commands), record.cells) == (3, [])


@pytest.mark.process
@pytest.mark.slow
def test_the_guides_example_runs_as_it_stands(tmp_path: Path, store: Path) -> None:
    guide = (ROOT / "docs" / "guide" / "papers.md").read_text()
    (example,) = re.findall(r"^    fovea papers (run T5\.1 .*)$", guide, re.MULTILINE)
    done = fovea(*example.split(), "--save", tmp_path / "papers.jsonl", store=store)
    assert done.returncode == 0, done.stderr
    more = "with --images-per-class 5, so not the row's whole protocol"
    assert f"Ours: focallens-shapes, {more}\nthe paper's: " in done.stdout
    assert "57.1" in done.stdout
    (record,) = read_all(tmp_path / "papers.jsonl")
    assert (len(record.cells), len(record.model_digest)) == (10, 64)


@pytest.mark.process
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--vanished",), "No such option: --vanished"),
        (("--swap-obj", "none.json"), "Invalid value: none.json is missing"),
    ],
)
def test_an_option_that_the_rows_command_refuses_is_told_in_one_line_and_leaves_no_record(
    options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    refused = fovea("run", "T4.2", "--data", sugar_crepe(tmp_path, 2), "--save", tmp_path / "saved.jsonl", *options)
    assert refused.returncode == 2
    begun, told = refused.stderr.splitlines()
    assert begun.startswith("fovea curate measure counts ")
    assert told.startswith(f"fovea papers: fovea curate measure counts: {said}")
    assert refused.stdout == ""
    assert not (tmp_path / "saved.jsonl").exists()


@pytest.mark.process
def test_an_option_that_a_rows_last_command_lacks_is_told_before_the_others_run(tmp_path: Path) -> None:
    asked = ("run", "FC.2", "--data", captions(tmp_path / "data"), "--save", tmp_path / "saved.jsonl")
    refused = fovea(*asked, "--output", tmp_path / "out", "--qqq")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "fovea papers: fovea curate generate: No such option: --qqq\n"
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


@pytest.mark.process
def test_what_a_failing_command_says_is_shown(tmp_path: Path, store: Path) -> None:
    (tmp_path / "benchmarks" / "winoground" / "images").mkdir(parents=True)
    (tmp_path / "benchmarks" / "winoground" / "images" / "1.png").touch()
    (tmp_path / "benchmarks" / "winoground" / "examples.jsonl").write_text("no JSON\n")
    asked = ("run", "FSC-T4", "--data", tmp_path, "--save", tmp_path / "papers.jsonl", "--only", "winoground")
    done = fovea(*asked, store=store)
    assert done.returncode == 1
    assert "winoground/examples.jsonl:1: not JSON" in done.stderr


@pytest.mark.process
def test_captions_are_counted_without_answers_and_rows_without_a_training(tmp_path: Path) -> None:
    data = sugar_crepe(tmp_path / "data", 4)
    for file in (data / "sugar-crepe" / "gpt4v").iterdir():
        file.unlink()
    pairs = json.loads((data / "sugar-crepe" / "swap_obj_paper246.json").read_text())
    (data / "sugar-crepe" / "swap_obj_paper246.json").write_text(json.dumps({**pairs, "more": pairs["0"]}))
    _, (captions,) = ran("T4.2", data, tmp_path)
    assert {(cell.column, cell.ours) for cell in captions.cells} >= {("SWAP, Object", 5.0), ("ADD, Object", 4.0)}


@pytest.mark.process
def test_cells_that_a_run_does_not_compute_are_shown_with_a_dash(tmp_path: Path) -> None:
    printed, (record,) = ran("TA.1", word_problems(tmp_path / "data"), tmp_path, "--tasks", "svamp")
    assert {(cell.row, cell.column) for cell in record.cells} == {
        ("SVAMP", column) for column in ("Train", "Validation", "Test")
    }
    (line,) = (line for line in printed.splitlines() if "e-SNLI" in line and "Train" in line)
    assert [cell.strip() for cell in line.split("│")[3:-1]] == ["549367", *["–"] * 4]


@pytest.mark.process
@pytest.mark.slow
def test_blind_models_are_asked_about_the_papers_swaps_and_their_mean_stands_beside_the_papers(
    tmp_path: Path, store: Path
) -> None:
    data = sugar_crepe(tmp_path / "data", 4)
    swaps = json.loads((data / "sugar-crepe" / "swap_obj_paper246.json").read_text())
    turned = {**swaps["0"], "caption": swaps["0"]["negative_caption"], "negative_caption": swaps["0"]["caption"]}
    (data / "sugar-crepe" / "swap_obj_paper246.json").write_text(json.dumps({"0": turned}))
    _, (record,) = ran("T4.6t", data, store, "--model", "blind-grammar")
    ours = {cell.column: cell.ours for cell in record.cells}
    assert len(ours) == 8 and {ours["SWAP, Object"], ours["ADD, Object"]} == {0.0, 100.0}
    assert ours.pop("Average") == pytest.approx(sum(ours.values()) / 7, abs=1e-5)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git work tree")
@pytest.mark.process
def test_a_record_has_the_commit_of_the_work_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOVEA_CODE_REVISION", raising=False)
    _, (record,) = ran("T4.2", sugar_crepe(tmp_path / "data", 2), tmp_path)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert record.commit.removesuffix("-dirty") == head.strip()


def test_a_model_stands_beside_the_published_row_that_it_names() -> None:
    row = ROWS["T4.6"]
    assert choose_models(row, []) == [("ViT-B-32", "fsc-clip-scenes")]
    assert choose_models(row, ["mine"]) == [("ViT-B-32", "mine")]
    assert choose_models(row, ["ViT-L-14=./clip", "mine"]) == [("ViT-L-14", "./clip"), ("ViT-B-32", "mine")]
    assert choose_models(ROWS["T4.6t"], ["blind-grammar"]) == [("Grammar", "blind-grammar")]


def test_a_recipe_trains_the_model_of_its_row_and_one_that_is_given_is_only_evaluated(tmp_path: Path) -> None:
    row = ROWS["FSC-T4"]
    assert choose_models(row, ["FSC-CLIP, LoRA="]) == [("FSC-CLIP, LoRA", "")]
    training, evaluation = row.steps_for("FSC-CLIP, LoRA", "")
    assert "--recipe=fsc-clip-lora-vit-b-16" in training
    assert row.steps_for("FSC-CLIP, LoRA", "./mine") == (evaluation,)
    with pytest.raises(Refused, match="has no recipe for 'CLIP ViT-B/16'"):
        choose_models(row, ["CLIP ViT-B/16="])
    for model, is_trained in (("./mine", False), ("", True)):
        with pytest.raises(Refused) as missing:
            find_data(row, tmp_path, [("FSC-CLIP, LoRA", model)])
        assert ("laion-coco-100k.tar from https://" in str(missing.value)) is is_trained


def test_the_page_of_results_counts_what_the_ledger_and_the_records_hold() -> None:
    page = (ROOT / "docs" / "results" / "papers.md").read_text()
    run_rows = {record.id for record in read_all(ROOT / "docs" / "results" / "papers.jsonl")}
    counts = (len(ROWS), *ledger.count_by_status().values(), len(run_rows))
    assert f"| {' | '.join(map(str, counts))} |" in page
    assert run_rows <= ROWS.keys()
