"""A service that scales to zero is there while it is in use, gives its GPU back when it is not, and is woken by whoever
asks for it, with and without Prometheus."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.autoscalers import POLL_S, Scaling, Trigger, scaling_of
from benchmarks.autoscaling import BEFORE, READ, at_random, to_zero
from benchmarks.autoscaling import SERVICES as SERVICES_BY_NAME
from benchmarks.scaled_service import ARRIVALS, Faults, Outcome, Service, Simulation, Start, Trace
from gateway.access import digest
from gateway.admission import RECENT_S
from tests.deploy.kubernetes_manifests import Manifests, Object, Pod, deployment, selects
from tests.deploy.kubernetes_names import settings_of
from tests.deploy.kubernetes_queries import check_query, matchers
from tests.gateway.servers import gateway, until

HOUR_S = 3600
SERVICES = ("predict", "score")
START_S = 60.0
# Short requests, of which one pod takes any number.
QUICK = Service(base_s=0.1, each_s=0.0, start_s=START_S, ready_s=480.0)
# What the manifests had before the gateways counted recent requests.
SAMPLED = Scaling((Trigger("load", 32.0),), min_pods=0, cooldown_s=600.0)
BEFORE_AT_ZERO = to_zero(BEFORE, QUICK)


def scaled(service: str) -> Object:
    found = deployment("gpu").get("ScaledObject", service)
    assert found is not None
    spec: Object = found["spec"]
    return spec


def arrivals_trigger(service: str) -> Object:
    (trigger,) = [one for one in scaled(service)["triggers"] if one["name"] == ARRIVALS]
    return dict(trigger)


def every(seconds: int, until: int) -> Trace:
    return requests_at(range(seconds, until, seconds), until)


def requests_at(times: Iterable[int], until: int) -> Trace:
    trace = [0] * until
    for at in times:
        trace[at] += 1
    return trace


def simulate(
    scaling: Scaling, trace: Trace, *, faults: Faults | None = None, seed: int = 0, num_pods: int = 1
) -> Outcome:
    start = Start(num_pods, seed, wait_s=530.0, faults=faults or Faults())
    return Simulation(QUICK, scaling, READ, start).run(trace)


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("every_s", [1, 10])
def test_a_service_in_use_is_never_put_to_zero_within_six_hours(service: str, every_s: int) -> None:
    for trace in (at_random([1 / every_s] * 6 * HOUR_S), every(every_s, 6 * HOUR_S)):
        outcome = simulate(scaling_of(scaled(service)), trace)
        assert outcome.zeroed_at == []
        assert outcome.longest_wait_s == 0


def test_what_is_sampled_at_moments_misses_short_requests_which_is_why_their_arrivals_count() -> None:
    assert len(simulate(SAMPLED, at_random([0.1] * 12 * HOUR_S)).zeroed_at) > 25
    assert len(simulate(SAMPLED, at_random([1.0] * 12 * HOUR_S)).zeroed_at) > 1


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_nobody_asks_for_ten_minutes_goes_to_zero_and_stays_there(service: str) -> None:
    outcome = simulate(scaling_of(scaled(service)), requests_at([1], 12 * HOUR_S))
    (zeroed_at,) = outcome.zeroed_at
    assert 600 < zeroed_at < 600 + 1 + 3 * POLL_S
    assert outcome.woken_at == []


@pytest.mark.parametrize("service", SERVICES)
def test_a_pod_that_nobody_has_asked_yet_stays_as_long_as_it_may_take_to_start(service: str) -> None:
    scaling = scaling_of(scaled(service))
    (zeroed_at,) = simulate(scaling, [0] * HOUR_S).zeroed_at
    assert zeroed_at > scaling.initial_cooldown_s > 480


@pytest.mark.parametrize("service", SERVICES)
def test_a_request_wakes_a_service_at_zero_within_a_poll_also_while_prometheus_is_down(service: str) -> None:
    for faults in (Faults(), Faults(prometheus_away=[(0.0, HOUR_S)])):
        trace = requests_at([100], HOUR_S)
        outcome = simulate(scaling_of(scaled(service)), trace, faults=faults, num_pods=0)
        (woken_at,) = outcome.woken_at
        assert 100 <= woken_at <= 101 + POLL_S
        assert outcome.longest_wait_s <= 1 + POLL_S + START_S


@pytest.mark.parametrize("service", SERVICES)
def test_prometheus_being_down_wakes_nothing_that_nobody_asks_for_and_puts_nothing_to_zero(service: str) -> None:
    """The fallback, two pods at least, would count as active."""
    assert "fallback" not in scaled(service)
    away = Faults(prometheus_away=[(0.0, 2.0 * HOUR_S)])
    for num_pods in (0, 1):
        outcome = simulate(scaling_of(scaled(service)), [0] * HOUR_S, faults=away, num_pods=num_pods)
        assert (outcome.woken_at, outcome.zeroed_at) == ([], [])


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    "faults",
    [Faults(prometheus_away=[(HOUR_S, 2 * HOUR_S)]), Faults(gateways_replaced=[HOUR_S, 2 * HOUR_S])],
    ids=["Prometheus was away", "gateways were replaced"],
)
def test_a_service_that_is_asked_every_few_minutes_outlives_what_fails_around_it(service: str, faults: Faults) -> None:
    for seed in range(5):
        outcome = simulate(scaling_of(scaled(service)), every(240, 4 * HOUR_S), faults=faults, seed=seed)
        assert outcome.zeroed_at == []


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("name", ["`predict` on a CPU", "`score` on a GPU"])
def test_requests_that_wait_eight_minutes_for_the_first_pod_ask_for_no_further_one(service: str, name: str) -> None:
    """One a second: as many wait in the end as a pod has answered a few seconds later."""
    pod = replace(SERVICES_BY_NAME[name], start_s=480.0)
    for seed in range(4):
        trace = at_random([1.0] * 1200, seed=seed)
        for scaling, most in ((scaling_of(scaled(service)), 1), (BEFORE_AT_ZERO, 8)):
            outcome = Simulation(pod, scaling, READ, Start(0, seed, wait_s=530.0)).run(trace)
            assert outcome.most_pods == most
            assert outcome.num_refused == 0


# The trigger that reads the gateways themselves


@pytest.mark.parametrize("service", SERVICES)
async def test_keda_finds_at_a_gateway_that_asks_for_keys_who_waits_for_a_service_without_an_instance(
    service: str,
) -> None:
    metadata = arrivals_trigger(service)["metadata"]
    keys = [{"name": "prometheus", "sha256": digest("fovea-k"), "scopes": ["metrics", service]}]
    ((name, label, value),) = matchers(metadata["valueLocation"])

    async def told() -> float:
        """The number that KEDA reads from the answer."""
        bearer = {"Authorization": "Bearer fovea-k"}
        async with client.get(urlsplit(metadata["url"]).path, headers=bearer) as response:
            assert response.status == 200
            families = list(text_string_to_metric_families(await response.text()))
        (sample,) = [
            one for family in families for one in family.samples if one.name == name and one.labels == {label: value}
        ]
        return float(sample.value)

    async with gateway(keys=keys, wait_for_service_s=3600) as client:
        assert await told() <= float(metadata["activationTargetValue"])
        headers = {"X-API-Key": "fovea-k"}
        waiting = asyncio.create_task(client.post(f"/{service}", data=b"{}", headers=headers))

        async def is_active() -> bool:
            return await told() > float(metadata["activationTargetValue"])

        await until(is_active)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("service", SERVICES)
def test_keda_asks_every_gateway_that_sends_to_the_service_and_with_the_scrapers_key(service: str) -> None:
    manifests = deployment("gpu")
    trigger = arrivals_trigger(service)
    metadata = trigger["metadata"]
    assert (metadata["aggregateFromKubeServiceEndpoints"], metadata["aggregationType"]) == ("true", "sum")
    url = urlsplit(metadata["url"])
    # KEDA takes the first two labels of the name as Service and namespace, and asks the pods behind it at this port.
    name, namespace, *_ = (url.hostname or "").split(".")
    found = manifests.get("Service", name)
    assert found is not None
    assert namespace == "fovea"
    for pod in gateways_before(manifests, service):
        assert selects({"matchLabels": found["spec"]["selector"]}, pod.labels)
        assert url.port == pod.ports["http"]
    assert check_query(metadata["valueLocation"]) == []
    authentication = manifests.get("TriggerAuthentication", trigger["authenticationRef"]["name"])
    assert authentication is not None
    (token,) = authentication["spec"]["secretTargetRef"]
    monitor = manifests.get("PodMonitor", "gateway")
    assert monitor is not None
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    scrapers = endpoint["authorization"]["credentials"]
    assert token == {"parameter": "token", "name": scrapers["name"], "key": scrapers["key"]}
    assert metadata["authMode"] == "bearer"


def gateways_before(manifests: Manifests, service: str) -> list[Pod]:
    found = [
        pod for pod in manifests.processes() if pod.program == "gateway" and settings_of(manifests, pod).urls()[service]
    ]
    assert found
    return found


def test_no_poll_misses_a_request_however_short() -> None:
    for service in SERVICES:
        # as often as the simulation's
        assert scaled(service)["pollingInterval"] == POLL_S
        assert RECENT_S > 2 * POLL_S
        # One pod is enough for any number of requests by this trigger: how many there are is for the load to say.
        assert float(arrivals_trigger(service)["metadata"]["targetValue"]) >= 10**9
