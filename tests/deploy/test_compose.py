"""docker-compose.yml is one that compose accepts, and every name in it is one that the code or a file has."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from services.core.http.signatures import parse_secrets
from services.core.serving.server import ACCEPT_GRACE_S, IDLE_GRACE_S
from services.core.settings import read_settings
from services.core.store.objects import Objects
from tests.core import postgres_server
from tests.deploy.compose import (
    EXAMPLE,
    FILE,
    FILLED,
    GIVEN,
    IMAGES,
    PROCESS,
    SERVICES,
    SUGGESTED,
    TEXT,
    VARIABLE,
    Refused,
    environment,
    interpolated,
    mounts,
    port_of,
    seconds,
)
from tests.deploy.dockerfiles import ROOT
from tests.deploy.kubernetes_manifests import deployment
from tests.deploy.test_images import writable
from tests.documentation.reference import PROCESSES

SECRET = re.compile(r"PASSWORD|SECRET|ACCESS_KEY|API_KEY")
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("localhost/fovea-")]
ON_GPUS = [name for name in OURS if name.endswith("-gpu")]
# What a service is told on a GPU alone.
OF_GPUS = ("FOVEA_GENERATE_ENGINE", "FOVEA_GENERATE_VLLM_", "FOVEA_EMBED_INDEX_DEVICE")
LISTENING = pytest.mark.parametrize("name", PROCESS)
EVERY = pytest.mark.parametrize("name", SERVICES)


def test_the_file_is_one_by_composes_own_schema() -> None:
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed (pip install check-jsonschema)")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, ROOT / "docker-compose.yml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_process_runs_in_it_on_cpus_and_on_gpus() -> None:
    services = {"predict", "generate", "embed", "score"}
    expected = {name: name for name in ("gateway", *services)} | {f"{name}-gpu": name for name in services}
    assert expected | {"embed-shared": "embed"} == PROCESS
    for name in services:
        on_gpu = SERVICES[f"{name}-gpu"]
        assert SERVICES[name]["profiles"] == (["cpu"] if name == "embed" else ["cpu", "cluster"])
        assert on_gpu["profiles"] == ["gpu"]
        assert [on_gpu[key] for key in ("command", "volumes")] == [
            SERVICES[name][key] for key in ("command", "volumes")
        ]
        of_gpu = {key: value for key, value in on_gpu["environment"].items() if not key.startswith(OF_GPUS)}
        assert of_gpu == SERVICES[name]["environment"]
        # So that the gateway finds it under the same name.
        assert on_gpu["networks"] == {"inside": {"aliases": [name]}}
        assert SERVICES[name]["networks"] == ["inside"]


@pytest.mark.parametrize("variables", [FILLED, FILLED | SUGGESTED], ids=["as given", "as suggested"])
@LISTENING
def test_each_process_starts_with_the_settings_that_it_is_given(
    name: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No setting is misspelt, meant for another process or out of range, and none moves the port."""
    for variable in [known for known in os.environ if known.startswith("FOVEA_")]:
        monkeypatch.delenv(variable)
    for variable, value in environment(name, variables).items():
        monkeypatch.setenv(variable, value)
    settings = read_settings(PROCESSES[PROCESS[name].upper()])
    assert settings.port == port_of(PROCESS[name])
    assert settings.host == "0.0.0.0"


def test_settings_that_the_example_does_not_show_come_from_a_file_that_may_be_absent() -> None:
    for name in PROCESS:
        assert SERVICES[name]["env_file"] == [{"path": "settings.env", "required": False}]
    passed_on = {variable for name in PROCESS for variable in SERVICES[name]["environment"]}
    assert {variable for variable in SUGGESTED if variable.startswith("FOVEA_")} <= passed_on


def test_settings_for_one_process_reach_only_that_one() -> None:
    """The code ignores another process's settings, so that one without effect would go unnoticed."""
    for name, process in PROCESS.items():
        others = tuple(f"FOVEA_{other}_" for other in PROCESSES if other != process.upper())
        declared = SERVICES[name]["environment"]
        assert not [variable for variable in declared if variable.startswith(others)]


def test_the_gateway_asks_each_service_where_it_listens() -> None:
    found = {name: value for name, value in environment("gateway").items() if name.endswith("_URLS")}
    services = ("predict", "generate", "embed", "score")
    assert found == {f"FOVEA_GATEWAY_{name.upper()}_URLS": f"http://{name}:{port_of(name)}" for name in services}


def test_only_the_gateway_can_be_reached_from_other_machines() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.pop("gateway") == [f"127.0.0.1:8080:{port_of('gateway')}"]
    assert published.keys() == {"prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert FILE["networks"]["inside"] == {"internal": True}
    assert [name for name in SERVICES if "outside" in SERVICES[name].get("networks", [])] == ["gateway", *published]


@EVERY
def test_nothing_has_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    # What brings the driver into a container writes to its root file system.
    assert service["read_only"] is (name not in ON_GPUS)
    assert not service.keys() & {"privileged", "cap_add", "pid", "ipc", "devices"}


def test_each_start_waits_for_what_it_needs_to_be_healthy() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            ends = SERVICES[needed]["healthcheck"] == {"disable": True}
            assert how["condition"] == ("service_completed_successfully" if ends else "service_healthy"), (name, needed)
            assert ends or "test" in SERVICES[needed]["healthcheck"], (name, needed)
    needs = SERVICES["gateway"]["depends_on"]
    assert needs.keys() == {"signing", "redis", *PROCESS} - {"gateway"}
    # Others of the same process are in a profile that is off.
    assert all(needs[name]["required"] is False for name in PROCESS if name != "gateway")


def test_on_gpus_generate_answers_by_a_vllm_with_the_checkpoint_that_it_serves() -> None:
    settings, vllm = environment("generate-gpu"), SERVICES["vllm-gpu"]
    options = dict(option.removeprefix("--").partition("=")[::2] for option in vllm["command"])
    assert settings["FOVEA_GENERATE_ENGINE"] == "vllm"
    assert settings["FOVEA_GENERATE_VLLM_URL"] == f"http://vllm:{options['port']}"
    assert settings["FOVEA_GENERATE_VLLM_MODEL"] == options["served-model-name"]
    assert vllm["networks"] == {"inside": {"aliases": ["vllm"]}}
    fetched = SERVICES["checkpoint-gpu"]
    assert fetched["command"] == [SUGGESTED["FOVEA_GENERATE_MODELS"], options["model"]]
    assert mounts("checkpoint-gpu")["/models"] == mounts("vllm-gpu")["/models"]
    assert "attention-backend" not in options
    assert "deploy" not in SERVICES["generate-gpu"]
    assert environment("embed-gpu")["FOVEA_EMBED_INDEX_DEVICE"] == "cuda"


def test_services_that_share_a_gpu_have_shares_of_it_that_sum_to_no_more_than_all() -> None:
    shares = [float(value) for name, value in SUGGESTED.items() if name.endswith("_MEMORY_SHARE")]
    assert sum(shares) == pytest.approx(1)
    assert len(shares) == 4


@LISTENING
def test_health_is_asked_by_the_probe_of_the_image(name: str) -> None:
    dockerfile, target = IMAGES[SERVICES[name]["image"].partition(":")[0]]
    of_image = json.loads(dockerfile.says(target, "HEALTHCHECK").partition("CMD ")[2])
    assert SERVICES[name]["healthcheck"]["test"] == ["CMD", *of_image]


@LISTENING
def test_nothing_is_ended_before_it_has_drained(name: str) -> None:
    given = environment(name)
    drain_s = float(given["FOVEA_DRAIN_TIMEOUT_S"]) + float(given.get("FOVEA_DRAIN_DELAY_S", 0))
    assert seconds(SERVICES[name]["stop_grace_period"]) > drain_s + ACCEPT_GRACE_S + IDLE_GRACE_S + 5


@pytest.mark.parametrize("name", [name for name in GIVEN if not GIVEN[name]])
def test_compose_refuses_to_start_without_a_secret(name: str) -> None:
    without = {given: value for given, value in FILLED.items() if given != name}
    with pytest.raises(Refused, match=name):
        interpolated(yaml.safe_load(TEXT), without)


def test_no_secret_has_a_default() -> None:
    used = [(found["name"], found["kind"]) for found in VARIABLE.finditer(TEXT) if found["name"]]
    secrets = {name for name, _ in used if SECRET.search(name)}
    assert secrets == {name for name, value in GIVEN.items() if not value}
    assert {kind for name, kind in used if name in secrets} == {"?"}
    held = {key: value for name in SERVICES for key, value in environment_of(name).items() if SECRET.search(key)}
    assert held.pop("FOVEA_SIGNING_SECRET_FILE").startswith("/")
    assert set(held.values()) == {FILLED["REDIS_PASSWORD"]}
    assert all("0a1b" in value for value in held.values())


def environment_of(name: str) -> dict[str, str]:
    return {key: value for key, value in SERVICES[name].get("environment", {}).items() if value is not None}


def test_each_line_of_the_example_is_used_and_shows_the_default() -> None:
    used = {found["name"]: found["rest"] for found in VARIABLE.finditer(TEXT) if found["name"]}
    passed_on = {
        key for name in SERVICES for key, value in SERVICES[name].get("environment", {}).items() if value is None
    }
    assert SUGGESTED.keys() == used.keys() | passed_on | {"COMPOSE_PROFILES"}
    commented_out = SUGGESTED.keys() - GIVEN.keys() - passed_on
    assert {name: SUGGESTED[name] for name in commented_out} == {name: used[name] for name in commented_out}


def test_profiles_are_those_that_the_example_and_the_comments_name() -> None:
    assert {profile for service in SERVICES.values() for profile in service.get("profiles", [])} == {
        "cpu",
        "gpu",
        "cluster",
        "train",
        "keys",
    }
    assert GIVEN["COMPOSE_PROFILES"] == "cpu"


@EVERY
def test_images_are_of_one_exact_version(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].partition(":")
    if name in OURS:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert tag == project["version"] + ("-cuda" if name in ON_GPUS else "")
    else:
        # PostgreSQL's versions have two numbers.
        numbers = 2 if image == "postgres" else 3
        assert re.match(r"v?\d+" + (numbers - 1) * r"\.\d+" + "(-|$)", tag), image


def test_no_image_of_ours_is_looked_for_in_a_registry() -> None:
    programs = {name for name, service in SERVICES.items() if "fovea" in service["image"]}
    assert programs == set(OURS)
    assert {"gateway", "predict", "generate-gpu", "job", "keys"} <= programs
    assert {SERVICES[name]["image"].split("/")[0] for name in programs} == {"localhost"}


@pytest.mark.parametrize("name", [name for name in OURS if "build" in SERVICES[name]])
def test_images_are_built_from_dockerfiles_and_targets_that_exist(name: str) -> None:
    build = SERVICES[name]["build"]
    assert (ROOT / build["dockerfile"]).is_file()
    dockerfile, target = IMAGES[SERVICES[name]["image"].partition(":")[0]]
    assert build.get("target", target) in dockerfile.stages
    assert (build.get("target") == "cuda") is (name in ON_GPUS)


@EVERY
def test_what_is_mounted_exists(name: str) -> None:
    for target, source in mounts(name).items():
        assert target.startswith("/")
        assert (ROOT / source).exists() if source.startswith("./") else source in FILE["volumes"], source


@pytest.mark.parametrize("name", OURS)
def test_a_new_volume_can_be_written_by_the_images_user(name: str) -> None:
    read_only = {mount.split(":")[1] for mount in SERVICES[name].get("volumes", []) if mount.endswith(":ro")}
    assert set(mounts(name)) - read_only <= writable(*IMAGES[SERVICES[name]["image"].partition(":")[0]])


@pytest.mark.parametrize("name", OURS)
def test_what_a_process_writes_outlives_its_container(name: str) -> None:
    folders = {value for variable, value in environment(name).items() if variable.endswith("_DIR")}
    if PROCESS.get(name) != "embed":
        folders.discard("/var/lib/fovea/collections")
    mounted = mounts(name).keys()
    assert all(folder in mounted or str(PurePosixPath(folder).parent) in mounted for folder in folders)


def test_keys_are_read_where_they_are_made_and_the_gateway_cannot_change_them() -> None:
    (made_in,) = mounts("keys").items()
    assert made_in in mounts("gateway").items()
    assert SERVICES["gateway"]["volumes"][0].endswith(":ro")
    variable = "FOVEA_GATEWAY_KEYS_FILE"
    assert environment("gateway")[variable] == environment("keys")[variable]
    assert environment("keys")[variable].startswith(made_in[0] + "/")


def test_services_know_the_gateway_by_a_secret_that_the_first_start_makes_and_later_ones_keep(tmp_path: Path) -> None:
    made = SERVICES["signing"]
    ((folder, volume),) = mounts("signing").items()
    (file,) = made["command"]
    for name in PROCESS:
        assert environment(name)["FOVEA_SIGNING_SECRET_FILE"] == f"/etc/fovea-signing/{file.removeprefix(f'{folder}/')}"
        assert f"{volume}:/etc/fovea-signing:ro" in SERVICES[name]["volumes"]
        assert SERVICES[name]["depends_on"]["signing"] == {"condition": "service_completed_successfully"}
    secrets: list[bytes] = []
    for path in (tmp_path / "secret", tmp_path / "secret", tmp_path / "other"):
        subprocess.run([*made["entrypoint"], str(path)], check=True)
        secrets += parse_secrets(path.read_bytes(), path.name)
        assert path.stat().st_mode & 0o077 == 0
    assert secrets[0] == secrets[1] != secrets[2]


def test_services_use_the_store_and_the_cache_that_are_started() -> None:
    store = SERVICES["store"]
    options = dict(zip(store["command"][:-2:2], store["command"][1:-2:2], strict=True))
    folder = store["command"][-1]
    assert list(mounts("store")) == [folder]
    for name in [*PROCESS, "job", "job-gpu"]:
        if name == "gateway":
            continue
        given = environment(name)
        url = urlsplit(given["FOVEA_STORE_URL"])
        endpoint = dict(parse_qsl(url.query))
        assert endpoint == {"endpoint": f"http://store{options['--port']}", "region": options["--region"]}
        assert f"mkdir -p {folder}/{url.netloc} " in store["entrypoint"][2]
        assert given["AWS_ACCESS_KEY_ID"] == environment("store")["ROOT_ACCESS_KEY_ID"]
        assert given["AWS_SECRET_ACCESS_KEY"] == environment("store")["ROOT_SECRET_ACCESS_KEY"]
        assert Objects(given["FOVEA_STORE_URL"], {}).label == f"s3://{url.netloc}"
    assert store["healthcheck"]["test"][-1] == f"http://127.0.0.1{options['--port']}{options['--health']}"


def test_redis_asks_for_the_password_that_it_is_told() -> None:
    command = SERVICES["redis"]["command"]
    password = command[command.index("--requirepass") + 1]
    assert environment("redis")["REDISCLI_AUTH"] == password
    assert {environment(name)["FOVEA_REDIS_URL"] for name in PROCESS} == {f"redis://:{password}@redis:6379/0"}


def test_two_processes_of_embed_share_collections_in_the_database_that_starts_with_them() -> None:
    shared = SERVICES["embed-shared"]
    with_cluster = {name for name, service in SERVICES.items() if "cluster" in service.get("profiles", ["cluster"])}
    assert {"predict", "generate", "score", "embed-shared", "postgres", "store"} <= with_cluster
    assert not {"embed", *ON_GPUS} & with_cluster
    assert shared["networks"] == {"inside": {"aliases": ["embed"]}}
    assert shared["deploy"] == {"replicas": 2}
    # Each takes a part of the folder, which no process without shared collections may have.
    assert not set(mounts("embed-shared").values()) & set(mounts("embed").values()) - {"checkpoints", "signing"}
    database = urlsplit(environment("embed-shared")["FOVEA_EMBED_COLLECTIONS_URL"])
    given = environment("postgres")
    assert (database.scheme, database.hostname, database.port) == ("postgresql", "postgres", 5432)
    assert (database.username, database.password) == (given["POSTGRES_USER"], given["POSTGRES_PASSWORD"])
    assert database.path == f"/{given['POSTGRES_DB']}"


def test_the_database_is_of_the_version_that_a_cluster_and_the_tests_have() -> None:
    (resource,) = deployment("cluster").of_kind("Cluster")
    (major,) = re.findall(r":(\d+)\.", resource["spec"]["imageName"])
    assert f"-pg{major}-" in SERVICES["postgres"]["image"]
    assert int(major) == postgres_server.MAJOR


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_prometheus_scrapes_every_process_and_finds_its_files() -> None:
    scraped = load("monitoring/prometheus.yml")
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped["scrape_configs"]}
    assert targets == {name: [f"{name}:{port_of(name)}"] for name in set(PROCESS.values())}
    folder = "/etc/prometheus"
    present = {*mounts("prometheus"), SERVICES["prometheus"]["secrets"][0]["target"]}
    (key,) = {job["authorization"]["credentials_file"] for job in scraped["scrape_configs"] if "authorization" in job}
    assert {f"{folder}/{file}" for file in [*scraped["rule_files"], key, "prometheus.yml"]} <= present
    assert SERVICES["prometheus"]["command"][0] == f"--config.file={folder}/prometheus.yml"


def test_secrets_are_kept_where_git_does_not_look() -> None:
    assert FILE["secrets"]["metrics-key"] == {"file": ".fovea/metrics.key"}
    assert {".fovea/", ".env", "settings.env"} <= set((ROOT / ".gitignore").read_text().splitlines())


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    provisioning = "monitoring/grafana/provisioning"
    (datasource,) = load(f"{provisioning}/datasources/prometheus.yml")["datasources"]
    assert datasource["url"] == "http://prometheus:9090"
    (provider,) = load(f"{provisioning}/dashboards/fovea.yml")["providers"]
    assert mounts("grafana")[provider["options"]["path"]] == "./charts/fovea/dashboards"
    assert mounts("grafana")["/etc/grafana/provisioning"] == f"./{provisioning}"


def test_the_example_holds_no_value_for_what_is_secret() -> None:
    assert [line for line in EXAMPLE.splitlines() if SECRET.search(line) and not line.endswith("=")] == []
