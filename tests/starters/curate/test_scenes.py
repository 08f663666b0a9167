"""`python -m starters scenes`: drawn scenes with captions that `fovea curate` reads."""

from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from services.curate.data.captions import read_captions
from starters.curate.scenes import app


def drawn(folder: Path, seed: int) -> bytes:
    arguments = ["3", "--output", str(folder), "--seed", str(seed), "--side", "48"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return (folder / "captions.jsonl").read_bytes()


def test_each_scene_has_an_image_and_two_captions_that_depend_on_the_seed_alone(tmp_path: Path) -> None:
    written = drawn(tmp_path / "a", 1)
    assert written == drawn(tmp_path / "b", 1) != drawn(tmp_path / "c", 2)
    captions = read_captions(tmp_path / "a" / "captions.jsonl").captions
    assert len(captions) == 3
    for one in captions:
        assert one.second not in (None, one.text)
        with Image.open(tmp_path / "a" / one.filename) as image:
            assert image.size == (48, 48)
