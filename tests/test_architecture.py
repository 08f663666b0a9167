"""The rooms of the source tree: what a line may import is told by the folder that it stands in."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.imports import (
    ROOT,
    circles,
    import_graph,
    imported,
    longest_chain,
    nodes,
    plug_in_sources,
    sources,
    starter_sources,
)

# What computes with tensors, what speaks HTTP, and what reads or writes the world.
HEAVY = ("torch", "open_clip", "torchvision", "transformers", "accelerate")
HTTP = ("fastapi", "starlette", "uvicorn", "services.core.http", "services.{service}.http")
WORLD = ("os", "pathlib", "json", "structlog", "time")

JOBS = "training,evaluation,calibrate,bulk,transfer,extraction,imports"
# Of a service: the rooms above its engine, and what jobs and the engine know alike.
ABOVE = (f"services.{{service}}.{{service,http,app,settings,collections,data,{JOBS}}}",)
BELOW = ("services.nn", "services.{service}", "services.core.{errors,refusals}")
ROOMS_OF_CORE = ("store", "batching", "cache", "images", "http", "admission", "serving")
CORE_OF_JOBS = (
    "services.core.{store,images,settings,errors,refusals,logs,durable_files,printable,memory,metrics,openai_client,"
    "backoff,text_files,decisions}"
)


def core_except(*rooms: str) -> str:
    """Name the rooms of the core that a room of it never imports."""
    return f"services.core.{{{','.join(room for room in ROOMS_OF_CORE if room not in rooms)}}}"


@dataclass(frozen=True)
class Room:
    """Files that one rule holds for: of our modules they may import these, and none of those at all."""

    files: str
    may_import: tuple[str, ...]
    never: tuple[str, ...] = ()


# The first room whose pattern a path matches is its own; `*` stops at a folder, `**` does not.
ROOMS = (
    *(
        Room(f"services/core/{room}/**", ("services.core",), (*HEAVY, *HTTP, core_except(room)))
        for room in ("store", "batching", "cache", "images")
    ),
    Room("services/core/admission/**", ("services.core",), (*HEAVY, core_except("admission"))),
    Room("services/core/http/**", ("services.core",), (*HEAVY, core_except("http", "admission"))),
    Room("services/core/serving/**", ("services.core",), HEAVY),
    Room("services/core/*", ("services.core",), (*HEAVY, core_except())),
    Room("services/nn/**", ("services.nn", "services.core.{errors,refusals,memory}"), (*HTTP, "os")),
    Room("services/jobs/**", ("services.jobs", "services.nn", CORE_OF_JOBS), HTTP),
    Room("services/cli/**", ("services", "gateway"), HEAVY),
    Room("gateway/**", ("gateway", "services.core"), HEAVY),
    Room("services/*/model/**", BELOW, (*HTTP, *ABOVE, "services.{service}.engine")),
    Room("services/*/prompts/**", ("services.{service}.{prompts,model}", "services.core"), ("torch", *HTTP)),
    Room("services/*/generation/**", (*BELOW, "services.core.batching"), (*HTTP, *ABOVE, "os", "time")),
    Room(
        "services/*/negatives/**",
        ("services.{service}.negatives", "services.core"),
        (*HEAVY, *HTTP),
    ),
    Room(
        "services/score/second_opinion.py",
        ("services.core",),
        (*HEAVY, *HTTP),
    ),
    # The client of vLLM stands where the own engine and its stepper do.
    Room(
        "services/generate/vllm/**",
        (*BELOW, "services.core.{batching,fair_gate,store,exchange,metrics}"),
        (*HTTP, *ABOVE, "services.{service}.engine", "os"),
    ),
    Room("services/*/engine.py", BELOW, (*HTTP, *ABOVE, "os")),
    Room(
        "services/*/{app,__main__,settings}.py",
        ("services.{service}", "services.core", "services.nn"),
        HEAVY,
    ),
    Room(
        "services/*/{call,service}.py",
        (*BELOW, "services.core"),
        (*HEAVY, *HTTP, f"services.{{service}}.{{app,settings,collections,data,{JOBS}}}"),
    ),
    Room(
        "services/*/http/**",
        (*BELOW, "services.core"),
        (*HEAVY, f"services.{{service}}.{{app,settings,collections,data,{JOBS}}}"),
    ),
    Room("services/*/collections/{storage,index}/**", ("services.{service}.collections", "services.core"), HEAVY),
    Room(
        "services/*/collections/**",
        (*BELOW, "services.core"),
        (*HEAVY, f"services.{{service}}.{{app,engine,data,{JOBS}}}", "services.{service}.model.*_engine"),
    ),
    # What moves collections knows how they are stored, and nothing of models.
    Room(
        "services/*/transfer/**",
        ("services.{service}.{transfer,bulk,collections}", "services.jobs", CORE_OF_JOBS, "services.core.exchange"),
        (*HEAVY, *HTTP),
    ),
    # Benchmarks are read for judges without images as for those that see them.
    Room(
        "services/curate/evaluation/**",
        ("services.curate", "services.score.evaluation.benchmarks", "services.nn", "services.jobs", CORE_OF_JOBS),
        (*HTTP, "services.curate.review"),
    ),
    Room(
        f"services/*/{{data,{JOBS}}}/**",
        (*BELOW, "services.jobs", CORE_OF_JOBS),
        (*HTTP, "services.{service}.{engine,service,app,settings,collections}"),
    ),
    # The reviewers' page is the one part of curate that is served; it makes negatives and scenes as score does.
    Room("services/curate/review/**", ("services.curate.{review,data}", "services.jobs", "services.core"), HEAVY),
    Room(
        "services/curate/{authoring,refinement,pipeline}/**",
        ("services.curate", "services.score.{negatives,data}", "services.nn", "services.jobs", CORE_OF_JOBS),
        (*HTTP, "services.curate.review"),
    ),
    # The plug-in for vLLM knows nothing of Fovea; what it computes and reads knows nothing of vLLM either.
    Room("vllm_plugin/fovea_vllm/attention/**", (), (*HTTP, *WORLD, "vllm")),
    Room("vllm_plugin/fovea_vllm/{request,step,estimates,loaded}.py", (), (*HTTP, "os", "vllm")),
    Room("vllm_plugin/fovea_vllm/endpoint.py", ()),
    Room("vllm_plugin/fovea_vllm/**", (), HTTP),
    # The client is a user's own: it knows the services by their OpenAPI document alone, and none of them imports it.
    Room("fovea/**", ("fovea",), HEAVY),
    # What makes and judges the packaged checkpoints may import everything, and nothing that is deployed imports it.
    Room("starters/**", ("services", "starters")),
    # The papers, and what else has no more to know than arithmetic.
    Room(
        "services/*/*.py",
        ("services.nn", "services.{service}"),
        (*HTTP, *ABOVE, "services.{service}.{engine,model,prompts,generation,negatives}", *WORLD),
    ),
)

MAX_FUNCTION_LINES = 60
MAX_CHAIN = 13
# Lines of Python that a room may have. A commit that raises a budget says why.
BUDGETS = {
    "fovea": 1_760,
    "gateway": 4_293,
    "services/cli": 4_274,
    "services/core": 14_196,
    "services/nn": 2_745,
    "services/jobs": 4_010,
    "services/curate": 4_581,
    "services/embed": 18_688,
    "services/generate": 16_140,
    "services/predict": 7_649,
    "services/score": 10_901,
    "starters": 20_710,
    "vllm_plugin": 2_644,
}
SAYS_NOTHING = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
# Here all errors must be caught: a batch is retried in halves, a request gets its answer, a checkpoint that does not
# load is refused while the old one serves, a collection that can't be opened leaves the others alone, and what
# breaks a check of the doctor's is a finding.
CATCH_ALL = (
    "services/cli/doctor/findings.py",
    "services/core/batching/**",
    "services/core/cache/**",
    "services/core/http/middleware.py",
    "services/core/serving/**",
    "services/embed/collections/{collection,local_collections,cluster/collections}.py",
    "services/generate/prompts/template_worker.py",
    "services/generate/vllm/stepper.py",
)


@cache
def matches(path: str, pattern: str) -> bool:
    """Whether a path or a module is one that a pattern with `*`, `**` and `{a,b}` means."""
    regex = re.escape(pattern).replace(r"\{", "(?:").replace(r"\}", ")").replace(",", "|")
    return re.fullmatch(regex.replace(r"\*\*", ".*").replace(r"\*", "[^/]*"), path) is not None


@cache
def is_within(module: str, patterns: tuple[str, ...]) -> bool:
    parts = module.split(".")
    return any(matches(".".join(parts[:length]), p) for p in patterns for length in range(1, len(parts) + 1))


def breaches(path: str, text: str) -> list[str]:
    """Imports of a file that its room does not allow, as `file:line: …`."""
    room = next((room for room in ROOMS if matches(path, room.files)), None)
    if room is None:
        return [] if path.endswith("__init__.py") else [f"{path}:1: stands in no room"]
    service = path.split("/")[1]
    allowed = tuple(entry.replace("{service}", service) for entry in room.may_import)
    never = tuple(entry.replace("{service}", service) for entry in room.never)
    return [
        f"{path}:{line}: {room.files} must not import {module}"
        for line, module in imported(text)
        if (is_within(module, ("fovea", "services", "gateway", "starters")) and not is_within(module, allowed))
        or is_within(module, never)
    ]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_file_imports_only_what_its_room_may() -> None:
    files = (*sources(), *starter_sources(), *plug_in_sources())
    assert [breach for path in files for breach in breaches(name(path), path.read_text())] == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("services/predict/training/train.py", "from starters.predict import sentences"),
        ("gateway/app.py", "import starters"),
        ("services/core/errors.py", "import torch"),
        ("gateway/app.py", "from services.embed.engine import Engine"),
        ("services/embed/focallens.py", "from services.core.errors import FoveaError"),
        ("services/embed/model/engines.py", "from services.embed.app import create_app"),
        ("services/embed/model/engines.py", "from fastapi import Request"),
        ("services/embed/app.py", "import torch"),
        ("services/score/app.py", "from services.embed.http.schemas import EmbedRequest"),
        ("services/embed/training/train.py", "from services.embed.engine import Engine"),
        ("services/cli/main.py", "import torch.nn"),
        ("services/embed/service.py", "from services.embed.http.schemas import EmbedRequest"),
        ("services/embed/collections/reader.py", "from services.embed.model.focallens_engine import FocalLensEngine"),
        ("services/predict/service.py", "from fastapi import Request"),
        ("services/jobs/options.py", "from services.predict.tasks import Task"),
        ("vllm_plugin/fovea_vllm/plugin.py", "from services.generate.calibration import log_alpha"),
        ("vllm_plugin/fovea_vllm/step.py", "import vllm"),
        ("fovea/client.py", "from services.core.errors import FoveaError"),
        ("fovea/images.py", "import torch"),
        ("services/cli/mcp_server.py", "from fovea import AsyncClient"),
    ],
)
def test_a_planted_breach_is_named_by_file_and_line(path: str, line: str) -> None:
    (found,) = breaches(path, f'"""Doc."""\n\n{line}\n')
    assert found.startswith(f"{path}:3: ")


def test_no_import_runs_in_a_circle() -> None:
    assert circles(import_graph()) == []


def test_no_chain_of_imports_is_longer_than_a_reader_can_follow() -> None:
    assert len(longest_chain(import_graph())) <= MAX_CHAIN


def test_functions_stay_short() -> None:
    found = [
        f"{name(path)}:{node.lineno}: {node.name} has {length} lines"
        for path in (*sources(), *starter_sources(), *plug_in_sources())
        for node in nodes(path.read_text())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.body[0].lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert found == []


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_to_its_budget_of_lines(room: str) -> None:
    assert sum(path.read_text().count("\n") for path in (ROOT / room).rglob("*.py")) <= BUDGETS[room]


def test_every_room_has_a_budget() -> None:
    files = (*sources(), *starter_sources(), *plug_in_sources())
    assert {name(path) for path in files if not any(name(path).startswith(f"{room}/") for room in BUDGETS)} == {
        "services/__init__.py"
    }


def test_no_file_holds_global_state_catches_everything_or_has_a_name_that_says_nothing() -> None:
    files = (*sources(), *starter_sources(), *plug_in_sources())
    found = [name(path) for path in files if path.stem in SAYS_NOTHING]
    for path in files:
        for node in nodes(path.read_text()):
            match node:
                case ast.Global():
                    found.append(f"{name(path)}:{node.lineno}: global")
                case ast.ExceptHandler(type=ast.Name(id="Exception")):
                    if not any(matches(name(path), pattern) for pattern in CATCH_ALL):
                        found.append(f"{name(path)}:{node.lineno}: except Exception")
                case ast.Name(id="BaseHTTPMiddleware"):
                    found.append(f"{name(path)}:{node.lineno}: BaseHTTPMiddleware")
    assert found == []


def test_tests_use_real_parts() -> None:
    mocks = re.compile(r"^\s*(?:from|import) (?:unittest\.)?mock\b|^from unittest import mock", re.MULTILINE)
    assert [name(path) for path in sorted((ROOT / "tests").rglob("*.py")) if mocks.search(path.read_text())] == []
