"""An installation without some of the extras, or of the gateway's image, works or names what to install."""

import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from services.cli.delegation import MODULES
from services.cli.doctor.installation import TOOLS
from services.cli.main import COMMANDS

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What the gateway's image leaves out.
SERVICES = [f"services.{name}" for name in ("nn", "jobs", "predict", "generate", "embed", "score")]


# Of two packages with the same modules only one can be installed.
INSTEAD = {"faiss-cpu": "faiss-gpu", "faiss-gpu": "faiss-cpu"}
OWNERS = {module: {canonicalize_name(each) for each in owners} for module, owners in packages_distributions().items()}


def imported_by(extra: str) -> set[str]:
    """Return the import names of the packages of an extra and of those that it includes."""
    names: set[str] = set()
    for requirement in map(Requirement, PROJECT["optional-dependencies"].get(extra, ())):
        if requirement.name == "fovea-serving":
            names |= set().union(*map(imported_by, requirement.extras))
        else:
            name = canonicalize_name(requirement.name)
            packages = {name, INSTEAD.get(name, name), *packages_of_extras(requirement)}
            names |= {module for module, owners in OWNERS.items() if packages & owners}
    return names


def packages_of_extras(asked: Requirement) -> set[str]:
    """Return the packages that the extras of a requirement bring, such as psycopg's pool."""
    needed = [Requirement(line) for line in requires(asked.name) or ()] if asked.extras else []
    return {
        canonicalize_name(one.name)
        for one in needed
        if one.marker is not None and any(one.marker.evaluate({"extra": extra}) for extra in asked.extras)
        if not one.marker.evaluate({"extra": ""})
    }


EXTRAS = set().union(*map(imported_by, ("gateway", "evaluate", "search")))
GATEWAY_ONLY = [*EXTRAS - imported_by("gateway"), *SERVICES]


def fovea(missing: list[str], *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.cli.without_packages", ",".join(missing), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"HOME": str(home), "PATH": "", "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
    )


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("train focallens --help", "train"),
        ("train distill --help", "train"),
        ("train fsc-clip --help", "train"),
        ("curate refine --help", "train"),
        ("evaluate focallens --help", "evaluate"),
        ("evaluate litm --help", "evaluate"),
        ("evaluate distill --help", "evaluate"),
        ("evaluate compositionality --help", "evaluate"),
        ("evaluate suite --help", "evaluate"),
        ("curate audit --help", "evaluate"),
        ("curate measure --help", "evaluate"),
        ("distill extract --help", "predict"),
        ("distill decisions --help", "train"),
        ("curate generate --help", "score"),
        ("calibrate --help", "generate"),
        ("embed-bulk --help", "embed"),
        ("collections --help", "embed"),
        ("keys create --help", "gateway"),
        *((f"serve {name}", name) for name in MODULES),
    ],
)
def test_a_command_whose_extra_is_missing_names_the_extra_in_one_line(command: str, extra: str, tmp_path: Path) -> None:
    ended = fovea([*EXTRAS], *command.split(), home=tmp_path)
    [line] = ended.stderr.splitlines()
    image = ", or use the image fovea-jobs" if extra in ("train", "evaluate") else ""
    assert line.endswith(f" is not installed; pip install 'fovea-serving[{extra}]'{image}")
    assert line.startswith(f"fovea {' '.join(word for word in command.split() if word not in ('--help', 'create'))}: ")
    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.mark.parametrize(
    "command",
    [
        "embed-bulk . --output out --ray local",
    ],
)
def test_a_job_on_ray_without_it_names_its_extra(command: str, tmp_path: Path) -> None:
    ended = fovea(["ray"], *command.split(), home=tmp_path)
    name = " ".join(command.split()[:1] if command.startswith("embed") else command.split()[:2])
    assert ended.stderr == f"fovea {name}: ray is not installed; pip install 'fovea-serving[ray]'\n"
    assert ended.returncode == 1


def test_commands_of_services_import_nothing_that_only_jobs_have() -> None:
    """So they run in the images that serve."""
    serving = set().union(*map(imported_by, ("gateway", "cluster", "telemetry", *MODULES)))
    modules = sorted(
        module
        for commands in COMMANDS.values()
        for module, extra, _ in commands.values()
        if extra not in ("train", "evaluate")
    )
    program = f"""
import sys
from importlib import import_module
from tests.cli.without_packages import Missing
sys.meta_path.insert(0, Missing({sorted(imported_by("evaluate") - serving)}))
for module in {[*modules, "services.jobs.imports.plan", "services.generate.imports.language_model"]}:
    import_module(module)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_up_without_any_extra_names_the_extra_of_each_process(tmp_path: Path) -> None:
    ended = fovea([*EXTRAS], "up", home=tmp_path)
    assert ended.returncode == 1
    assert [line.rpartition("; ")[2] for line in ended.stderr.splitlines()] == [
        f"pip install 'fovea-serving[{name}]'" for name in MODULES
    ]


def test_what_up_looks_for_is_what_the_extras_install() -> None:
    for name, modules in MODULES.items():
        installed = set().union(*(OWNERS[module] for module in imported_by(name)))
        assert set().union(*(OWNERS[module] for module in modules)) == installed


@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_one_extra_installs_all_that_up_starts_and_collections(extra: str) -> None:
    assert imported_by(extra) >= set().union(*map(imported_by, ("gateway", "search", *MODULES)))


def test_what_the_doctor_looks_for_is_what_the_extras_install() -> None:
    for extra, modules in TOOLS.items():
        installed = set().union(*(OWNERS[module] for module in imported_by(extra)))
        looked_for = set().union(*(OWNERS[module.partition(".")[0]] for module in modules))
        assert looked_for <= installed, extra


@pytest.mark.parametrize("arguments", ["--help", "--version", "up --help", "serve --help", "train", "store --help"])
def test_what_needs_no_extra_works_with_the_core_alone(arguments: str, tmp_path: Path) -> None:
    ended = fovea([*EXTRAS, *SERVICES], *arguments.split(), home=tmp_path)
    assert ended.stdout or "Usage: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_store_is_listed_with_the_core_alone(tmp_path: Path) -> None:
    assert fovea([*EXTRAS], "store", "ls", home=tmp_path).returncode == 0
    assert fovea([*EXTRAS, *SERVICES], "store", "ls", home=tmp_path).returncode == 0


def test_keys_are_made_listed_and_revoked_where_only_the_gateway_is_installed(tmp_path: Path) -> None:
    made = fovea(GATEWAY_ONLY, "keys", "create", "--name", "website", "--scope", "embed", home=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    assert "website" in fovea(GATEWAY_ONLY, "keys", "list", home=tmp_path).stdout
    assert fovea(GATEWAY_ONLY, "keys", "revoke", "website", home=tmp_path).returncode == 0


def test_a_job_that_the_gateways_image_leaves_out_is_told_in_one_line(tmp_path: Path) -> None:
    ended = fovea(GATEWAY_ONLY, "train", "fsc-clip", "--help", home=tmp_path)
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert line.endswith("pip install 'fovea-serving[train]', or use the image fovea-jobs")
