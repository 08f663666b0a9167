"""Models that open_clip knows by name: what their weights were trained with is what they run with."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from services.nn.clip_model import create_clip, open_clip

pytestmark = pytest.mark.process

CONFIG: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "patch_size": 16, "width": 32, "layers": 2, "head_width": 16},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
NAME = "ViT-B-32"

# In a process of its own, where a tiny model has a name that open_clip knows, and tags of that name.
PROGRAM = """
import json, sys
from pathlib import Path
import torch
from services.embed.evaluation.embedders import load_embedder
from services.nn.clip_model import create_clip, load_clip, open_clip, save_clip
from services.score.evaluation.clip_judge import Clip
from PIL import Image

name, folder = sys.argv[1:]
open_clip().add_model_config(folder)
config = open_clip().get_model_config(name)
picture = Image.radial_gradient("L").convert("RGB").resize((32, 32))
pixels = torch.linspace(-2, 2, 3 * 32 * 32).view(1, 3, 32, 32)
told = {}
for tag in ("openai", "laion2b_s34b_b79k"):
    loaded = load_clip(name, tag)
    save_clip(loaded, saved := Path(folder, "saved", tag))
    models = {
        "loaded": loaded.model,
        "saved": load_clip(str(saved)).model,
        "saved, by open_clip": open_clip().create_model(f"local-dir:{saved}"),
        "judge": Clip.load(f"{name}:{tag}").model,
    }
    for quick_gelu in (True, False):
        trained = create_clip({"model_cfg": {**config, "quick_gelu": quick_gelu}})
        trained.model.load_state_dict(loaded.model.state_dict())
        with torch.inference_mode():
            expected = trained.model.eval().encode_image(pixels)
            found = {made: model.eval().encode_image(pixels) for made, model in models.items()}
            gaps = {made: (features - expected).abs().max().item() for made, features in found.items()}
            image = trained.transform.normalise(torch.from_numpy(trained.transform(picture)[None]))
            embedding = torch.from_numpy(load_embedder(name, pretrained=tag).embed_images([picture], [None])[0])
            gaps["embedder"] = (embedding - trained.model.encode_image(image, normalize=True)).abs().max().item()
        told[f"{tag} {quick_gelu}"] = gaps
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """Return the loaded model's distance from one that runs with either activation, by tag and activation."""
    folder = tmp_path_factory.mktemp("known")
    (folder / f"{NAME}.json").write_text(json.dumps(CONFIG))
    torch.manual_seed(0)
    drawn = create_clip({"model_cfg": CONFIG}).model.state_dict()
    # as they are stored, so that nothing but the activation makes a difference
    state = {weight: (2 * tensor).half().float() for weight, tensor in drawn.items()}
    for tag in ("openai", "laion2b_s34b_b79k"):
        repository = open_clip().get_pretrained_cfg(NAME, tag)["hf_hub"].strip("/").replace("/", "--")
        downloaded = folder / "hub" / f"models--{repository}"
        (downloaded / "snapshots" / "1").mkdir(parents=True)
        (downloaded / "refs").mkdir()
        (downloaded / "refs" / "main").write_text("1")
        save_file(state, downloaded / "snapshots" / "1" / "open_clip_model.safetensors")
    environment = {**os.environ, "HF_HUB_CACHE": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error:QuickGELU mismatch", "-c", PROGRAM, NAME, str(folder)],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize(("tag", "quick_gelu"), [("openai", True), ("laion2b_s34b_b79k", False)])
@pytest.mark.parametrize("made", ["loaded", "saved", "saved, by open_clip", "judge", "embedder"])
def test_weights_of_a_tag_run_with_the_activation_that_they_were_trained_with(
    gaps: dict[str, dict[str, float]], tag: str, quick_gelu: bool, made: str
) -> None:
    assert gaps[f"{tag} {quick_gelu}"][made] < 1e-5
    assert gaps[f"{tag} {not quick_gelu}"][made] > 1e-3
