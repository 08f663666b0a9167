"""Tables of the papers' ledger and of recorded runs of its rows."""

from services.cli.papers import ledger
from services.cli.papers.command import comparison_tables, described
from services.cli.papers.run import Record, read_all
from tests.documentation.blocks import ROOT, table

RECORDS = ROOT / "docs" / "results" / "papers.jsonl"


def latest() -> list[Record]:
    """The last run of each row, model and published row that it stands beside, in the ledger's order."""
    found = {(record.id, record.beside, record.model): record for record in read_all(RECORDS)}
    order = list(ledger.rows())
    return sorted(found.values(), key=lambda record: order.index(record.id))


def status_table() -> str:
    counts = ledger.count_by_status()
    run = len({record.id for record in latest()})
    cells = (len(ledger.rows()), *counts.values(), run)
    return table(("rows", *counts, "run and recorded here"), [tuple(map(str, cells))])


def rows_table() -> str:
    recorded = {record.id for record in latest()}
    rows = [
        (row.id, row.title, str(row.page), row.status, "above" if row.id in recorded else "; ".join(_linked(row)))
        for row in ledger.rows().values()
    ]
    return table(("row", "shows", "page", "status", "recorded"), rows)


def _linked(row: ledger.Row) -> list[str]:
    """Links to the records of other runs of the method."""
    paths = [text.partition(":")[0] for text in row.recorded]
    return [f"[{path.rpartition('/')[2]}]({_relative(path)})" for path in paths]


def _relative(path: str) -> str:
    return (
        path.removeprefix("docs/results/") if path.startswith("docs/results/") else f"../{path.removeprefix('docs/')}"
    )


def runs_text() -> str:
    return "\n".join(_run(record) for record in latest())


def _run(record: Record) -> str:
    row = ledger.rows()[record.id]
    commands = "\n".join(f"    fovea {' '.join(command)}" for command in record.commands)
    parts = [
        f"### {record.id}{f' ({record.model})' * bool(record.model)}: {row.title}\n",
        f"Ours: {described(record)}.\n",
        f"{commands}\n",
    ]
    tables = comparison_tables(record)
    if not tables:
        parts.append("No published number stands beside the results.\n")
    for made in tables:
        parts.append(f"{made.title}:\n\n{made.to_markdown().partition(chr(10) * 2)[2]}")
    return "\n".join(parts)
