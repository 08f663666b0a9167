"""Provoke the faults that the alerts warn of, record the series, and write monitoring/alerts_test.yml.

Run as `python -m tests.monitoring.record_series`, which takes about ten minutes. With names of recordings as arguments
it records only these again.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.contract.processes import SERVICES
from tests.contract.running_fovea import Fovea, running_fovea, settings_of_a_test
from tests.core.redis_server import RedisServer, redis_executables
from tests.monitoring.faulty_predict import FAULTS
from tests.monitoring.load import ASK, Client
from tests.monitoring.prometheus_server import CHART, MONITORING, Prometheus, moved_configuration, running_prometheus
from tests.monitoring.promql import metrics_in
from tests.monitoring.recording import SCRAPED_S, WRITTEN_S, Series, notation, recorded, values_notation
from tests.monitoring.scenarios import (
    SMALL_BATCH,
    Answering,
    Embedding,
    Expected,
    Predicting,
    Scenario,
    load,
)

TARGET = MONITORING / "alerts_test.yml"
HEADER = f"""\
# The alert rules against series that a Prometheus recorded of a running Fovea; `promtool test rules` runs it.
# Written by `python -m tests.monitoring.record_series`: what was scraped every {SCRAPED_S} s stands here as if every
# {WRITTEN_S} s. Counters that did not move are left out.
"""
FIRING = 'group by (alertname, job, service, name) (ALERTS{alertstate="firing"})'


def alert_metrics() -> set[str]:
    rules = yaml.safe_load((CHART / "alerts.yml").read_text())["groups"][0]["rules"]
    return set().union(*(metrics_in(rule["expr"]) for rule in rules))


def unit_test(name: str, series: Sequence[Series], raises: Sequence[Expected]) -> dict[str, Any]:
    """One group of promtool's file: all alerts that fire when the recording ends, and no others."""
    length = max((len(one.values) for one in series), default=20)
    samples = [
        {"labels": notation_of_alert(expected), "value": 1} for expected in sorted(raises, key=lambda one: one.alert)
    ]
    return {
        "name": name,
        "interval": f"{WRITTEN_S}s",
        "input_series": [{"series": notation(one.labels), "values": values_notation(one.values)} for one in series],
        "promql_expr_test": [
            {"expr": FIRING, "eval_time": f"{(length - 1) * WRITTEN_S}s", "exp_samples": samples},
        ],
    }


def notation_of_alert(expected: Expected) -> str:
    labels = {"alertname": expected.alert, **expected.labels}
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


class Recorder:
    """Runs scenarios beside a Prometheus and keeps what it recorded of each."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}

    def record(self, prometheus: Prometheus, scenario: Scenario) -> None:
        prometheus.wait_for_scrapes()
        since = time.time()
        until = scenario.run()
        everything = recorded(prometheus, alert_metrics(), since, until)
        series = [one for one in everything if one.labels.get("instance") not in scenario.without]
        self.tests[scenario.name] = unit_test(scenario.name, series, scenario.raises)
        self.write()
        print(f"{scenario.name}: {len(series)} series over {until - since:.0f} s", flush=True)

    def write(self) -> None:
        """Write new recordings beside the earlier ones that are kept."""
        before = yaml.safe_load(TARGET.read_text())["tests"] if TARGET.exists() else []
        tests = {test["name"]: test for test in before} | self.tests
        body = {
            "rule_files": ["../charts/fovea/alerts.yml"],
            "evaluation_interval": f"{WRITTEN_S}s",
            "tests": list(tests.values()),
        }
        TARGET.write_text(HEADER + yaml.safe_dump(body, sort_keys=False, width=4000))


@contextmanager
def scraping(folder: Path, fovea: Fovea, more: dict[str, int] | None = None) -> Iterator[Prometheus]:
    """`more` are ports of further embed processes, by the name that they get as `instance`."""
    configuration = moved_configuration(fovea.addresses(), interval_s=SCRAPED_S)
    for scraped in configuration["scrape_configs"]:
        if scraped["job_name"] == "embed":
            for instance, port in (more or {}).items():
                group = {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": instance}}
                scraped["static_configs"].append(group)
    with running_prometheus(folder, configuration) as prometheus:
        prometheus.wait_for(set(fovea.addresses()) | set(more or {}))
        yield prometheus


def record_healthy(recorder: Recorder, folder: Path) -> None:
    with running_fovea(folder / "fovea", *SERVICES) as fovea, scraping(folder / "prometheus", fovea) as prometheus:

        def ask_everything(client: Client) -> None:
            for name in SERVICES:
                ASK[name](client)

        def run() -> float:
            with load(lambda: Client(fovea.url), ask_everything):
                time.sleep(40)
                return time.time()

        recorder.record(prometheus, Scenario("all is well", run, []))


def record_answering(recorder: Recorder, folder: Path) -> None:
    with (
        running_fovea(folder / "fovea", "generate", settings=SMALL_BATCH) as fovea,
        scraping(folder / "prometheus", fovea) as prometheus,
    ):
        answering = Answering(fovea)
        both = ("gateway", "generate")
        # The gateway hangs up a moment before the service would say 504.
        late = [Expected("FoveaErrors", {"job": "gateway"})]
        late += [Expected("FoveaDeadlinesMissed", {"job": job}) for job in both]
        recorder.record(prometheus, Scenario("deadlines are short", answering.deadlines_are_short, late))
        full = ("FoveaGenerateWaiting", "FoveaOldestQueued", "FoveaQueueFull")
        much = [
            *(Expected("FoveaErrors", {"job": job}) for job in both),
            *(Expected(alert, {"job": "generate"}) for alert in full),
        ]
        recorder.record(prometheus, Scenario("generate is asked too much", answering.too_many_ask, much))


def record_predicting(recorder: Recorder, folder: Path) -> None:
    faults = folder / "faults"
    faults.mkdir()
    fovea = Fovea(folder, settings_of_a_test(folder))
    try:
        predict = fovea.start("predict", {FAULTS: str(faults)}, module="tests.monitoring.faulty_predict")
        for process in (predict, fovea.start_gateway()):
            process.wait_until_ready()
        with scraping(folder / "prometheus", fovea) as prometheus:
            predicting = Predicting(fovea, faults)
            job = {"job": "predict"}
            out_of_memory = [Expected("FoveaOutOfMemory", job)]
            recorder.record(prometheus, Scenario("memory runs out", predicting.memory_runs_out, out_of_memory))
            stalled = [Expected("FoveaComputeThreadStalled", job), Expected("FoveaOldestQueued", job)]
            recorder.record(prometheus, Scenario("a thread hangs", predicting.thread_hangs, stalled))
    finally:
        fovea.kill()


def record_embedding(recorder: Recorder, folder: Path) -> None:
    redis = RedisServer(next(iter(redis_executables().values())), None)
    redis.start()
    environment = {**settings_of_a_test(folder), "FOVEA_STORE_POLL_S": "0.5", "FOVEA_REDIS_URL": redis.url}
    fovea = Fovea(folder, environment)
    embedding = Embedding(fovea, redis)
    embed, gateway, name = {"job": "embed"}, {"job": "gateway", "service": "embed"}, "focallens-shapes"
    not_ready = Expected("FoveaModelNotReady", {**embed, "name": name})
    refused = Expected("FoveaCheckpointRefused", {**embed, "name": name})
    third = ("embed-3:8103",)
    down, ejected = Expected("FoveaTargetDown", embed), Expected("FoveaAddressEjected", gateway)
    scenarios = [
        Scenario("nothing is ready", embedding.nothing_is_ready, [not_ready]),
        Scenario("Redis stops", embedding.redis_stops, [Expected("FoveaRedisFailing", embed)], third),
        Scenario("images come too fast", embedding.images_come_too_fast, [Expected("FoveaIndexLag", embed)], third),
        Scenario("a version is broken", embedding.version_is_broken, [refused], third),
        Scenario("an address dies", embedding.address_dies, [down, ejected], third),
        Scenario(
            "a service stops",
            embedding.service_stops,
            [
                down,
                ejected,
                Expected("FoveaServiceUnavailable", {"service": "embed"}),
                Expected("FoveaErrors", {"job": "gateway"}),
            ],
            third,
        ),
        Scenario(
            "a process restarts",
            embedding.process_restarts,
            [Expected("FoveaRestarting", {"job": "gateway"})],
            (*third, "embed:8103", "embed-2:8103"),
        ),
    ]
    try:
        embedding.start()
        ports = {f"{name}:8103": fovea.processes[name].port for name in ("embed-2", "embed-3")}
        with scraping(folder / "prometheus", fovea, ports) as prometheus:
            for scenario in scenarios:
                recorder.record(prometheus, scenario)
    finally:
        fovea.kill()
        redis.stop()


RECORDINGS: dict[str, Callable[[Recorder, Path], None]] = {
    "healthy": record_healthy,
    "embedding": record_embedding,
    "answering": record_answering,
    "predicting": record_predicting,
}


def main(names: Sequence[str]) -> None:
    """Without a gateway there is nothing to scrape: that series is not recorded, but missing."""
    recorder = Recorder()
    gone = Expected("FoveaGatewayDown", {"job": "gateway"})
    recorder.tests["there is no gateway"] = unit_test("there is no gateway", [], [gone])
    for name, record in RECORDINGS.items():
        if not names or name in names:
            with TemporaryDirectory() as folder:
                record(recorder, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
