"""The `fovea` command. It starts quickly because each command imports its dependencies only when it runs."""

import asyncio
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer

from services.cli.delegation import delegate, errors_in_one_line, missing_module, needs
from services.cli.signals import end_on_signals

EXAMPLES = """
{try_it}:
  curl {gateway}/v1/models{question}
Ctrl-C stops everything."""
# For the starters.
QUESTION = """
  curl {gateway}/generate -H 'Content-Type: application/json' \\
       -d '{{"query": "What is the pet of Belan Ashford?", "documents": ["Belan Ashford owns the quiet otter."]}}'"""

# The groups of commands.
GROUPS = {
    "train": "Train a checkpoint and publish it to the model store.",
    "evaluate": "Evaluate a checkpoint by its paper's protocol.",
    "distill": "Learn from a language model's rationales and decisions.",
    "curate": "Make hard negatives that a model without the image can't spot.",
}
# Commands whose modules are imported only when they run: module, extra with the packages that it imports, and summary.
COMMANDS: dict[str, dict[str, tuple[str, str | None, str]]] = {
    "train": {
        "focallens": ("services.embed.training.train", "train", "Tune a CLIP with FocalLens."),
        "focallens-mllm": ("services.embed.training.train_mllm", "train", "Tune a LLaVA with FocalLens."),
        "distill": ("services.predict.training.train", "train", "Train a T5 on labels and a teacher's rationales."),
        "fsc-clip": (
            "services.score.training.train",
            "train",
            "Tune a CLIP on hard negatives: FSC-CLIP, NegCLIP and their ablations.",
        ),
        "fsc-clip-ablations": (
            "services.score.training.ablations",
            "evaluate",
            "Tune and evaluate the rows of FSC-CLIP's ablations, or of a sweep; resumable.",
        ),
    },
    "evaluate": {
        "focallens": (
            "services.embed.evaluation.evaluate",
            "evaluate",
            "Evaluate FocalLens by the dissertation's protocols.",
        ),
        "litm": (
            "services.generate.evaluation.evaluate",
            "evaluate",
            "Evaluate Found-in-the-middle by the dissertation's protocols.",
        ),
        "distill": (
            "services.predict.evaluation.evaluate",
            "evaluate",
            "Evaluate distilled students by the dissertation's protocol.",
        ),
        "compositionality": (
            "services.score.evaluation.evaluate",
            "evaluate",
            "Evaluate caption scoring: SugarCrepe, VALSE, Winoground and others.",
        ),
        "suite": (
            "services.score.evaluation.suite.command",
            "evaluate",
            "Evaluate a CLIP on all of FSC-CLIP's benchmarks in one resumable run.",
        ),
        "wise-ft": (
            "services.score.evaluation.suite.wise_ft",
            "evaluate",
            "Evaluate weights between a CLIP before and after tuning on the same benchmarks, and choose among them.",
        ),
    },
    "distill": {
        "extract": ("services.predict.extraction.command", "predict", "Collect rationales from a teacher; resumable."),
        "decisions": ("services.predict.training.decisions", "train", "Train students from logs of `/v1/decisions`."),
    },
    "curate": {
        "generate": (
            "services.curate.authoring.command",
            "score",
            "Make hard negatives of captions, by a language model or by rules; resumable.",
        ),
        "refine": (
            "services.curate.refinement.command",
            "train",
            "Drop pairs until no model of texts alone can tell the true captions.",
        ),
        "audit": (
            "services.curate.evaluation.audit",
            "evaluate",
            "Tell how much of a benchmark can be solved without its images.",
        ),
        "measure": (
            "services.curate.evaluation.measure",
            "evaluate",
            "Measure hard negatives by the dissertation's tables: counts, quality, blind against seeing models.",
        ),
        "review": (
            "services.curate.review.command",
            "score",
            "Let people judge pairs in a browser, and measure their agreement.",
        ),
        "run": (
            "services.curate.pipeline.command",
            "train",
            "Go from captions to a published data set by a recipe; resumable.",
        ),
    },
    "": {
        "calibrate": (
            "services.generate.calibrate.command",
            "generate",
            "Choose and measure a checkpoint's attention calibration.",
        ),
        "embed-bulk": ("services.embed.bulk.command", "embed", "Embed many images into a collection or into files."),
        "collections": ("services.embed.transfer.command", "embed", "Move and back up image collections."),
        "capacity": (
            "services.cli.capacity",
            "generate",
            "Print the cache, the streams and the context of a language model that fit into a device's memory.",
        ),
        "doctor": (
            "services.cli.doctor.command",
            None,
            "Tell what this machine has and what would not work, each with its cure.",
        ),
        "models": ("services.cli.catalogue", "generate", "List published models that are known to fit."),
        "papers": (
            "services.cli.papers.command",
            "train",
            "List the papers' tables and figures, run them, and compare with the published numbers.",
        ),
        "mcp": ("services.cli.mcp_server", "mcp", "Serve Fovea to agents as tools of the Model Context Protocol."),
        "store": ("services.cli.store", None, "List, publish, promote, roll back and verify checkpoints."),
        "keys": ("gateway.keys.cli", "gateway", "Create, list and revoke the gateway's keys."),
    },
}

app = typer.Typer(
    rich_markup_mode=None,
    name="fovea",
    help="Serve, train and evaluate models that attend to what a request asks about.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    end_on_signals()
    app(prog_name="fovea")


def _print_version(is_wanted: bool) -> None:  # noqa: FBT001 - called by typer
    if is_wanted:
        typer.echo(installed_version("fovea-serving"))
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def up(
    host: Annotated[str | None, typer.Option(help="Address of the gateway [FOVEA_GATEWAY_HOST].")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the gateway [FOVEA_GATEWAY_PORT].")] = None,
    restart_after: Annotated[
        float,
        typer.Option(
            envvar="FOVEA_UP_RESTART_AFTER_S",
            min=0,
            help="Restart a process that leaves /livez unanswered for this many seconds. 0: never.",
        ),
    ] = 60.0,
    vllm: Annotated[
        Path,
        typer.Option(
            envvar="FOVEA_UP_VLLM", help="Python with vLLM and the plug-in; on a GPU, generate answers by it."
        ),
    ] = Path(".venv-vllm/bin/python"),  # as in vllm_server, which is imported late
    models: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…", help="Serve these models of `fovea models` alone; the store's lack is imported."
        ),
    ] = None,
) -> None:
    """Start the gateway and every service, and stop them on Ctrl-C."""
    from services.cli import vllm_server
    from services.cli.programs import BadPort, existing_names, plan_programs
    from services.cli.supervisor import PortTaken, RestartPolicy, Supervisor

    options = {"FOVEA_GATEWAY_HOST": host, "FOVEA_GATEWAY_PORT": None if port is None else str(port)}
    environment = {**os.environ, **{name: value for name, value in options.items() if value is not None}}

    names = _installed_programs(existing_names())
    if models is not None:
        names = _programs_of(models, names, environment)

    async def supervise() -> int:
        programs = plan_programs(names, environment)
        vllm_server.check_shares(environment)
        if "generate" in names:
            if (obstacle := vllm_server.obstacle(vllm, environment)) is None:
                programs = vllm_server.with_vllm(programs, vllm, environment)
            elif vllm != vllm_server.DEFAULT_PYTHON:
                typer.echo(f"fovea up: the vLLM of {vllm} is not started: {obstacle}", err=True)
        policy = RestartPolicy(hung_after_s=restart_after)
        supervisor = Supervisor(programs, output=sys.stdout, drain_timeout_s=_drain_s(environment), policy=policy)
        gateway = programs[0].url
        try_it = f"Try it at {gateway}/console, or" if _has_console(environment) else "Try it"
        question = "" if models else QUESTION.format(gateway=gateway)
        return await supervisor.run(EXAMPLES.format(gateway=gateway, try_it=try_it, question=question))

    try:
        raise typer.Exit(asyncio.run(supervise()))
    except (BadPort, PortTaken, vllm_server.TooLargeShares) as refused:
        typer.echo(refused, err=True)
        raise typer.Exit(1) from None


def _installed_programs(names: Sequence[str]) -> list[str]:
    """Leave out services whose packages are missing, and say so. Exits where that leaves no service, or no gateway."""
    missing = {name: module for name in names if (module := missing_module(name)) is not None}
    for name, module in missing.items():
        typer.echo(needs(f"fovea up: {name} is left out", module, name), err=True)
    installed = [name for name in names if name not in missing]
    if installed[:1] != ["gateway"] or installed == ["gateway"]:
        raise typer.Exit(1)
    return installed


def _programs_of(models: str, names: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Import models of the catalogue, and set what serves them; returns the programs that do. Exits where one lacks."""
    with errors_in_one_line("fovea up", "generate"):
        from services.cli.catalogue import import_and_choose

        chosen = import_and_choose(models.split(","), environment, names)
    environment.update(chosen)
    os.environ.update(chosen)  # which every program inherits, vLLM too
    return [name for name in names if name == "gateway" or f"FOVEA_{name.upper()}_MODELS" in chosen]


def _has_console(environment: Mapping[str, str]) -> bool:
    """Whether the gateway's settings leave the console on; a value that they do not know they refuse themselves."""
    from pydantic import TypeAdapter, ValidationError  # other commands start without it

    try:
        return TypeAdapter(bool).validate_python(environment.get("FOVEA_GATEWAY_CONSOLE", True))
    except ValidationError:
        return True


def _drain_s(environment: Mapping[str, str]) -> float:
    return float(environment.get("FOVEA_DRAIN_TIMEOUT_S", 30)) + float(environment.get("FOVEA_DRAIN_DELAY_S", 0))


@app.command()
def serve(
    service: Annotated[str, typer.Argument(help="Process to run: gateway, embed, generate, predict or score.")],
) -> None:
    """Run a service or the gateway in this process."""
    from services.cli.programs import PACKAGES, existing_names

    if service not in (names := existing_names()):
        raise typer.BadParameter(f"there is no {service!r}; available: {', '.join(names)}.")
    with errors_in_one_line(f"fovea serve {service}", service):
        runpy.run_module(PACKAGES[service][0], run_name="__main__", alter_sys=True)


for group, commands in COMMANDS.items():
    into = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help=GROUPS[group]) if group else app
    if group:
        app.add_typer(into, name=group)
    for name, (module, extra, summary) in commands.items():
        delegate(into, name, module, summary, extra)


if __name__ == "__main__":
    main()
