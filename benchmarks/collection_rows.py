"""Bytes that an image takes in PostgreSQL, in rows and indexes, and in the memory of a bulk job that has listed it.

python -m benchmarks.collection_rows --postgres postgresql://fovea@localhost/empty [--images 200000]

The tables are made by Fovea's own migrations in an empty database, and filled by one statement each as adding images
fills them: ids like `2019/000012345.jpg`, all bytes different, and metadata of two fields. Sizes are those that
PostgreSQL tells after VACUUM; the job's are those that Python's allocator tells.
"""

import argparse
import tracemalloc
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.record import record
from services.embed.bulk.image_sources import ListedImage
from services.embed.collections.cluster.connections import Connections

TABLES = ("images", "contents")
CONTENTS = """
INSERT INTO contents SELECT 1, digest, 100000, 'images/1/' || digest || '-' || md5(digest)
FROM (SELECT encode(sha256(n::text::bytea), 'hex') AS digest FROM generate_series(1, %s) AS n) AS numbered
"""
IMAGES = """
INSERT INTO images
SELECT 1, n, '2019/' || lpad(n::text, 9, '0') || '.jpg', encode(sha256(n::text::bytea), 'hex'), 1e9 + n,
    format('{"camera": "model-%%s", "year": %%s}', n %% 100, 2000 + n %% 25),
    format('{"1": {"camera": "model-%%s", "year": %%s}}', n %% 100, 2000 + n %% 25)::jsonb
FROM generate_series(1, %s) AS n
"""


def bytes_in_postgres(url: str, num_images: int) -> dict[str, dict[str, float]]:
    """Return the bytes of an image in each table, rows and indexes apart."""
    connections = Connections.open(url)
    try:
        with connections.reading() as connection:
            connection.execute("INSERT INTO collections (tenant, name, model, created) VALUES ('', 'a', 'm', 0)")
            connection.execute(CONTENTS, (num_images,))
            connection.execute(IMAGES, (num_images,))
            found = {}
            for table in TABLES:
                connection.execute(f"VACUUM ANALYZE {table}")
                sizes = "SELECT pg_table_size(%s::regclass), pg_indexes_size(%s::regclass)"
                rows, indexes = connection.execute(sizes, (table, table)).fetchone() or (0, 0)
                found[table] = {"rows": round(rows / num_images, 1), "indexes": round(indexes / num_images, 1)}
    finally:
        connections.close()
    return found


def bytes_of_listed(num_images: int) -> float:
    """Return the bytes of an image that a bulk job has listed, its entry among the known ids included."""
    tracemalloc.start()
    images: dict[str, ListedImage] = {}
    for number in range(num_images):
        name = f"2019/{number:09d}.jpg"
        images[name] = ListedImage(name, name, Path("/images") / name, 100_000 + number, 10**18 + number)
    listed = list(images.values())
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(num_bytes / len(listed), 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--postgres", required=True, help="URL of an empty database.")
    parser.add_argument("--images", type=int, default=200_000)
    arguments = parser.parse_args()
    result: dict[str, Any] = {"images": arguments.images}
    result["postgres_bytes"] = bytes_in_postgres(arguments.postgres, arguments.images)
    result["listed_bytes"] = bytes_of_listed(arguments.images)
    table = Table("of an image", "rows, bytes", "indexes, bytes")
    for name, sizes in result["postgres_bytes"].items():
        table.add_row(name, f"{sizes['rows']:.0f}", f"{sizes['indexes']:.0f}")
    table.add_row("a bulk job's list", f"{result['listed_bytes']:.0f}", "")
    Console().print(table)
    record("collection_rows", result)


if __name__ == "__main__":
    main()
