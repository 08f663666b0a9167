"""Three times more requests than can be answered: the fate of accepted ones, and how soon the others are refused.

python -m benchmarks.overload [--routes embed,image,search,predict,score,generate] [--seconds 12] [--code FOLDER]

The real gateway and one service per route, at their defaults, on the starters. Saturation is the goodput of a closed
loop of 48 clients; then requests arrive at that rate (1x) and at three times that rate (3x), whether the earlier ones
were answered or not. The first seconds of a load count only for the column of their own 99th percentile: a burst may
wait longer. Then a hostile key sends three times saturation beside 20 honest ones that together send a third of it;
then as many requests have an unknown key, which the gateway refuses at once: their cost to the honest ones is that of
sharing the machine. No request is repeated, so that no cache answers. `--code` serves another checkout of the source,
to compare two commits under the same load. The last line is JSON.
"""

import argparse
import asyncio
import base64
import hashlib
import json
import os
import resource
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.open_loop import Arrivals, MakeRequest, OpenLoop, percentile_ms, request_bytes
from benchmarks.photographs import Photographs
from benchmarks.record import record
from benchmarks.served import served

SATURATING_CLIENTS = 48  # as many as are admitted at first
SATURATION_S = 6.0
SETTLING_S = 5.0
NUM_HONEST = 20
HONEST_SHARE = 1 / 3
GALLERY = 1000
CONDITION = "condition=What+is+the+color+of+the+object+in+the+image%3F"
COLORS = ("red", "blue", "green", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "star", "triangle")
SERVICES = {"embed": "embed", "image": "embed", "search": "embed", "predict": "predict", "score": "score"} | {
    "generate": "generate",
    "rerank": "generate",
}


def requests_of(route: str) -> MakeRequest:
    """Requests of one route, all different for every cache."""
    numbers = count()
    if route in ("image", "search"):
        photographs = Photographs((320, 240))
        target = f"/embed?{CONDITION}" if route == "image" else f"/collections/gallery/search?{CONDITION}&k=10"
        return lambda _: request_bytes(target, photographs.take(1)[0], "image/jpeg")
    make = {"embed": _embed, "predict": _predict, "score": _score, "generate": _generate, "rerank": _rerank}[route]
    target = {"rerank": "/v1/rerank"}.get(route, f"/{route}")
    return lambda _: request_bytes(target, json.dumps(make(next(numbers))).encode())


def _embed(number: int) -> dict[str, Any]:
    return {"texts": [f"a {_pick(COLORS, number)} {_pick(SHAPES, number // 6)} number {number}"]}


def _predict(number: int) -> dict[str, Any]:
    body = f"Dora split {number + 63} spoons evenly into 9 bags. Gina has {number % 97} bags."
    return {"task": "word-problems", "inputs": [{"body": body, "question": "How many spoons are in each bag of Dora?"}]}


def _score(number: int) -> dict[str, Any]:
    image = Path("docs/images/two-shapes.jpg").read_bytes() + number.to_bytes(8, "little")
    first, second = _pick(COLORS, number), _pick(COLORS, number // 6 + 1)
    captions = [f"a {first} square left of a {second} circle", f"a {second} square left of a {first} circle"]
    return {"image": base64.b64encode(image).decode("ascii"), "captions": captions}


def _documents(number: int) -> list[str]:
    names = [f"Name{number}x{place} Ashford" for place in range(10)]
    return [f"{name} owns the {_pick(COLORS, place + number)} otter." for place, name in enumerate(names)]


def _generate(number: int) -> dict[str, Any]:
    return {"query": f"What is the pet of Name{number}x4 Ashford?", "documents": _documents(number), "max_tokens": 16}


def _rerank(number: int) -> dict[str, Any]:
    return {"query": f"What is the pet of Name{number}x4 Ashford?", "documents": _documents(number)}


def _pick(words: Sequence[str], number: int) -> str:
    return words[number % len(words)]


@asynccontextmanager
async def served_route(route: str, folder: Path, key: str = "none", **settings: str) -> AsyncIterator[str]:
    """Start a gateway and the route's service; yields the gateway's URL once both are ready."""
    service = SERVICES[route]
    store = {
        "FOVEA_STORE_URL": (folder / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_EMBED_COLLECTIONS_DIR": str(folder / "collections"),
    }
    async with served(f"services.{service}", f"FOVEA_{service.upper()}_PORT", store) as service_url:
        urls = {f"FOVEA_GATEWAY_{service.upper()}_URLS": service_url}
        async with served("gateway", "FOVEA_GATEWAY_PORT", {**urls, **settings}) as url:
            if route == "search":
                await fill_gallery(url, key)
            yield url


async def fill_gallery(url: str, key: str = "none") -> None:
    photographs = Photographs((320, 240))
    async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {key}"}) as session:
        async with session.put("/collections/gallery"):
            pass
        for start in range(0, GALLERY, 100):
            form = aiohttp.FormData()
            for number, image in enumerate(photographs.take(100), start):
                form.add_field("file", image, filename=f"{number}.jpg", content_type="image/jpeg")
            async with session.post("/collections/gallery/images?wait=true", data=form) as added:
                assert added.status < 300, await added.text()
        search = f"/collections/gallery/search?{CONDITION}&k=1"
        for _ in range(20):  # until the condition's index is complete
            async with session.post(search, data=photographs.take(1)[0], headers={"Content-Type": "image/jpeg"}):
                await asyncio.sleep(0.5)


async def measure_route(route: str, seconds: float, folder: Path) -> dict[str, Any]:
    make = requests_of(route)
    async with served_route(route, folder) as url, OpenLoop(url) as load:
        await load.saturate(4, 2.0, make)  # warm-up
        saturated = await load.saturate(SATURATING_CLIENTS, SATURATION_S, make)
        saturation = saturated.goodput
        once = await load.run(saturation, seconds, make, settling_s=SETTLING_S)
        thrice = await load.run(3 * saturation, seconds, make, seed=1, settling_s=SETTLING_S)
    p99_ms = percentile_ms(once.accepted, 0.99)
    return {
        "saturation_per_s": saturation,
        "saturation_p99_ms": percentile_ms(saturated.accepted, 0.99),
        "1x": figures(once),
        "3x": figures(thrice),
        "p99_ratio": percentile_ms(thrice.accepted, 0.99) / p99_ms if p99_ms else float("nan"),
        "goodput_ratio": thrice.goodput / once.goodput if once.goodput else float("nan"),
    }


async def measure_fairness(route: str, saturation: float, seconds: float, folder: Path) -> dict[str, Any]:
    """Measure load by the honest keys alone, with a hostile key beside them, and with an unknown key beside them."""
    names = ["hostile", *(f"honest-{number}" for number in range(NUM_HONEST))]
    records = [
        {
            "name": name,
            "sha256": hashlib.sha256(name.encode()).hexdigest(),
            "scopes": ["embed", "generate", "predict", "score", "admin"],
        }
        for name in names
    ]
    make = requests_of(route)

    def by(name: str) -> MakeRequest:
        return lambda number: make(number).replace(b"\r\n", f"\r\nAuthorization: Bearer {name}\r\n".encode(), 1)

    def by_honest(number: int) -> bytes:
        return by(f"honest-{number % NUM_HONEST}")(number)

    settings = {"FOVEA_GATEWAY_KEYS": json.dumps(records)}
    async with (
        served_route(route, folder, names[0], **settings) as url,
        OpenLoop(url) as load,
        OpenLoop(url) as others,
    ):

        async def honest_beside(name: str, seed: int) -> tuple[Arrivals, Arrivals]:
            return await asyncio.gather(
                load.run(HONEST_SHARE * saturation, seconds, by_honest, seed=seed, settling_s=SETTLING_S),
                others.run(3 * saturation, seconds, by(name), seed=seed + 2, settling_s=SETTLING_S),
            )

        await load.saturate(4, 2.0, by_honest)
        alone = await load.run(HONEST_SHARE * saturation, seconds, by_honest, settling_s=SETTLING_S)
        beside, attack = await honest_beside("hostile", 1)
        beside_nobody, _ = await honest_beside("nobody", 2)
    p99_ms = percentile_ms(alone.accepted, 0.99)
    return {
        "honest_alone": figures(alone),
        "honest_beside": figures(beside),
        "hostile": figures(attack),
        "beside_nobody": figures(beside_nobody),
        "honest_p99_ratio": percentile_ms(beside.accepted, 0.99) / p99_ms if p99_ms else float("nan"),
        "beside_nobody_p99_ratio": percentile_ms(beside_nobody.accepted, 0.99) / p99_ms if p99_ms else float("nan"),
        "honest_accepted_share": len(beside.accepted) / max(1, len(beside.answers) + beside.num_unanswered),
    }


def figures(arrivals: Arrivals) -> dict[str, float]:
    return {
        "goodput_per_s": arrivals.goodput,
        "accepted": len(arrivals.accepted),
        "refused": len(arrivals.refused),
        "other": arrivals.num_other,
        "p50_ms": percentile_ms(arrivals.accepted, 0.5),
        "p99_ms": percentile_ms(arrivals.accepted, 0.99),
        "refusal_p99_ms": percentile_ms(arrivals.refused, 0.99),
        "onset_p99_ms": percentile_ms(arrivals.onset, 0.99),
    }


@contextmanager
def code_of(folder: Path | None) -> Iterator[None]:
    """Let processes that are started in the block run the source in this folder, if one is given."""
    if folder is None:
        yield
        return
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(folder.resolve())
    here = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


async def measure(routes: Sequence[str], seconds: float) -> dict[str, Any]:
    results = {}
    for route in routes:
        with tempfile.TemporaryDirectory() as folder:
            results[route] = await measure_route(route, seconds, Path(folder))
            results[route]["fairness"] = await measure_fairness(
                route, results[route]["saturation_per_s"], seconds, Path(folder)
            )
        show(route, results[route])
    return results


def show(route: str, result: dict[str, Any]) -> None:
    table = Table(
        title=f"{route}: saturation {result['saturation_per_s']:.1f}/s, p99 {result['saturation_p99_ms']:.0f} ms"
    )
    for column in (
        "load",
        "goodput /s",
        "accepted",
        "refused",
        "other",
        "p50 ms",
        "p99 ms",
        "refusal p99 ms",
        "onset p99 ms",
    ):
        table.add_column(column, justify="right")
    fairness = result["fairness"]
    rows = {"1x": result["1x"], "3x": result["3x"]} | {
        name.replace("_", " "): fairness[name] for name in ("honest_alone", "honest_beside", "hostile", "beside_nobody")
    }
    for name, row in rows.items():
        table.add_row(name, *(f"{value:,.1f}" for value in row.values()))
    console = Console(width=120)
    console.print(table)
    console.print(
        f"3x over 1x: p99 {result['p99_ratio']:.2f}, goodput {result['goodput_ratio']:.2f}; honest beside a hostile "
        f"key over alone: p99 {fairness['honest_p99_ratio']:.2f} (beside one that nobody has "
        f"{fairness['beside_nobody_p99_ratio']:.2f}), accepted {fairness['honest_accepted_share']:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routes", default=",".join(SERVICES))
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--code", type=Path, help="serve this checkout of the source instead of this one")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with code_of(options.code):
        results = uvloop.run(measure(options.routes.split(","), options.seconds))
    record("overload", {"code": str(options.code or "."), "routes": results})


if __name__ == "__main__":
    main()
