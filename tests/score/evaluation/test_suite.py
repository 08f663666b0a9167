"""`fovea evaluate suite …` evaluates whatever lies in the data folder, continues where it stopped, names what is
missing and averages only what is complete."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.core.refusals import Refused
from services.score.evaluation.aggregates import AVERAGE, COMP, ELEVATER
from services.score.evaluation.judges import RESULT_FILES
from services.score.evaluation.suite.command import Outcome, Suite, app, run_suite
from services.score.evaluation.suite.parts import PARTS, fingerprint
from services.score.evaluation.tables import draw_blind, make_tables, numbers_of
from tests.score.evaluation.stand_ins import ColorEmbedder
from tests.score.evaluation.tiny_suite import write_suite
from tests.score.tiny import write_tiny_checkpoint
from tests.tiny_text_models import write_tiny_grammar


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_suite(tmp_path_factory.mktemp("suite") / "data")


def run(data: Path, embedder: ColorEmbedder, save: Path | None = None, **options: Any) -> Outcome:
    told: Sequence[str] = []
    settings = {"checkpoint": "abc", **options.pop("settings", {})}
    suite = Suite(data, **options)
    return run_suite(lambda: embedder, suite, judge="colours", settings=settings, save=save, tell=list(told).append)


def test_a_judge_of_colours_gets_the_whole_suite_right_but_for_the_order_of_words(data: Path, tmp_path: Path) -> None:
    outcome = run(data, ColorEmbedder(), tmp_path / "results.json")
    assert outcome.missing == {}
    assert outcome.evaluated == list(PARTS)
    numbers = numbers_of(outcome.results)["colours"]
    averages = {name: numbers[name][AVERAGE] for name in COMP}
    # SugarCrepe's small files have equal captions, and captions that are true of the other image
    assert averages.pop("sugarcrepe") < 100
    assert averages.pop("aro") == 50
    assert averages == dict.fromkeys(averages, 100)
    assert numbers["elevater"] == dict.fromkeys([*ELEVATER, AVERAGE], pytest.approx(100))
    assert set(numbers["retrieval"].values()) == {100}
    assert numbers["winoground"]["winoground::text"] == 100
    assert numbers["half_truths"][AVERAGE] == 100
    titles = [table.title for table in make_tables(outcome.results)]
    for title in ("Table 1 of", "Tables 2 to 5", "Table 8", "Table 9"):
        assert any(one.startswith(title) for one in titles)


@pytest.mark.slow
def test_a_judge_of_captions_alone_takes_the_parts_that_need_no_image(data: Path, tmp_path: Path) -> None:
    blind, save = tmp_path / "blind", tmp_path / "results.json"
    pictures = shutil.ignore_patterns("*.jpg", "*.jpeg", "*.png", "*.npy", "test.zip")
    shutil.copytree(data, blind, ignore=pictures)
    write_tiny_grammar(tmp_path / "cola")
    command = [f"Grammar={tmp_path / 'cola'}", "--judge", "grammar", "--data", str(blind), "--save", str(save)]
    runner = CliRunner(env={"COLUMNS": "300"})
    result = runner.invoke(app, [*command, "--only", "crepe,aro,vl_checklist"])
    assert result.exit_code == 0, result.output
    assert "Missing" not in result.output
    run(data, ColorEmbedder(), save, names=["crepe", "vl_checklist", "aro (Visual Genome)", "aro (orders)"])
    loaded = RESULT_FILES.load([save])
    (table,) = (table for table in make_tables(loaded) if table.title.startswith("Table C.2"))
    assert [heading.split("\n")[1] for heading in table.header[1:]] == [
        *("Atomic", "Swap", "Negate", "VG-Relation", "VG-Attribution", "COCO-Order", "Flickr30k-Order"),
        *("Object", "Attribute", "Relation"),
    ]
    assert {row[0].text: len(row) for row in table.rows} == {"Grammar": 11, "colours": 11}
    assert "Figure 4.2" in (draw_blind(loaded) or "")
    assert draw_blind([one for one in loaded if one.judge == "colours"]) is None
    every = runner.invoke(app, [*command, "--limit", "1"])
    assert every.exit_code == 0 and "Missing" not in every.output, every.output
    refused = runner.invoke(app, [*command, "--only", "winoground"])
    assert refused.exit_code == 2 and "'winoground' is not one of aro (Visual Genome), " in refused.output


def test_each_image_of_a_benchmark_is_embedded_once(data: Path) -> None:
    embedder = ColorEmbedder()
    run(data, embedder, names=["sugarcrepe"])
    # seven types with three choices each, of two images
    assert embedder.num_images == 2


def test_a_run_continues_with_what_is_not_saved_for_the_same_checkpoint_and_settings(
    data: Path, tmp_path: Path
) -> None:
    save = tmp_path / "results.json"
    names = ["whatsup", "mnist", "flickr30k"]
    run(data, ColorEmbedder(), save, names=names[:2])
    again = run(data, ColorEmbedder(), save, names=names)
    assert (again.kept, again.evaluated) == (names[:2], names[2:])
    assert {result.benchmark for result in again.results} == {"whatsup", "elevater", "retrieval"}

    def load() -> ColorEmbedder:
        raise AssertionError("a finished run needs no model")

    suite = Suite(data, names)
    finished = run_suite(load, suite, judge="colours", settings={"checkpoint": "abc"}, save=save, tell=lambda _: None)
    assert finished.kept == names
    other = run(data, ColorEmbedder(), save, names=names, settings={"checkpoint": "def"})
    assert other.evaluated == names
    assert run(data, ColorEmbedder(), save, names=names, settings={"checkpoint": "def"}, limit=1).evaluated == names


@pytest.mark.parametrize("change", ["crepe/prod_hard_negatives/atom", "visual_genome/VG_100K_2", "elevater/prompts.py"])
def test_a_part_whose_data_changed_is_evaluated_again(data: Path, tmp_path: Path, change: str) -> None:
    own, save, names = tmp_path / "data", tmp_path / "results.json", ["whatsup", "crepe", "mnist"]
    shutil.copytree(data, own)
    run(own, ColorEmbedder(), save, names=names)
    moved = own.rename(tmp_path / "moved")
    assert run(moved, ColorEmbedder(), save, names=names).kept == names
    for path in (moved / change).iterdir() if (moved / change).is_dir() else [moved / change]:
        match path.suffix:
            case ".csv":
                path.write_text(path.read_text().replace("green roof", "red brick"))
            case ".py":
                path.write_text(path.read_text().replace("red", "dark red"))
            case _:  # as long as before
                path.write_bytes(path.read_bytes())
    again = run(moved, ColorEmbedder(), save, names=names)
    assert again.evaluated == (["mnist"] if change.startswith("elevater") else ["crepe"])
    assert run(moved, ColorEmbedder(), save, names=names).kept == names


def test_scores_are_kept_when_their_data_are_gone(data: Path, tmp_path: Path) -> None:
    own, save = tmp_path / "data", tmp_path / "results.json"
    shutil.copytree(data, own)
    run(own, ColorEmbedder(), save, names=["whatsup", "mnist"])
    shutil.rmtree(own / "whatsup")
    outcome = run(own, ColorEmbedder(), save, names=["whatsup", "mnist"])
    assert (outcome.kept, outcome.unchecked, outcome.missing) == (["whatsup", "mnist"], ["whatsup"], {})


def test_parts_of_a_benchmark_belong_together_whatever_notes_they_have(data: Path, tmp_path: Path) -> None:
    class Cutting(ColorEmbedder):
        num_cut = 0

        def embed_texts(self, texts: Sequence[str], title: str) -> Any:
            self.num_cut += 1
            return super().embed_texts(texts, title)

        def notes(self) -> dict[str, Any]:
            return {"captions_cut": self.num_cut}

    save, names = tmp_path / "results.json", ["aro (Visual Genome)", "aro (orders)"]
    numbers = numbers_of(run(data, Cutting(), save, names=names).results)["colours"]
    assert AVERAGE in numbers["aro"]
    assert run(data, Cutting(), save, names=names).kept == names


def test_an_error_of_the_model_leaves_what_was_saved(data: Path, tmp_path: Path) -> None:
    class Breaking(ColorEmbedder):
        def embed_texts(self, texts: Sequence[str], title: str) -> Any:
            if title.startswith("mnist"):
                raise Refused("out of memory")
            return super().embed_texts(texts, title)

    save = tmp_path / "results.json"
    with pytest.raises(Refused, match="out of memory"):
        run(data, Breaking(), save, names=["whatsup", "mnist"])
    assert [result.benchmark for result in RESULT_FILES.load([save])] == ["whatsup"]


def test_what_is_missing_is_named_with_its_source_and_nothing_is_averaged_without_it(
    data: Path, tmp_path: Path
) -> None:
    partial = tmp_path / "data"
    shutil.copytree(data, partial)
    shutil.rmtree(partial / "crepe")
    (partial / "flickr30k" / "dataset_flickr30k.json").unlink()
    (partial / "whatsup" / "controlled_clevr" / "cup.jpeg").unlink()
    (partial / "elevater" / "classification" / "gtsrb_20210923" / "test.txt").write_text("test.zip@images/red.png 9\n")
    outcome = run(partial, ColorEmbedder())
    assert outcome.missing.keys() == {"aro (orders)", "crepe", "whatsup", "flickr30k", "gtsrb"}
    assert "It belongs to CREPE, available from https://github.com/RAIVNLab/CREPE" in outcome.missing["crepe"]
    assert outcome.missing["whatsup"].endswith("https://github.com/amitakamath/whatsup_vlms")
    assert outcome.missing["gtsrb"].endswith("class 9 is none of 3")
    numbers = numbers_of(outcome.results)["colours"]
    assert "VG_Relation" in numbers["aro"]
    assert all(AVERAGE not in numbers.get(name, {}) for name in ("aro", "crepe", "elevater"))
    assert "i2t" not in numbers["retrieval"]
    (table,) = (table for table in make_tables(outcome.results) if table.title.startswith("Table 1 of"))
    assert "Comp" not in table.header
    assert "SPEC" in table.header
    assert "ZS" not in table.header


def test_a_checkpoint_is_told_by_what_its_files_hold(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "model.safetensors").write_bytes(b"weights")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    first = fingerprint(tmp_path / "one")
    assert fingerprint(tmp_path / "copy") == first
    (tmp_path / "copy" / "model.safetensors").write_bytes(b"others")
    assert fingerprint(tmp_path / "copy") != first
    assert fingerprint("ViT-B-32:openai") == "ViT-B-32:openai"
    assert fingerprint(f"ViT-B-32:{tmp_path / 'one' / 'model.safetensors'}").startswith("ViT-B-32:")


@pytest.mark.slow
def test_the_command_evaluates_a_checkpoint_and_prints_the_tables(data: Path, tmp_path: Path) -> None:
    save = tmp_path / "results.json"
    only = "winoground,spec,mnist,coco_karpathy"
    command = [f"tiny={write_tiny_checkpoint(tmp_path / 'fsc')}", "--data", str(data), "--save", str(save)]
    command += ["--only", only, "--device", "cpu"]
    runner = CliRunner(env={"COLUMNS": "300"})
    first = runner.invoke(app, command)
    assert first.exit_code == 0, first.output
    assert "Table 9 of FSC-CLIP" in first.stdout
    second = runner.invoke(app, command)
    assert second.exit_code == 0, second.output
    assert "Not evaluated again, as --save has them: winoground, spec, mnist, coco_karpathy" in second.stdout
    assert first.stdout.splitlines()[-1] == second.stdout.splitlines()[-1]
    found = json.loads(second.stdout.splitlines()[-1])
    assert found["missing"] == {}
    assert found["scores"].keys() == {"winoground", "spec", "elevater", "retrieval"}
    # single tokens are another similarity, which is evaluated on its own
    local = runner.invoke(app, [*command, "--similarity", "local", "--limit", "1"])
    assert local.exit_code == 0, local.output
    nothing = runner.invoke(app, [*command[:3], "--data", str(tmp_path / "fsc"), "--only", "mnist"])
    assert nothing.exit_code == 1
    assert "Missing: mnist." in nothing.stdout
