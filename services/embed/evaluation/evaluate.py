"""`fovea evaluate focallens …`: the dissertation's protocols on the command line."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console

from services.core.settings import DeviceName
from services.core.store.errors import StoreError
from services.core.text_files import BadFile
from services.embed.evaluation.celeba import SPLITS, evaluate_celeba, load_faces
from services.embed.evaluation.colorshape import ColorShapeProtocol, evaluate_colorshape, print_table
from services.embed.evaluation.embedders import ImageEmbedder, NoTextSide, Unconditioned, load_embedder
from services.embed.evaluation.genecis import Focus, evaluate_genecis, load_genecis
from services.embed.evaluation.grid import (
    SCENE_CONDITIONS,
    FolderGallery,
    Gallery,
    GridOptions,
    SceneGallery,
    draw_grid,
    retrieve_grid,
)
from services.embed.evaluation.linear_probe import NoProjection, ProbeOptions, evaluate_linear_probe, load_probe, points
from services.embed.evaluation.mmvp import evaluate_mmvp, load_mmvp
from services.embed.evaluation.results import RESULT_FILES, Result
from services.embed.evaluation.same_class import LOADERS, evaluate_category, evaluate_imagenet, read_nodes
from services.embed.evaluation.sugarcrepe import evaluate_sugarcrepe
from services.embed.evaluation.tables import print_tables
from services.jobs.checkpoints import Device
from services.jobs.interruption import interruptible
from services.jobs.options import StoreUrl, command_line, output_file, results_file
from services.jobs.sugarcrepe import SwapObj, load_sugarcrepe
from services.nn.devices import DeviceOptions
from services.nn.weight_files import readable_weights

app = command_line(no_args_is_help=True)

Checkpoint = Annotated[str, typer.Option(help="Checkpoint to evaluate: a name in the store, or a folder.")]
Baseline = Annotated[
    str | None,
    typer.Option(
        help="Model to compare with: a name in the store, a folder, or with --pretrained any open_clip model name."
    ),
]
Pretrained = Annotated[str | None, typer.Option(help="Weights of the baseline: an open_clip tag, or a file.")]
Data = Annotated[Path, typer.Option(help="Folder of the data set, as its archives unpack.")]
Save = Annotated[
    Path | None, typer.Option(callback=results_file(RESULT_FILES.load), help="JSON file to add the scores to.")
]
PerClass = Annotated[int | None, typer.Option(min=1, help="Use at most this many images of each class.")]

FOCALLENS = "focallens-shapes"
NOTHING_KEPT = "Stopped. Nothing is kept; run the same command to begin again."
SOME_KEPT = "Stopped. The scores of models that were finished are printed, and kept with --save."
# What scores one embedder.
Scoring = Callable[[ImageEmbedder], Iterable[Result]]
P = ParamSpec("P")


@app.callback()
def choose_protocol() -> None:
    """Evaluate a FocalLens checkpoint by the dissertation's protocols."""


@app.command()
@interruptible(NOTHING_KEPT)
def colorshape(
    checkpoint: Checkpoint = FOCALLENS,
    baseline: Annotated[
        str,
        typer.Option(
            help="CLIP to compare with: a name in the store, or a folder. Its unconditional embedding is used for "
            "every condition."
        ),
    ] = "clip-shapes",
    paper: Annotated[
        bool, typer.Option("--paper", help="The dissertation's alone: 500 images of a class on plain white.")
    ] = False,
    images_per_class: Annotated[
        int | None, typer.Option(min=1, help="Images rendered for each class.", show_default="125; with --paper 500")
    ] = None,
    pretrained: Pretrained = None,
    device: Device = "cpu",
    store_url: StoreUrl = None,
) -> None:
    """Retrieve rendered shapes under each condition: mAP against the unconditional CLIP (Table 5.1)."""
    clip, tuned = load_embedders(checkpoint, baseline, pretrained, device, store_url)
    protocol = ColorShapeProtocol(images_per_class or (500 if paper else 125), is_paper=paper)
    results = [evaluate_colorshape(embedder, protocol) for embedder in (clip, Unconditioned(tuned), tuned)]
    print_table(results, Console(width=200))
    print_json([{**asdict(r), "average": r.average} for r in results])


def protocol(read: Callable[P, Scoring]) -> Callable[P, Scoring]:
    """Add a command that evaluates models by a protocol, which `read` reads the data of by options of its own."""

    def command(
        *arguments: Any,
        checkpoint: Checkpoint = FOCALLENS,
        baseline: Baseline = None,
        pretrained: Pretrained = None,
        save: Save = None,
        device: Device = "cpu",
        store_url: StoreUrl = None,
        **own: Any,
    ) -> None:
        with missing_data_as_bad_parameter():
            score = read(*arguments, **own)
            embedders = load_embedders(checkpoint, baseline, pretrained, device, store_url)
            report((result for embedder in embedders for result in score(embedder)), save)

    shared = [one for one in signature(command).parameters.values() if one.kind is one.KEYWORD_ONLY]
    own_options = [one.replace(kind=one.KEYWORD_ONLY) for one in signature(read).parameters.values()]
    command.__signature__ = Signature([*own_options, *shared])  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in [*own_options, *shared]}
    command.__name__, command.__doc__ = read.__name__, read.__doc__
    app.command()(interruptible(SOME_KEPT)(command))
    return read


@protocol
def celeba(
    data: Data,
    split: Annotated[str, typer.Option(help="test, val or train.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many images of the split.")] = None,
) -> Scoring:
    """Retrieve faces that share one of 29 attributes or the identity: CelebA (Tables 5.2, 5.4, D.4)."""
    if split not in SPLITS:
        raise typer.BadParameter(f"{split!r} is not one of {', '.join(SPLITS)}", param_hint="--split")
    faces = load_faces(data, split=split, limit=limit)
    settings: dict[str, object] = {"split": split, "images": len(faces.paths)}
    return lambda embedder: evaluate_celeba(embedder, faces, settings)


@protocol
def genecis(
    data: Annotated[Path, typer.Option(help="Folder with focus_attribute.json and focus_object.json.")],
    visual_genome: Annotated[Path, typer.Option(help="Visual Genome's images, for attributes.")] = Path("VG"),
    coco: Annotated[Path, typer.Option(help="COCO's val2017 folder, for objects.")] = Path("val2017"),
    focus: Annotated[str, typer.Option(help="attribute, object or both.")] = "both",
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many queries of each task.")] = None,
) -> Scoring:
    """Retrieve the image that shares an attribute or object among a few: GeneCIS, Recall@3 (Table 5.2)."""
    images: dict[Focus, Path] = {"attribute": visual_genome, "object": coco}
    chosen = [name for name in images if focus in (name, "both")]
    if not chosen:
        raise typer.BadParameter(f"{focus!r} is not one of attribute, object and both", param_hint="--focus")
    tasks = [load_genecis(data, images[name], name, limit=limit) for name in chosen]
    return in_one_result(
        "genecis",
        lambda embedder: {task.focus.capitalize(): evaluate_genecis(embedder, task) for task in tasks},
        {"limit": limit},
    )


@protocol
def imagenet(
    data: Annotated[Path, typer.Option(help="Folder with one folder of .JPEG files for each class (n02085620, …).")],
    node: Annotated[
        list[str] | None, typer.Option(help="Evaluate only these of the fourteen categories, such as Dog or Bird.")
    ] = None,
    images_per_class: PerClass = None,
) -> Scoring:
    """Retrieve images of the same ImageNet class within fourteen categories (Tables 5.3, D.5)."""
    nodes = {entry.node: entry for entry in read_nodes()}
    chosen = [nodes[name] for name in choose(nodes, node, "--node")]
    return in_one_result(
        "imagenet",
        lambda embedder: evaluate_imagenet(embedder, data, chosen, images_per_class=images_per_class),
        {"images_per_class": images_per_class},
    )


@protocol
def fine_grained(
    data: Annotated[
        Path, typer.Option(help="The folder with flowers-102, stanford_cars, fgvc-aircraft-2013b and food-101.")
    ],
    dataset: Annotated[
        list[str] | None, typer.Option(help="Evaluate only these of Flower, Car, Aircraft and Food.")
    ] = None,
    images_per_class: PerClass = None,
) -> Scoring:
    """Retrieve flowers, cars, aircraft and dishes of the same class (Table 5.3)."""
    chosen = choose(LOADERS, dataset, "--dataset")
    images = {name: LOADERS[name](data).first_of_each_class(images_per_class) for name in chosen}
    return in_one_result(
        "fine-grained",
        lambda embedder: {name: evaluate_category(embedder, some, name.lower()) for name, some in images.items()},
        {"images_per_class": images_per_class},
    )


@protocol
def sugarcrepe(
    data: Annotated[Path, typer.Option(help="Folder with replace_obj.json and the other six files.")],
    coco: Annotated[Path, typer.Option(help="COCO's val2017 folder.")] = Path("val2017"),
    swap_obj: SwapObj = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many choices of each type.")] = None,
) -> Scoring:
    """Choose the correct one of two similar captions: SugarCrepe, accuracy (Table 5.5)."""
    choices = load_sugarcrepe(data, swap_obj=swap_obj, limit=limit)
    counts = ", ".join(f"{kind} {len(some):,}" for kind, some in choices.items())
    typer.echo(f"{sum(map(len, choices.values())):,} choices: {counts}")
    return in_one_result(
        "sugarcrepe",
        lambda embedder: evaluate_sugarcrepe(embedder, coco, choices),
        {"choices": {kind: len(some) for kind, some in choices.items()}},
    )


@protocol
def mmvp(data: Annotated[Path, typer.Option(help="The folder with Questions.csv and 'MLLM_VLM Images'.")]) -> Scoring:
    """Match statements with images that CLIP confuses: MMVP-VLM, accuracy on pairs (Table 5.6)."""
    patterns = load_mmvp(data)
    return in_one_result("mmvp", lambda embedder: evaluate_mmvp(embedder, patterns), {})


@protocol
def linear_probe(
    data: Annotated[
        Path, typer.Option(help="Folder with train and val, each with one folder of images for each class.")
    ],
    category: Annotated[
        str | None, typer.Option(help="Category of the classes in train. Default: ImageNet's 118 dogs.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of random draws of training images.")
    ] = ProbeOptions.num_seeds,
) -> Scoring:
    """Train a linear classifier on the frozen tower with few images per class: top-1 accuracy (Figure 5.4)."""
    options = ProbeOptions(num_seeds=seeds)
    images = load_probe(data, category, options)

    def score(embedder: ImageEmbedder) -> Iterator[Result]:
        scores = evaluate_linear_probe(embedder, images, options)
        settings = {
            "category": images.category,
            "classes": images.num_classes,
            "seeds": seeds,
            "best_learning_rates": {str(shots): score.learning_rate for shots, score in scores.items()},
        }
        yield Result(embedder.name, "linear-probe", points(scores), settings)

    return score


@app.command()
@interruptible(NOTHING_KEPT)
def grid(
    images: Annotated[Path | None, typer.Option(help="Folder of images to search. Default: rendered scenes.")] = None,
    condition: Annotated[
        list[str] | None, typer.Option(help="Condition of a row. Repeatable. Rendered scenes have default conditions.")
    ] = None,
    queries: Annotated[int, typer.Option(min=1, help="Number of queries, one block each.")] = GridOptions.num_queries,
    k: Annotated[int, typer.Option(min=1, help="Number of neighbours in a row.")] = GridOptions.k,
    seed: Annotated[int, typer.Option(help="Seed that draws the queries.")] = GridOptions.seed,
    scenes: Annotated[int, typer.Option(min=2, help="Number of scenes to render.")] = 1000,
    output: Annotated[Path, typer.Option(callback=output_file, help="PNG file to write.")] = Path("grid.png"),
    checkpoint: Checkpoint = FOCALLENS,
    baseline: Annotated[str, typer.Option(help="CLIP to compare with; its row has no condition.")] = "clip-shapes",
    pretrained: Pretrained = None,
    device: Device = "cpu",
    store_url: StoreUrl = None,
) -> None:
    """Draw the nearest neighbours of some queries under several conditions, and CLIP's (Figures 5.1, 5.5)."""
    if images is not None and not condition:
        raise typer.BadParameter("give at least one condition with --images", param_hint="--condition")
    with missing_data_as_bad_parameter():
        gallery: Gallery = SceneGallery(scenes) if images is None else FolderGallery(images)
        clip, embedder = load_embedders(checkpoint, baseline, pretrained, device, store_url)
        options = GridOptions(condition or SCENE_CONDITIONS, queries, k, seed)
        blocks = retrieve_grid(gallery, clip, embedder, options)
    output.parent.mkdir(parents=True, exist_ok=True)
    draw_grid(blocks, (clip.name, embedder.name)).save(output, format="PNG", optimize=True)
    typer.echo(output)


@app.command()
def table(results: Annotated[list[Path], typer.Argument(help="Files written by --save.")]) -> None:
    """Print saved scores in the dissertation's tables."""
    try:
        report(RESULT_FILES.load(results), None)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="RESULTS") from error


def load_embedders(
    checkpoint: str, baseline: str | None, pretrained: str | None, device: DeviceName, store_url: str | None
) -> Sequence[ImageEmbedder]:
    """Load the baseline, if requested, and then the checkpoint. Raises BadParameter if one does not exist."""
    try:
        place = str(DeviceOptions(device=device).choose_device())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from error
    models = [] if baseline is None else [("--baseline", baseline, pretrained)]
    embedders = []
    for option, reference, weights in [*models, ("--checkpoint", checkpoint, None)]:
        try:
            with readable_weights(Path(reference)):
                embedders.append(load_embedder(reference, pretrained=weights, device=place, store_url=store_url))
        except (OSError, StoreError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint=option) from error
    return embedders


def in_one_result(
    benchmark: str, score: Callable[[ImageEmbedder], dict[str, float]], settings: dict[str, Any]
) -> Scoring:
    """Make the scoring whose one result for an embedder has all scores of a benchmark."""
    return lambda embedder: [Result(embedder.name, benchmark, score(embedder), settings)]


def choose(known: dict[str, Any], wanted: list[str] | None, option: str) -> list[str]:
    """Return the requested names of the known ones, or all if none are requested. Raises BadParameter if unknown."""
    for name in wanted or ():
        if name not in known:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(known)}", param_hint=option)
    return wanted or list(known)


@contextmanager
def missing_data_as_bad_parameter() -> Iterator[None]:
    try:
        yield
    except (BadFile, NoTextSide, NoProjection) as error:
        raise typer.BadParameter(str(error)) from error


def report(results: Iterable[Result], save: Path | None) -> None:
    """Print the tables that the scores belong to and, as the last line, the scores as JSON.

    Each model's scores are kept as soon as there are any; an interruption leaves those, and they are printed.
    """
    reached = []
    try:
        for result in results:
            reached.append(result)
            if save is not None:
                RESULT_FILES.save([result], save)
    finally:
        if reached:
            print_tables(reached, Console(width=200))
            print_json([asdict(result) for result in reached])


def print_json(value: Any) -> None:
    Console(highlight=False).print(json.dumps(value), soft_wrap=True, markup=False)
