"""A run of the suite: makes the questions of each seed, asks them and measures the rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.jobs.progress import Bars
from starters.visitor.client import VisitorClient
from starters.visitor.measures import Bin, calibration_error, reliability
from starters.visitor.questions import Asked, Service
from starters.visitor.results import Bins, Result
from starters.visitor.rows import Probe, Row, all_rows


@dataclass(frozen=True)
class Plan:
    """The name of a run, its seeds, and the number of questions of a row that draws them."""

    run: str
    seeds: tuple[int, ...] = (0, 1, 2)
    count: int = 24


async def ask_service(service: Service, plan: Plan, client: VisitorClient, bars: Bars) -> Result:
    """Ask every row of a service with every seed; fixed lists are asked with the first seed only.

    Raises VisitorError.
    """
    rows = [row for row in all_rows() if row.service == service]
    scores: dict[str, dict[str, float]] = {row.key: {} for row in rows}
    chances: dict[str, float] = {}
    rejected: dict[str, int] = {}
    models: dict[str, None] = {}
    bins: dict[str, dict[str, Bins]] = {}
    for seed in plan.seeds:
        is_first = seed == plan.seeds[0]
        before = sum(client.rejections.values())
        asked = await _ask_probes(rows, seed, plan, client, bars)
        for row in rows:
            if not is_first and all(probe.is_fixed for probe in row.probes):
                continue
            of_row = [one for probe in row.probes for one in asked[probe.name]]
            models |= dict.fromkeys(one.reply.model for one in of_row if one.reply.model is not None)
            value = row.measure(of_row)
            if value is not None:
                scores[row.key][str(seed)] = round(value, 2)
                if row.measure is calibration_error:
                    bins.setdefault(row.key, {})[str(seed)] = _rounded(reliability(of_row))
                chance = row.chance([one.question for one in of_row])
                if is_first and chance is not None:
                    chances[row.key] = round(chance, 2)
        rejected[str(seed)] = sum(client.rejections.values()) - before
    measured = {row: seeds for row, seeds in scores.items() if seeds}
    settings = {"count": plan.count, "models": list(models)}
    return Result(plan.run, "rows", service, measured, chances, rejected, settings, bins)


def _rounded(bins: Sequence[Bin | None]) -> Bins:
    return [None if one is None else [one.number, round(one.probability, 2), round(one.right, 2)] for one in bins]


async def _ask_probes(
    rows: Sequence[Row], seed: int, plan: Plan, client: VisitorClient, bars: Bars
) -> dict[str, list[Asked]]:
    """Ask each probe once, however many rows measure it."""
    probes: dict[str, Probe] = {probe.name: probe for row in rows for probe in row.probes}
    asked: dict[str, list[Asked]] = {}
    with bars.bar(f"{rows[0].service}, seed {seed}", total=len(probes)) as bar:
        for name, probe in probes.items():
            skipped = probe.is_fixed and seed != plan.seeds[0]
            asked[name] = [] if skipped else await client.ask(probe.questions(seed, plan.count))
            bar.advance()
    return asked
