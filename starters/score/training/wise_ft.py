"""WiSE-FT: interpolated weights of a CLIP before and after tuning, evaluated on held-out scenes (the paper's Figure 3).

With growing α, composition mostly improves early, and forgetting comes late. The share α and the local weight of the
score are chosen on validation scenes.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from services.jobs.checkpoints import check_publication, publish_trained
from services.jobs.clip_base import load_base
from services.jobs.interruption import interruptible
from services.jobs.options import StoreUrl, finite, output_folder
from services.jobs.plots import Curve, Panel, draw
from services.nn.clip_model import ClipModel
from services.score.fsc_clip import interpolate
from services.score.model.checkpoint import FSC_CLIP_KIND, FscClipCheckpoint, save_fsc_clip
from starters.score.evaluation.claim_protocol import FITTING_SEED, ClaimProtocol, claim_metrics
from starters.score.evaluation.scene_protocol import SceneProtocol, SceneScores

TENTHS = tuple(i / 10 for i in range(11))


@dataclass(frozen=True)
class Blend:
    """Results of a share α of the tuned weights, in percent; `local_weight` is the best for `comp`, the composition of
    scenes, and for `close`, the claims that differ in a fact that is hard to see."""

    alpha: float
    local_weight: float
    comp: float
    global_comp: float
    zs: float
    i2t: float
    t2i: float
    close: float = 0.0


@interruptible("Stopped. Nothing is kept of the measurements; run the same command to begin again.")
def wise_ft(
    output: Annotated[
        Path, typer.Option(callback=output_folder, help="Folder for the table, the plot and the checkpoint.")
    ],
    base: Annotated[str, typer.Option(help="CLIP before tuning: a name in the store or a folder.")],
    tuned: Annotated[
        str, typer.Option(help="CLIP after tuning, with LoRA matrices merged: a name in the store or a folder.")
    ],
    num_chosen: Annotated[int, typer.Option(min=1, help="Validation scenes of each task for choosing α.")] = 500,
    num_evaluated: Annotated[int, typer.Option(min=1, help="Test scenes of each task for the evaluation.")] = 1000,
    margin: Annotated[
        float, typer.Option(min=0, callback=finite, help="Maximum loss of zero-shot accuracy, in percentage points.")
    ] = 1.0,
    recall_margin: Annotated[
        float, typer.Option(min=0, callback=finite, help="Maximum loss of recall, in percentage points.")
    ] = 0.0,
    close: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=finite,
            help="Weight in the choice of claims about a number, texture, size or absence; scenes have the rest.",
        ),
    ] = 0.0,
    name: Annotated[str, typer.Option(help="Name to publish the chosen weights under.")] = "fsc-clip-scenes",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the tuning, for the manifest.")] = 0,
    publish: Annotated[bool, typer.Option(help="Publish to the model store when done.")] = True,
    store_url: StoreUrl = None,
) -> None:
    """Evaluate interpolated weights of a CLIP before and after tuning, and publish the best without forgetting."""
    check_publication(name, store_url, is_wanted=publish)
    before, reference = load_base(base, None, store_url)
    after, tuned_reference = load_base(tuned, None, store_url)
    theta0, theta1 = before.model.state_dict(), dict(after.model.state_dict())
    theta1 = {weight: tensor.clone() for weight, tensor in theta1.items()}
    protocol = SceneProtocol("valid", num_chosen)
    claims = ClaimProtocol(num_chosen, FITTING_SEED, close=True) if close > 0 else None
    blends = [_measure(after, interpolate(theta0, theta1, alpha), (protocol, claims), alpha, close) for alpha in TENTHS]
    chosen = choose(blends, margin, recall_margin, close)
    output.mkdir(parents=True, exist_ok=True)
    (output / "wise_ft.json").write_text(json.dumps([asdict(blend) for blend in blends], indent=2) + "\n")
    (output / "wise_ft.svg").write_text(plot(blends))
    Console().print(_table(blends, chosen))
    after.model.load_state_dict(interpolate(theta0, theta1, chosen.alpha))
    directory = output / "checkpoint"
    scale = ClaimProtocol(num_chosen, FITTING_SEED).evaluate(after).best_scale(chosen.local_weight)
    temperature = round(1 / scale, 5) if scale > 0 else None
    save_fsc_clip(FscClipCheckpoint(after, chosen.local_weight, temperature), directory)
    scores = SceneProtocol("test", num_evaluated).evaluate(after)
    alone = scores.compositionality()
    metrics = {
        **scores.metrics(chosen.local_weight),
        **claim_metrics(after, num_evaluated, chosen.local_weight),
        "global_comp": round(fmean(alone.values()), 4),
        **{f"global_{kind}": round(accuracy, 4) for kind, accuracy in alone.items()},
    }
    options = {
        "base": reference, "tuned": tuned_reference, "alpha": chosen.alpha, "local_weight": chosen.local_weight,
        "margin": margin, "recall_margin": recall_margin, "close": close, "seed": seed, "publish": publish,
        "store_url": store_url,
    }  # fmt: skip
    publish_trained(directory, name, FSC_CLIP_KIND, options, metrics)


def choose(blends: Sequence[Blend], margin: float, recall_margin: float = 0.0, close: float = 0.0) -> Blend:
    """Choose the best mean of `comp` and, with the weight `close`, of close claims among blends that lose at most
    `margin` points of zero-shot accuracy and `recall_margin` points of recall compared with the first one, which is the
    base itself."""
    base = blends[0]
    kept = [
        blend
        for blend in blends
        if blend.zs >= base.zs - margin
        and blend.i2t >= base.i2t - recall_margin
        and blend.t2i >= base.t2i - recall_margin
    ]
    return max(kept, key=lambda blend: (1 - close) * blend.comp + close * blend.close)


def plot(blends: Sequence[Blend]) -> str:
    """Plot composition against zero-shot accuracy, with a mark for each α, as SVG (Figure 3)."""
    curves = (
        Curve("global score", tuple((blend.zs, blend.global_comp) for blend in blends)),
        Curve("with the best local weight", tuple((blend.zs, blend.comp) for blend in blends)),
    )
    accuracies = sorted(blend.zs for blend in blends)
    # only the ends are labelled, because the others are close together
    names = dict.fromkeys(accuracies, "") | {zs: f"{zs:.1f}" for zs in (accuracies[0], accuracies[-1])}
    axes = Panel("WiSE-FT, α from 0 to 1", "zero-shot accuracy", "compositional accuracy", curves, has_zero=False,
                 x_names=names)  # fmt: skip
    return draw([axes], columns=1)


def _measure(
    clip: ClipModel, weights: dict[str, Any], protocols: tuple[SceneProtocol, ClaimProtocol | None], alpha: float,
    close: float,
) -> Blend:  # fmt: skip
    clip.model.load_state_dict(weights)
    of_scenes, of_claims = protocols
    scores = of_scenes.evaluate(clip, f"α = {alpha:g}")
    claims = None if of_claims is None else of_claims.evaluate(clip)
    by_weight = {weight: fmean(scores.compositionality(weight).values()) for weight in TENTHS}
    of_close = {weight: claims.metrics(weight, "close")["close"] if claims else 0.0 for weight in TENTHS}
    best = max(TENTHS, key=lambda weight: (1 - close) * by_weight[weight] + close * of_close[weight])
    return Blend(alpha, best, by_weight[best], by_weight[0.0], *_kept(scores), of_close[best])


def _kept(scores: SceneScores) -> tuple[float, float, float]:
    return fmean(scores.zero_shot.values()), scores.image_to_text, scores.text_to_image


def _table(blends: Sequence[Blend], chosen: Blend) -> Table:
    table = Table(title="Validation scenes, percent", title_justify="left")
    for header in ("α", "Comp, global", "Comp", "local weight", "ZS", "I2T R@1", "T2I R@1", "close", ""):
        table.add_column(header, justify="right")
    for blend in blends:
        values = (blend.global_comp, blend.comp, blend.local_weight, blend.zs, blend.i2t, blend.t2i, blend.close)
        table.add_row(f"{blend.alpha:g}", *(f"{value:.1f}" for value in values), "chosen" if blend == chosen else "")
    return table
