"""Whether what manifests name exists in the code or in another manifest; each check returns what does not."""

import importlib
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from typer.main import get_command

from gateway.keys.key_files import ENTRY
from gateway.settings import GatewaySettings
from services.cli.programs import PACKAGES
from services.core.http.health import PROBE_PATHS
from services.core.settings import ProcessSettings, SettingsError, read_settings
from services.embed.settings import EmbedSettings
from services.generate.settings import GenerateSettings
from services.predict.settings import PredictSettings
from services.score.settings import ScoreSettings
from tests.deploy.kubernetes_manifests import JOBS, README, ROOT, SECRETS, SITE, Manifests, Object, Pod, selects

SETTINGS: dict[str, type[ProcessSettings]] = {
    "gateway": GatewaySettings,
    "predict": PredictSettings,
    "generate": GenerateSettings,
    "embed": EmbedSettings,
    "score": ScoreSettings,
}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
# Which setting names the file of a mounted Secret, by its volume.
FILES_OF_SECRETS = {"keys": "FOVEA_GATEWAY_KEYS_FILE", "signing": "FOVEA_SIGNING_SECRET_FILE"}
# Of the sidecar beside generate.
VLLM_PORT = 8000
# What a pod's process says of itself at which route.
PROBES = {"startupProbe": "/startupz", "readinessProbe": "/readyz", "livenessProbe": "/livez"}


@contextmanager
def only_environment(environment: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update({**environment, "HOME": environment.get("HOME", "/nonexistent")})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def settings_of(manifests: Manifests, pod: Pod) -> Any:
    """Return the settings that the pod's process reads at its start. Raises SettingsError where it would not start."""
    with only_environment(manifests.environment(pod)):
        return read_settings(SETTINGS[pod.container["command"][2]])


def check_settings(manifests: Manifests) -> list[str]:
    wrong = []
    for pod in manifests.processes():
        try:
            settings_of(manifests, pod)
        except SettingsError as refused:
            wrong.append(f"{pod.name}: {refused}")
    return wrong


def check_commands(manifests: Manifests) -> list[str]:
    wrong = []
    for pod in manifests.pods():
        match pod.container["command"]:
            case ["fovea", "serve", name]:
                if name not in PACKAGES or name != pod.program:
                    wrong.append(f"{pod.name}: fovea serve {name}")
            case ["torchrun", *arguments]:
                module, *command = arguments[arguments.index("-m") + 1 :]
                wrong += [f"{pod.name}: {problem}" for problem in _check_command(module, *command)]
            case ["fovea", "store", *command]:
                wrong += [f"{pod.name}: {problem}" for problem in _check_command("services.cli.store", *command)]
            case ["fovea", "collections", *command]:
                module = "services.embed.transfer.command"
                wrong += [f"{pod.name}: {problem}" for problem in _check_command(module, *command)]
            case [program, *_]:
                if program != "redis-server":
                    wrong.append(f"{pod.name}: {program}")
    return wrong


def _check_command(module: str, *arguments: str) -> list[str]:
    command: Any = get_command(importlib.import_module(module).app)
    if hasattr(command, "commands"):
        name, arguments = arguments[0], arguments[1:]
        if name not in command.commands:
            return [f"{module} has no command {name}"]
        command = command.commands[name]
    known = {name for parameter in command.params for name in parameter.opts}
    required = {parameter.opts[0] for parameter in command.params if parameter.required}
    options = {argument.split("=")[0] for argument in arguments if argument.startswith("--")}
    unknown = [f"{module} has no {option}" for option in sorted(options - known)]
    return unknown + [f"{module} needs {option}" for option in sorted(required - options) if option.startswith("--")]


def check_ports_and_probes(manifests: Manifests) -> list[str]:
    wrong = []
    for pod in manifests.processes():
        settings = settings_of(manifests, pod)
        if settings.host != "0.0.0.0" or pod.ports != {"http": settings.port}:
            wrong.append(f"{pod.name} listens on {settings.host}:{settings.port}, not on {pod.ports}")
        for probe, path in PROBES.items():
            asked = pod.container[probe]["httpGet"]
            if asked["path"] != path or path not in PROBE_PATHS:
                wrong.append(f"{pod.name}: {probe} asks {asked['path']}")
            if asked["port"] not in pod.ports:
                wrong.append(f"{pod.name}: {probe} asks the port {asked['port']}")
    return wrong


def check_services(manifests: Manifests) -> list[str]:
    """Services lead to pods that have their ports."""
    wrong = []
    for service in manifests.of_kind("Service"):
        name, spec = service["metadata"]["name"], service["spec"]
        behind = [pod for pod in manifests.pods() if selects({"matchLabels": spec["selector"]}, pod.labels)]
        if not behind:
            wrong.append(f"Service {name} selects no pod")
        for port in spec["ports"]:
            target = port.get("targetPort", port["port"])
            for pod in behind:
                # A headless Service translates no port: what is asked is what the pod must listen on.
                if pod.ports and pod.ports.get(target) != port["port"]:
                    wrong.append(f"Service {name}: {pod.name} has no port {target} with number {port['port']}")
    return wrong


def check_addresses(manifests: Manifests) -> list[str]:
    """Check that the gateways' upstreams and Redis are Services of these manifests, for the intended programs."""
    wrong = []
    for pod in manifests.processes():
        settings = settings_of(manifests, pod)
        asked = [(settings.redis_url, "redis")] if settings.redis_url else []
        if isinstance(settings, GatewaySettings):
            asked += [(url, program) for program, urls in settings.urls().items() for url in urls]
            asked += [(url, program) for program, urls in settings.canary_urls.items() for url in urls]
            asked += [(url, "embed") for url in settings.collections_urls]
        for url, program in asked:
            parts = urlsplit(url)
            wrong += [
                f"{pod.name}: {url} {problem}"
                for problem in _check_service_port(manifests, parts.hostname or "", parts.port, program)
            ]
    return wrong


def _check_service_port(manifests: Manifests, name: str, port: int | None, program: str) -> Iterator[str]:
    service = manifests.get("Service", name)
    if service is None:
        yield "names no Service"
        return
    if port not in [one["port"] for one in service["spec"]["ports"]]:
        yield "names no port of the Service"
    behind = [pod for pod in manifests.pods() if selects({"matchLabels": service["spec"]["selector"]}, pod.labels)]
    if {pod.program for pod in behind} != {program}:
        yield f"leads to {', '.join(pod.name for pod in behind) or 'nothing'}, not to {program}"


def check_selectors(manifests: Manifests) -> list[str]:
    """Check that every selector selects pods, and that no pod belongs to two workloads."""
    wrong = []
    pods = manifests.pods()
    for pod in pods:
        selector = pod.workload["spec"].get("selector")
        if selector is not None:
            selected = [other.name for other in pods if selects(selector, other.labels)]
            if selected != [pod.name]:
                wrong.append(f"{pod.name} selects the pods of {selected}")
        for constraint in pod.spec.get("topologySpreadConstraints", ()):
            if not selects(constraint["labelSelector"], pod.labels):
                wrong.append(f"{pod.name} spreads other pods than its own")
        if pod.workload["kind"] == "StatefulSet" and not manifests.get("Service", pod.workload["spec"]["serviceName"]):
            wrong.append(f"{pod.name} names no Service")
    for kind, field in (
        ("PodDisruptionBudget", "selector"),
        ("NetworkPolicy", "podSelector"),
        ("PodMonitor", "selector"),
    ):
        for one in manifests.of_kind(kind):
            namespace = one["metadata"].get("namespace", "fovea")
            own = [pod for pod in (*pods, *manifests.operated()) if pod.namespace == namespace]
            if not any(selects(one["spec"][field], pod.labels) for pod in own):
                wrong.append(f"{kind} {one['metadata']['name']} selects no pod")
    return wrong


def check_images(manifests: Manifests) -> list[str]:
    """Check that images are those that the Site names, or built here: of this version, on the node, never fetched."""
    wrong = []
    for pod in manifests.pods():
        if pod.program != "redis":
            kind = {"gateway": "gateway", "train": "jobs"}.get(pod.program, "service")
            built = f"localhost/fovea-{kind}:{VERSION}"
            is_built = pod.container.get("imagePullPolicy") == "Never"
            expected = built if is_built else {**JOBS["images"], **SITE["images"]}[kind]
        else:
            expected = pod.container["image"]
        if pod.container["image"] != expected:
            wrong.append(f"{pod.name} runs {pod.container['image']}, not {expected}")
        if ":" not in pod.container["image"]:
            wrong.append(f"{pod.name}: {pod.container['image']} has no tag")
    return wrong


def check_folders(manifests: Manifests) -> list[str]:
    """Check that a disk is mounted where a process writes, and so is the keys file, as a whole Secret."""
    wrong = []
    for pod in manifests.processes():
        settings = settings_of(manifests, pod)
        mounts = {PurePosixPath(mount["mountPath"]): mount for mount in pod.container.get("volumeMounts", ())}
        volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", ())}
        claims = {claim["metadata"]["name"] for claim in pod.workload["spec"].get("volumeClaimTemplates", ())}
        if lost := [one["name"] for one in mounts.values() if one["name"] not in volumes.keys() | claims]:
            wrong.append(f"{pod.name} mounts {lost}, which is no volume")
        written = ["collections_dir"]
        if getattr(settings, "checkpoint_cache_max_bytes", 0):
            written.append("checkpoint_cache_dir")
        for field in written:
            if hasattr(settings, field) and PurePosixPath(getattr(settings, field)) not in mounts:
                wrong.append(f"{pod.name}: nothing is mounted at {getattr(settings, field)}")
        for name, volume in volumes.items():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim is not None and manifests.get("PersistentVolumeClaim", claim) is None:
                wrong.append(f"{pod.name}: the volume {name} names no claim")
        if getattr(settings, "store_url", "").startswith("file:///var") and not any(
            settings.store_url == f"file://{path}" for path in mounts
        ):
            wrong.append(f"{pod.name}: nothing is mounted at {settings.store_url}")
        if keys := getattr(settings, "keys_file", None):
            mount = mounts.get(PurePosixPath(keys.parent), {})
            if (
                "subPath" in mount
                or volumes.get(mount.get("name"), {}).get("secret", {}).get("secretName") != "fovea-keys"
            ):
                wrong.append(f"{pod.name}: {keys} is no file of the Secret fovea-keys")
    return wrong


def secrets(manifests: Manifests) -> set[tuple[str, str]]:
    """Every Secret and key of it that a manifest needs, but for those that operators make."""
    needed = set()
    for pod in manifests.pods():
        for one in pod.container.get("env", ()):
            reference = one.get("valueFrom", {}).get("secretKeyRef")
            needed |= {(reference["name"], reference["key"])} if reference else set()
        for volume in pod.spec.get("volumes", ()):
            if "secret" in volume:
                file = PurePosixPath(manifests.environment(pod)[FILES_OF_SECRETS[volume["name"]]])
                needed.add((volume["secret"]["secretName"], file.name))
    for monitor in manifests.of_kind("PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            credentials = endpoint.get("authorization", {}).get("credentials")
            needed |= {(credentials["name"], credentials["key"])} if credentials else set()
    for authentication in manifests.of_kind("TriggerAuthentication"):
        needed |= {(one["name"], one["key"]) for one in authentication["spec"]["secretTargetRef"]}
    for entry in manifests.of_kind("Gateway"):
        for listener in entry["spec"]["listeners"]:
            needed |= {(ref["name"], "tls.crt") for ref in listener.get("tls", {}).get("certificateRefs", ())}
    return needed - SECRETS.keys()


def secrets_that_the_readme_makes() -> set[tuple[str, str]]:
    text = README.read_text().replace("\\\n", " ")
    made = set()
    for kind, name, options in re.findall(r"kubectl -n fovea create secret (generic|tls) (\S+) (.*)", text):
        keys = re.findall(r"--from-(?:file|literal)=([^=\s]+)=", options)
        made |= {(name, key) for key in (keys if kind == "generic" else ["tls.crt"])}
    return made | {(name, ENTRY) for name in re.findall(r"fovea keys create --secret fovea/(\S+)", text)}


def check_routes(manifests: Manifests, known_paths: set[str]) -> list[str]:
    """Ways in lead to Services with that port, and paths of their own are the gateway's."""
    wrong = []
    for route in manifests.of_kind("HTTPRoute"):
        for parent in route["spec"]["parentRefs"]:
            entry = manifests.get("Gateway", parent["name"])
            if parent["sectionName"] not in [
                one["name"] for one in (entry or {"spec": {"listeners": []}})["spec"]["listeners"]
            ]:
                wrong.append(f"{route['metadata']['name']}: {parent} is no listener")
        for rule in route["spec"]["rules"]:
            wrong += [
                f"{match['path']['value']} is no path of the gateway"
                for match in rule.get("matches", ())
                if match["path"]["value"] not in known_paths
            ]
            for backend in rule.get("backendRefs", ()):
                problems = _check_service_port(manifests, backend["name"], backend["port"], "gateway")
                wrong += [f"{backend['name']}:{backend['port']} {problem}" for problem in problems]
    return wrong


def check_policy_ports(manifests: Manifests) -> list[str]:
    """Ports in NetworkPolicies are some that a selected pod has, or those of DNS, HTTPS and the API server."""
    pods = (*manifests.pods(), *manifests.operated())
    known = {port for pod in pods for port in pod.ports.values()} | {53, 5353, 443, 6443, VLLM_PORT}
    names = {name for pod in pods for name in pod.ports}
    wrong = []
    for policy in manifests.of_kind("NetworkPolicy"):
        for port in _policy_ports(policy):
            if (isinstance(port, str) and port not in names) or (isinstance(port, int) and port not in known):
                wrong.append(f"NetworkPolicy {policy['metadata']['name']}: nobody has the port {port}")
    return wrong


def _policy_ports(policy: Object) -> Iterator[int | str]:
    for rule in (*policy["spec"].get("ingress", ()), *policy["spec"].get("egress", ())):
        for one in rule.get("ports", ()):
            yield one["port"]
            yield one.get("endPort", one["port"])
