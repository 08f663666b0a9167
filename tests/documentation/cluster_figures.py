"""Tables of what searches in a cluster, further conditions, migrations and backups cost."""

from tests.documentation.benchmark_figures import latest
from tests.documentation.blocks import table

ENGINES = {"local": "one process (FAISS)", "milvus": "Milvus 2.3.5", "pgvector": "pgvector 0.6.2 (HNSW)"}
BASE, GROWN = 100_000, 1_000_000


def search_table(size: int) -> str:
    """Searches by engine, filter and number of clients."""
    rows = []
    for engine, figures in latest("cluster_search", size=size)["engines"].items():
        for share, found in figures["searches"].items():
            one, eight = (found[f"{number} clients"] for number in (1, 8))
            rows.append(
                (
                    ENGINES[engine] if share == "all" else "",
                    share,
                    f"{found['recall_at_10']:.3f}",
                    *(
                        text
                        for clients in (one, eight)
                        for text in (f"{clients['queries_per_s']:,.0f}", f"{clients['p50_ms']:.1f} ms")
                    ),
                )
            )
    headings = ("", "of", "recall@10", "queries/s, 1 client", "p50", "queries/s, 8 clients", "p50")
    return table(headings, rows)


def conditions_table() -> str:
    """Seconds for the first and a further condition, beside computing their vectors."""
    rows = []
    for size in (BASE, GROWN):
        for engine, figures in latest("cluster_search", size=size)["engines"].items():
            for which in ("first", "further"):
                if (seconds := figures.get(which)) is not None:
                    rows.append(
                        (
                            f"{size:,}",
                            ENGINES[engine],
                            which,
                            f"{seconds['write_s']:.0f} s",
                            f"{seconds['lists_s']:.0f} s",
                        )
                    )
    return table(("vectors", "", "condition", "writing", "sorting for the search"), rows)


def loads() -> str:
    """A sentence on how busy the machine was."""
    found = [
        figures["load"] for size in (BASE, GROWN) for figures in latest("cluster_search", size=size)["engines"].values()
    ]
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
