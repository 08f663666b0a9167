"""Tables of what searches in a cluster, further conditions, migrations and backups cost."""

from tests.documentation.benchmark_figures import latest
from tests.documentation.blocks import table

ENGINES = {"local": "one process (FAISS)", "pgvector": "pgvector 0.8.5 (HNSW)"}
SIZES = (20_000, 100_000)


def search_table() -> str:
    """Searches by number of vectors, engine, filter and number of clients."""
    rows = []
    for size in SIZES:
        for engine, figures in latest("cluster_search", size=size)["engines"].items():
            for share, found in figures["searches"].items():
                speeds = [
                    text
                    for number in (1, 8)
                    for text in (
                        f"{found[f'{number} clients']['queries_per_s']:,.0f}",
                        f"{found[f'{number} clients']['p50_ms']:.1f} ms",
                    )
                ]
                rows.append((f"{size:,}", ENGINES[engine], share, f"{found['recall_at_10']:.3f}", *speeds))
    headings = ("vectors", "", "of", "recall@10", "queries/s, 1 client", "p50", "queries/s, 8 clients", "p50")
    return table(headings, rows)


def conditions_table() -> str:
    """Seconds for a condition, beside computing its vectors, and how fast more vectors are then added."""
    rows = []
    for size in SIZES:
        run = latest("cluster_search", size=size)
        for engine, figures in run["engines"].items():
            first = figures["first"]
            added = f"{run['added'] * size / first['add_s']:,.0f} a second"
            rows.append((f"{size:,}", ENGINES[engine], f"{first['write_s']:.0f} s", f"{first['lists_s']:.0f} s", added))
    return table(("vectors", "", "writing", "preparing for the search", "adding"), rows)


def loads() -> str:
    """A sentence on how busy the machine was."""
    found = [one["load"] for size in SIZES for one in latest("cluster_search", size=size)["engines"].values()]
    return f"The load was {min(found):.0f} to {max(found):.0f} on two cores, the work of the benchmark included.\n"


def migration_table() -> str:
    """Seconds of migrations, and what a client did meanwhile."""
    rows = []
    for key, way in (("to_cluster", "from a folder to the cluster"), ("to_local", "from the cluster to a folder")):
        moved = latest("migration")[key]
        first, last = moved["seconds"]
        done = (f"{moved['answers'][what]:,}" for what in ("added", "deleted", "searched"))
        lost = f"{moved['lost']}, {moved['returned']}"
        rows.append((way, f"{first:.0f} s, {last:.0f} s", ", ".join(done), f"{moved['images']:,}", lost))
    meanwhile = "added, deleted, searched meanwhile"
    return table(("", "`migrate`, `--finish`", meanwhile, "images on both sides", "lost, returned"), rows)


def backups_table() -> str:
    """Seconds of backups and restorations."""
    rows = []
    for key, kind in (("local_backup", "a folder"), ("cluster_backup", "a cluster")):
        found = latest("migration")[key]
        rows.append((kind, *(f"{seconds:.0f} s" for seconds in (*found["backup_s"], found["restore_s"]))))
    return table(("of", "first backup", "second", "restoration"), rows)
