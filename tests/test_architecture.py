"""The rooms and the arrows between them: what a line may know is told by the path that it stands in."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

HEAVY = ("torch", "open_clip", "torchvision", "transformers", "accelerate")
WEB = ("fastapi", "starlette", "uvicorn")
# what reads or writes the world, which equations never do
WORLD = (*WEB, "os", "pathlib", "json", "structlog", "time")


def own(*stems: str) -> tuple[str, ...]:
    """Modules of the service that a file belongs to."""
    return tuple(f"services.{{service}}.{stem}" for stem in stems)


# A causal language model with tensors in its hands: from one row's attention to answers and rankings.
ATTENDING = own("attention", "branches", "calibration", "kv_cache", "language_model", "packing")
GENERATING = (
    *ATTENDING,
    *own(
        "answer_text",
        "applied_profile",
        "bias",
        "calibration_bench",
        "calibration_search",
        "decoding",
        "engine_options",
        "generation",
        "model_checks",
        "prefilled_prompts",
        "prefix_cache",
        "progress",
        "prompt_calibration",
        "ranking",
        "reordered",
        "sequence",
    ),
)
# Texts, tokens as numbers, figures: torch-free, and nothing of HTTP.
TEXTUAL = own(
    "abandonment",
    "bounded_templates",
    "chat_prompts",
    "data",
    "facts",
    "interleaving",
    "litm_results",
    "litm_tables",
    "passes",
    "preparations",
    "profile",
    "prompts",
    "question_sets",
    "ranking_prompts",
    "tfidf",
    "tokenizer_build",
    "truncation",
)
# Jobs of the generate service and what only they need: models, files and figures at once.
JOBS = (
    "answering",
    "calibrate",
    "calibration_choice",
    "checkpoint_source",
    "evaluate",
    "initialisation",
    "litm_figures",
    "litm_protocols",
    "train",
    "training",
)
# Of the predict service: texts and numbers about students, torch-free; figures of them; and what teaches them.
DISTILL_TEXTUAL = (
    "arithmetic",
    "data",
    "deductions",
    "denoising",
    "drawing",
    "generated_data",
    "inferences",
    "llm_outputs",
    "problem_scenes",
    "problems",
    "recipe",
    "sources",
    "task_description",
    "tasks",
)
DISTILL_REPORTS = ("distill_figures", "distill_results", "distill_tables")
DISTILL_JOBS = (
    "evaluate",
    "initialisation",
    "lessons",
    "lora",
    "marking",
    "runs",
    "sweep",
    "sweep_cell",
    "sweep_imports",
    "sweep_progress",
    "tokenizer_build",
    "train",
    "training",
    "training_state",
)

# Of the score service: what a caption could say instead, torch-free; what a model makes of images and captions, torch
# only; and the jobs that teach and compare.
CAPTIONS = (
    "agreement",
    "annotation",
    "inflection",
    "lexicon",
    "negatives",
    "relations",
    "replacements",
    "swaps",
    "tagging",
    "turns",
    "vocabulary",
    "wordnet",
    "wordnet_lexicon",
)
SCORING = (
    ("dense_features", ()),
    ("features", ()),
    ("fsc_clip", ("dense_features",)),
    ("heatmaps", ()),
    ("lora", ()),
    ("pairing", ("features", "fsc_clip")),
    ("encoder", ("checkpoint", "dense_features", "features")),
)
SCORE_JOBS = (
    "captioned_images",
    "convert",
    "data",
    "evaluate",
    "objectives",
    "publication",
    "recipe",
    "released_weights",
    "scene_captions",
    "scene_clip",
    "scene_protocol",
    "scenes",
    "starter_tables",
    "train",
    "wise_ft",
)


@dataclass(frozen=True)
class Room:
    """Files of one kind: which modules of ours they may import, and which packages they must not know."""

    files: str
    may_import: tuple[str, ...]
    never: tuple[str, ...] = ()


# What a job needs of the core to read and publish checkpoints.
STORING = ("checkpoint_files", "errors", "manifest", "settings", "starters", "store", "store_errors", "versions")
# What a job needs of it to keep scores and to draw them.
SHOWING = ("line_plots", "result_files")

# The first room whose pattern fits a file is its room; {service} stands for the service that the file belongs to.
ROOMS = (
    Room("gateway/*.py", ("gateway", "services.core"), HEAVY),
    Room("services/core/*.py", ("services.core",), HEAVY),
    *(Room(f"services/score/{stem}.py", own(*CAPTIONS), (*HEAVY, *WEB, "structlog", "time")) for stem in CAPTIONS),
    *(
        Room(f"services/score/{stem}.py", own(*below), (*WEB, "os", "pathlib", "json", "structlog", "time"))
        for stem, below in SCORING
    ),
    Room("services/score/model/checkpoint.py", own("dense_features"), (*WEB, "os", "structlog", "time")),
    *(
        Room(
            f"services/score/{stem}.py",
            (
                *own(*CAPTIONS, *SCORE_JOBS, "checkpoint", "compositionality", "dense_features", "fsc_clip", "lora"),
                *(f"services.core.{part}" for part in (*STORING, *SHOWING, "logs")),
            ),
            WEB,
        )
        for stem in SCORE_JOBS
    ),
    Room(
        "services/score/compositionality/*.py",
        (
            *own("checkpoint", "compositionality", "dense_features", "fsc_clip"),
            *(f"services.core.{part}" for part in (*STORING, *SHOWING)),
        ),
        WEB,
    ),
    Room(
        "services/score/engine.py",
        ("services.core.errors", *own("checkpoint", *(stem for stem, _ in SCORING))),
        (*WEB, "os"),
    ),
    Room(
        "services/score/http/schemas.py",
        (
            "services.core.errors",
            "services.core.http.json_bodies",
            "services.core.serving.model_object",
            *own("negatives"),
        ),
        HEAVY,
    ),
    # the processes that train together are told to each other by the environment
    Room("services/jobs/training.py", (), (*WEB, "structlog")),
    Room("services/nn/*.py", ("services.nn", "services.core.errors"), (*WEB, "os", "structlog")),
    # a process of its own that renders chat templates as transformers does
    Room("services/generate/prompts/template_worker.py", (), ("services", "torch", *WEB)),
    Room("services/generate/calibration.py", (), WORLD),
    Room("services/generate/evaluation/hypotheses.py", (), WORLD),
    *(
        Room(f"services/generate/{stem}.py", own(*below), WORLD)
        for stem, below in (
            ("attention", ("calibration",)),
            ("kv_cache", ()),
            ("packing", ("attention", "calibration", "kv_cache")),
            ("branches", ("attention", "calibration", "kv_cache", "packing")),
        )
    ),
    Room("services/generate/model/language_model.py", ATTENDING, WEB),
    *(
        Room(
            path.replace("{service}", "generate").replace(".", "/") + ".py",
            (*GENERATING, *TEXTUAL, "services.core.errors"),
            (*WEB, "os", "time"),
        )
        for path in GENERATING
    ),
    *(
        Room(
            path.replace("{service}", "generate").replace(".", "/") + ".py",
            (*TEXTUAL, "services.core.errors", "services.jobs.result_files"),
            (*HEAVY, *WEB),
        )
        for path in TEXTUAL
    ),
    *(
        Room(f"services/*/{stem}.py", may_import, (*WEB, "os", "pathlib", "json", "structlog", "time"))
        for stem, may_import in (
            ("visibility", ()),
            ("focallens", ("services.{service}.visibility",)),
            ("condition_tokens", ()),
            ("readout_plan", ()),
        )
    ),
    Room("services/generate/engine.py", (*GENERATING, *TEXTUAL, "services.core.errors"), (*WEB, "os")),
    *(
        Room(
            f"services/generate/{stem}.py",
            (
                *GENERATING,
                *TEXTUAL,
                *own("hypotheses", *JOBS),
                *(f"services.core.{part}" for part in (*STORING, *SHOWING)),
            ),
            WEB,
        )
        for stem in JOBS
    ),
    Room("services/predict/distillation.py", (), WORLD),
    *(
        Room(
            f"services/predict/{stem}.py",
            own(*DISTILL_TEXTUAL, "rationale_file"),
            (*HEAVY, *WEB),
        )
        for stem in DISTILL_TEXTUAL
    ),
    *(
        Room(
            f"services/predict/{stem}.py",
            (*own(*DISTILL_TEXTUAL, *DISTILL_REPORTS), "services.jobs.plots", "services.jobs.result_files"),
            (*HEAVY, *WEB),
        )
        for stem in DISTILL_REPORTS
    ),
    *(
        Room(
            f"services/predict/{stem}.py",
            (
                *own(*DISTILL_TEXTUAL, *DISTILL_REPORTS, *DISTILL_JOBS),
                *own("distillation", "rationale_file", "student"),
                *(f"services.core.{part}" for part in (*STORING, "durable_files", "line_plots")),
            ),
            WEB,
        )
        for stem in DISTILL_JOBS
    ),
    *(
        Room(f"services/predict/{stem}.py", may_import, (*WEB, "os", "json", "structlog", "time"))
        for stem, may_import in (
            ("scoring", ()),
            ("t5", ()),
            ("student", own("scoring", "t5")),
            (
                "engine",
                ("services.core.errors", *own("arithmetic", "scoring", "student", "task_description", "tasks")),
            ),
        )
    ),
    Room("services/*/checkpoint.py", ("services.{service}.focallens",), (*WEB, "structlog")),
    Room("services/*/data.py", (), WEB),
    Room(
        "services/*/train.py",
        (
            "services.core.store.checkpoint_files",
            "services.core.store.manifest",
            "services.core.settings",
            "services.core.store.store",
            "services.{service}.checkpoint",
            "services.{service}.data",
            "services.{service}.evaluate",
            "services.{service}.focallens",
            "services.{service}.objectives",
            "services.{service}.protocols",
            "services.{service}.training",
        ),
        WEB,
    ),
    Room(
        "services/*/objectives.py",
        (
            "services.{service}.checkpoint",
            "services.{service}.data",
            "services.{service}.focallens",
            "services.{service}.training",
        ),
        WEB,
    ),
    Room(
        "services/*/evaluate.py",
        (
            "services.core.settings",
            "services.core.store.starters",
            "services.core.store.store",
            "services.core.store.errors",
            "services.{service}.checkpoint",
            "services.{service}.data",
            "services.{service}.focallens",
            "services.{service}.protocols",
        ),
        WEB,
    ),
    Room(
        "services/*/protocols/*.py",
        (
            "services.jobs.result_files",
            "services.core.settings",
            "services.core.store.starters",
            "services.core.store.store",
            "services.{service}.checkpoint",
            "services.{service}.data",
            "services.{service}.focallens",
            "services.{service}.protocols",
        ),
        WEB,
    ),
    Room("services/*/image_sources.py", (), (*HEAVY, *WEB)),
    Room("services/*/collection_client.py", (), (*HEAVY, *WEB)),
    Room(
        "services/*/bulk_embedding.py",
        (
            "services.core.images.decoding",
            "services.{service}.bulk_folder",
            "services.{service}.checkpoint",
            "services.{service}.focallens",
        ),
        WEB,
    ),
    Room(
        "services/*/bulk_workers.py",
        (
            "services.core.errors",
            "services.core.images.decoding",
            "services.{service}.bulk_embedding",
            "services.{service}.bulk_folder",
            "services.{service}.image_sources",
        ),
        WEB,
    ),
    # the bulk jobs around the model: sources, files, HTTP's other side
    Room(
        "services/*/bulk*.py",
        (
            "services.core",
            "services.{service}.bulk_embedding",
            "services.{service}.bulk_files",
            "services.{service}.bulk_folder",
            "services.{service}.bulk_progress",
            "services.{service}.bulk_upload",
            "services.{service}.bulk_workers",
            "services.{service}.collection_client",
            "services.{service}.image_sources",
            "services.{service}.protocols.loading",
        ),
        (*HEAVY, *WEB),
    ),
    Room(
        "services/*/encoder.py",
        (
            "services.{service}.checkpoint",
            "services.{service}.condition_tokens",
            "services.{service}.focallens",
            "services.{service}.readout_plan",
        ),
        (*WEB, "os", "pathlib", "json", "structlog", "time"),
    ),
    Room(
        "services/*/engine.py",
        (
            "services.core.errors",
            "services.{service}.checkpoint",
            "services.{service}.encoder",
            "services.{service}.readout_plan",
        ),
        (*WEB, "os"),
    ),
    Room(
        "services/*/schemas.py",
        (
            "services.core.errors",
            "services.core.http.json_bodies",
            "services.core.serving.model_object",
            "services.{service}.profile",
        ),
        HEAVY,
    ),
    Room("services/*/__main__.py", ("services.core", "services.{service}")),
    # what a collection keeps knows files and vectors, neither the wire nor the model
    *(
        Room(
            f"services/*/collections/{stem}.py",
            (
                "services.core.caller",
                "services.core.durable_files",
                "services.core.errors",
                "services.{service}.collections",
            ),
            (*HEAVY, *WEB, "structlog"),
        )
        for stem in (
            "catalog",
            "database",
            "image_store",
            "image_tables",
            "metadata",
            "image_states",
            "index",
            "contents",
            "vector_table",
            "inverted_lists",
            "nearest",
            "device_vectors",
            "snapshots",
        )
    ),
    Room("services/*/collections/*.py", ("services.core", "services.{service}"), HEAVY),
    # app and whatever stands beside it: the wire and the composition, never a tensor
    Room("services/*/*.py", ("services.core", "services.{service}"), HEAVY),
    # the command line calls the jobs by name, so that it starts without torch
    Room("services/*.py", ("services", "gateway"), (*HEAVY, *WEB)),
)

SOURCES = sorted(p for folder in ("services", "gateway") for p in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
SAYS_NOTHING = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
# Where whatever is raised must be caught: a batch is retried in halves, a request gets its answer, a checkpoint
# that does not load is refused while the old one serves on, work done for somebody else fails for them, indexing goes
# on, a collection that can't be opened leaves the others alone, and a chat template that fails refuses its
# conversation.
CATCH_ALL = {
    "services/embed/collections/collection.py",
    "services/embed/collections/open_collections.py",
    "services/generate/prompts/template_worker.py",
    *(
        f"services/core/{stem}.py"
        for stem in (
            "batch_run",
            "batching",
            "cache",
            "candidates",
            "checkpoints",
            "compute",
            "middleware",
            "step_run",
            "stepping",
        )
    ),
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def breaches(path: str, text: str) -> list[str]:
    """Imports of a file that its room does not allow, as `file:line: …`."""
    room = next(room for room in ROOMS if fnmatch(path, room.files) and path.count("/") == room.files.count("/"))
    parts = path.split("/")
    service = parts[1] if parts[0] == "services" and len(parts) >= 3 else ""
    shared = ("services.nn",) if service else ()  # layers and devices that two services need
    allowed = (*shared, *(entry.format(service=service) for entry in room.may_import))
    found = []
    for line, module in imports(ast.parse(text)):
        is_ours = is_within(module, ("services", "gateway"))
        if (is_ours and not is_within(module, allowed)) or is_within(module, room.never):
            found.append(f"{path}:{line}: {room.files} must not import {module}")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_every_file_imports_only_what_its_room_knows(path: Path) -> None:
    assert not breaches(name(path), path.read_text())


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("services/core/errors.py", "import torch"),
        ("gateway/app.py", "from services.embed.engine import Engine"),
        ("services/embed/focallens.py", "from services.core.errors import FoveaError"),
        ("services/embed/engine.py", "from services.embed.app import create_app"),
        ("services/embed/engine.py", "from fastapi import Request"),
        ("services/embed/app.py", "import torch"),
        ("services/score/app.py", "from services.embed.http.schemas import EmbedRequest"),
        ("services/embed/training/train.py", "from services.embed.engine import Engine"),
        ("services/cli/main.py", "import torch.nn"),
    ],
)
def test_a_planted_breach_is_named_by_file_and_line(path: str, line: str) -> None:
    (found,) = breaches(path, f'"""Doc."""\n\n{line}\n')
    assert found.startswith(f"{path}:3: ")


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_files_and_functions_stay_short_and_hold_no_global_state(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_FILE_LINES
    assert path.stem not in SAYS_NOTHING
    for node in ast.walk(ast.parse(text)):
        assert not isinstance(node, ast.Global), f"{name(path)}:{node.lineno}: global"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{name(path)}:{node.lineno}: {node.name} has {length} lines"
        if isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Name) and node.type.id == "Exception":
            assert name(path) in CATCH_ALL, f"{name(path)}:{node.lineno}: except Exception"
        if isinstance(node, ast.Name):
            assert node.id != "BaseHTTPMiddleware"


@pytest.mark.parametrize("path", [p for p in TESTS if p != Path(__file__)], ids=name)
def test_tests_use_real_parts(path: Path) -> None:
    modules = {module for _, module in imports(ast.parse(path.read_text()))}
    assert "unittest.mock" not in modules
    assert "mock" not in modules


def test_core_gateway_and_command_line_load_without_torch() -> None:
    modules = [name(p).removesuffix(".py").replace("/", ".") for p in SOURCES if p.name != "__main__.py"]
    light = [m for m in modules if m.startswith(("gateway.", "services.core.")) or m == "services.cli.main"]
    program = f"""
import importlib, sys
for module in {light!r}:
    importlib.import_module(module)
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_of_ours_reads_the_environment_or_opens_a_file_on_import() -> None:
    modules = [name(p).removesuffix(".py").replace("/", ".") for p in SOURCES if p.name != "__main__.py"]
    program = f"""
import importlib, os, sys

OURS = {[str(ROOT / "services"), str(ROOT / "gateway")]!r}

def asker():
    # the innermost frame that is ours or a library's decides who asked; importing itself opens files all the time
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(tuple(OURS)):
            return f"{{file}}:{{frame.f_lineno}}"
        if "site-packages" in file or "importlib" in file:
            return None
        frame = frame.f_back
    return None

found = []
def watch(event, arguments):
    if event == "open" and (where := asker()):
        found.append(f"{{where}} opens {{arguments[0]}}")
sys.addaudithook(watch)

class Watched(type(os.environ)):
    def __getitem__(self, key):
        if where := asker():
            found.append(f"{{where}} reads {{key}}")
        return super().__getitem__(key)
os.environ.__class__ = Watched

for module in {modules!r}:
    importlib.import_module(module)
print("\\n".join(found))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
