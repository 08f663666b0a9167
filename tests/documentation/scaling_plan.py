"""The plan for 10⁹ images: every figure follows from what is measured or assumed here, by the formula beside it."""

import math
from collections.abc import Iterator

from tests.documentation.benchmark_figures import latest
from tests.documentation.blocks import table

# Assumed: the collection, its model (a ViT-L/14 of 336 pixels, as FocalLens-CLIP has it), and the machines.
IMAGES = 10**9
IMAGE_BYTES = 100_000
WIDTH = 768
CONDITIONS = 8
LAYERS, HIDDEN, TOKENS = 24, 1024, 577
GPU_FLOPS = 989e12
GPU_SHARE = 0.4
MACHINE_BYTES = 10**12
MACHINE_SHARE = 0.7
CORE_BYTES_PER_S = 10e9
# A vector in a graph of pgvector takes its halves and this many bytes of links and headers.
LINK_BYTES = 340

ASSUMED = (
    ("N, images", f"{IMAGES:,}"),
    ("S, bytes of an image", f"{IMAGE_BYTES:,}"),
    ("E, numbers of a vector", f"{WIDTH}"),
    ("C, conditions", f"{CONDITIONS}"),
    ("L, D, T: layers, width and tokens of the image tower (ViT-L/14, 336 pixels)", f"{LAYERS}, {HIDDEN}, {TOKENS}"),
    ("F, operations of a GPU per second (H100, bfloat16, dense), and the share u of them that is reached",
     f"{GPU_FLOPS / 1e12:.0f} · 10¹², {GPU_SHARE}"),
    ("M, memory of PostgreSQL's machine, and the share m for graphs",
     f"{MACHINE_BYTES / 1e12:.0f} TB, {MACHINE_SHARE}"),
    ("B, bytes that a core reads from memory per second", f"{CORE_BYTES_PER_S / 1e9:.0f} · 10⁹"),
    ("H, bytes of a vector in a graph beside its halves", f"{LINK_BYTES}"),
)  # fmt: skip


def amount(value: float, unit: str) -> str:
    """Write a number with three significant digits and a decimal prefix."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{_three(value / size)} {prefix}{unit}"
    return f"{_three(value)} {unit}"


def _three(value: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(value)))
    return f"{round(value, digits):,.{digits}f}"


def plan_rows() -> Iterator[tuple[str, str, str]]:
    """Yield what is planned, its formula and its figure."""
    yield "bytes of the images, in the object store", "N · S", amount(IMAGES * IMAGE_BYTES, "B")
    yield "vectors, float32, in tables", "N · C · 4E", amount(IMAGES * CONDITIONS * WIDTH * 4, "B")
    in_graph = 2 * WIDTH + LINK_BYTES
    yield "their graphs", "N · C · (2E + H)", amount(IMAGES * CONDITIONS * in_graph, "B")
    held = MACHINE_BYTES * MACHINE_SHARE / (CONDITIONS * in_graph)
    yield "images whose graphs one machine holds", "m · M / (C · (2E + H))", f"{held / 1e6:.0f} · 10⁶"
    exact = IMAGES * WIDTH * 4 / CORE_BYTES_PER_S
    yield "processor time of an exact search of one condition", "4NE / B", f"{exact:.0f} core-seconds"
    yield from _compute_rows()
    yield from _database_rows()


def flops_of_image() -> float:
    """Operations of the image tower: the matrices of each layer, and attention."""
    return LAYERS * (24 * TOKENS * HIDDEN**2 + 4 * TOKENS**2 * HIDDEN)


def cores_per_gpu_rate() -> float:
    """Photographs that a core decodes, transforms and embeds by the small starter in a second, as measured."""
    bulk = latest("bulk")
    return float(bulk["photographs"]["job_images_per_s"]["median"]) / int(bulk["machine"]["cores"])


def _compute_rows() -> Iterator[tuple[str, str, str]]:
    per_s = GPU_FLOPS * GPU_SHARE / flops_of_image()
    yield "operations of an image", "L · (24TD² + 4T²D)", amount(flops_of_image(), "FLOP")
    yield "images of a GPU per second", "u · F / that", f"{per_s:,.0f}"
    yield "a condition without states, or the first", "N / that", f"{IMAGES / per_s / 3600:,.0f} GPU-hours"
    half = IMAGES / per_s / 3600 / 2
    yield "a condition with states at layer L/2", "half of that", f"{half:,.0f} GPU-hours"
    yield "those states (2 bytes a number)", "N · 2TD", amount(IMAGES * 2 * TOKENS * HIDDEN, "B")
    rate = cores_per_gpu_rate()
    yield (
        "decoding, at the rate d of a core, measured with a small input",
        "N / d",
        f"{IMAGES / rate / 3600:,.0f} core-hours",
    )
    yield "cores that keep a GPU busy", "u · F / (operations · d)", f"{per_s / rate:.1f}"


def _database_rows() -> Iterator[tuple[str, str, str]]:
    rows = latest("collection_rows")
    sizes = rows["postgres_bytes"]
    num_rows = sum(one["rows"] for one in sizes.values())
    num_indexes = sum(one["indexes"] for one in sizes.values())
    yield "rows in PostgreSQL", "2N", f"{2 * IMAGES / 1e9:.0f} · 10⁹"
    yield (
        f"bytes of them, at {num_rows:.0f} measured for an image",
        f"N · {num_rows:.0f}",
        amount(IMAGES * num_rows, "B"),
    )
    told = f"their indexes, at {num_indexes:.0f} measured"
    yield told, f"N · {num_indexes:.0f}", amount(IMAGES * num_indexes, "B")
    listed = rows["listed_bytes"]
    yield (
        f"memory of one bulk job that lists all, at {listed:.0f} measured",
        f"N · {listed:.0f}",
        amount(IMAGES * listed, "B"),
    )


def assumptions_table() -> str:
    return table(("assumed", ""), ASSUMED)


def plan_table() -> str:
    return table(("", "formula", "figure"), plan_rows())
