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
NODE_BYTES = 256 * 10**9
NODE_SHARE = 0.7
NODE_CORES = 32
CORE_BYTES_PER_S = 10e9
# Milvus's: the size at which a segment is sealed, and our lists of each, of which a search reads some.
SEGMENT_BYTES = 1024**3
LISTS = 1024
PROBES = 16
PQ_BYTES = WIDTH // 8

ASSUMED = (
    ("N, images", f"{IMAGES:,}"),
    ("S, bytes of an image", f"{IMAGE_BYTES:,}"),
    ("E, numbers of a vector", f"{WIDTH}"),
    ("C, conditions", f"{CONDITIONS}"),
    ("L, D, T: layers, width and tokens of the image tower (ViT-L/14, 336 pixels)", f"{LAYERS}, {HIDDEN}, {TOKENS}"),
    ("F, operations of a GPU per second (H100, bfloat16, dense), and the share u of them that is reached",
     f"{GPU_FLOPS / 1e12:.0f} · 10¹², {GPU_SHARE}"),
    ("M, memory of a node of Milvus, and the share m for vectors", f"{NODE_BYTES / 1e9:.0f} GB, {NODE_SHARE}"),
    ("K, cores of a node, and B, bytes that a core reads from memory per second",
     f"{NODE_CORES}, {CORE_BYTES_PER_S / 1e9:.0f} · 10⁹"),
    ("G, bytes of a segment; lists in each, and p, those that a search reads",
     f"2³⁰; {LISTS:,}, {PROBES}"),
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


def nodes(num_bytes: float) -> int:
    """Count the nodes of Milvus whose memory holds these bytes once."""
    return math.ceil(num_bytes / (NODE_BYTES * NODE_SHARE))


def plan_rows() -> Iterator[tuple[str, str, str]]:
    """Yield what is planned, its formula and its figure."""
    yield "bytes of the images, in the object store", "N · S", amount(IMAGES * IMAGE_BYTES, "B")
    flat = IMAGES * CONDITIONS * WIDTH * 4
    yield "vectors, float32 (`IVF_FLAT`)", "N · C · 4E", amount(flat, "B")
    yield "nodes of Milvus for them", "N · C · 4E / (m · M)", f"{nodes(flat):,}"
    for index, size, formula in (("`IVF_SQ8`", WIDTH, "E"), (f"`IVF_PQ`, {PQ_BYTES} bytes", PQ_BYTES, "E/8")):
        num_bytes = IMAGES * CONDITIONS * size
        told = f"{amount(num_bytes, 'B')}, {nodes(num_bytes):,} nodes"
        yield f"the same, quantised: {index}", f"N · C · {formula}", told
    disk = f"{nodes(IMAGES * CONDITIONS * PQ_BYTES):,} nodes, {amount(flat, 'B')} of SSD"
    yield "the same on disk: `DISKANN`, E/8 bytes in memory", "N · C · E/8, N · C · 4E", disk
    yield from _search_rows()
    yield from _compute_rows()
    yield from _database_rows()


def _search_rows() -> Iterator[tuple[str, str, str]]:
    of_one = IMAGES * WIDTH * 4
    read = of_one * PROBES / LISTS + math.ceil(of_one / SEGMENT_BYTES) * LISTS * WIDTH * 4
    yield "read by a search of one condition", "4NE · p/1024 + ⌈4NE/G⌉ · 1024 · 4E", amount(read, "B")
    yield "processor time of it", "that / B", f"{read / CORE_BYTES_PER_S:.1f} core-seconds"
    num_cores = nodes(of_one) * NODE_CORES
    per_s = num_cores * CORE_BYTES_PER_S / read
    yield (
        "searches per second, at most, of the nodes that hold that condition",
        "⌈4NE / (m · M)⌉ · K · B / that",
        f"{per_s:.0f} ({nodes(of_one)} nodes)",
    )
    exact = of_one / CORE_BYTES_PER_S
    yield "processor time of an exact search", "4NE / B", f"{exact:.0f} core-seconds"


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
    yield "decoding, at the measured rate d of a core", "N / d", f"{IMAGES / rate / 3600:,.0f} core-hours"
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
