"""`python -m starters visitor`: ask a running Fovea what a visitor types and draws in the first minutes."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from services.jobs.options import LOCAL_URL, among, command_line, fovea_url, key_in, results_file
from services.jobs.progress import Bars, standard_bars
from starters.visitor.cases import BadCase, Case, case_report, case_results, read_cases
from starters.visitor.client import Address, VisitorClient
from starters.visitor.questions import RELEVANCE_THRESHOLD, SERVICES, Service
from starters.visitor.results import RESULT_FILES, Result
from starters.visitor.suite import Plan, ask_service
from starters.visitor.tables import make_case_table, make_reliability_table, make_table

app = command_line()


@app.command()
def visitor(
    *,
    url: Annotated[str, typer.Option(callback=fovea_url, help="Address of the gateway.")] = LOCAL_URL,
    key_variable: Annotated[
        str | None, typer.Option(help="Environment variable that holds the key.", show_default="no key")
    ] = None,
    services: Annotated[str, typer.Option(help="Services to ask.")] = ",".join(SERVICES),
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, each of which draws its own questions.")] = 3,
    count: Annotated[
        int, typer.Option(min=8, help="Questions of each row and seed; galleries have twice as many images.")
    ] = Plan.count,
    cases: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Folder of cases made by hand, to ask instead.", show_default=False
        ),
    ] = None,
    relevance_threshold: Annotated[
        float,
        typer.Option(min=0, max=1, help="An answer whose `relevance` is lower counts as a refusal."),
    ] = RELEVANCE_THRESHOLD,
    concurrency: Annotated[int, typer.Option(min=1, help="Number of concurrent requests.")] = Address.concurrency,
    run: Annotated[str, typer.Option(help="Name of this run's column in the tables.")] = "now",
    save: Annotated[
        Path | None, typer.Option(callback=results_file(RESULT_FILES.load), help="JSON file to add the scores to.")
    ] = None,
) -> None:
    """Ask a running Fovea what a visitor types and draws first: held-out wordings, pictures, captions and sentences.

    Prints the tables, with the runs that the file of --save holds already, and the scores as JSON on the last line.
    """
    chosen = among(services, SERVICES, "--services")
    address = Address(url, key_in(key_variable), concurrency, relevance_threshold)
    console = Console(highlight=False)
    if cases is None:
        results = asyncio.run(_ask_rows(chosen, Plan(run, tuple(range(seeds)), count), address))
    else:
        asked = [case for case in read_cases(cases) if case.service in chosen]
        if not asked:
            raise BadCase(f"{cases} holds no cases of {services}")
        results = asyncio.run(_ask_cases(asked, run, address, console))
    _report(results, save, console)


async def _ask_rows(services: Sequence[Service], plan: Plan, address: Address) -> list[Result]:
    bars = standard_bars()
    async with VisitorClient(address) as client:
        results = [await ask_service(service, plan, client, bars) for service in services]
    _tell_rejections(client, bars)
    return results


async def _ask_cases(cases: Sequence[Case], run: str, address: Address, console: Console) -> list[Result]:
    async with VisitorClient(address) as client:
        asked = await client.ask([case.question for case in cases])
    _tell_rejections(client, standard_bars())
    console.print(case_report(cases, asked))
    return case_results(run, cases, asked)


def _tell_rejections(client: VisitorClient, bars: Bars) -> None:
    for message, number in client.rejections.items():
        questions = "1 question was" if number == 1 else f"{number} questions were"
        bars.say(f"{questions} rejected, which counts as wrong: {message}")


def _report(results: Sequence[Result], save: Path | None, console: Console) -> None:
    """Print the tables of these and all saved results, save them, and print the new scores as the last line."""
    saved = RESULT_FILES.load([save]) if save is not None and save.is_file() else []
    shown = RESULT_FILES.merge([*saved, *results])
    runs = list(dict.fromkeys(result.run for result in shown))
    for service in dict.fromkeys(result.service for result in results if result.suite == "rows"):
        console.print(make_table(service, shown, runs).to_rich())
    if any(result.reliability for result in results):
        console.print(make_reliability_table(shown, results[0].run).to_rich())
    if any(result.suite == "cases" for result in results):
        console.print(make_case_table(shown, runs).to_rich())
    try:
        if save is not None:
            RESULT_FILES.save(results, save)
    finally:
        typer.echo(json.dumps([asdict(result) for result in results]))
