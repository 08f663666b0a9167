"""The chart scales services so that they refuse little and waste few pods, recomputed with what it sets; a real
Prometheus finds by its queries the numbers that the simulation goes by."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.autoscalers import PodAutoscaler, Scaling, Trigger, scaling_of
from benchmarks.autoscaling import (
    BEFORE,
    LLM_D,
    READ,
    SERVICES,
    TRACES,
    UP,
    at_random,
    ours,
    simulate,
    without,
)
from benchmarks.scaled_service import BUSY_SHARE, CAPACITY_S, RATE_S, Seen
from gateway.addresses import FIRST_PERMITS
from tests.deploy.kubernetes_manifests import SITE, Object, deployment, render
from tests.monitoring.prometheus_server import needs_promtool

CPU, GPU, VLLM = (SERVICES[name] for name in ("`predict` on a CPU", "`score` on a GPU", "`generate` over vLLM"))
# The share of requests that may be refused: bursts come at once, and pods take minutes to start.
MOST_REFUSED = {"steady": 0.01, "daily": 0.002, "bursty": 0.08}


def scaled(service: str) -> Object:
    found = deployment("production").get("ScaledObject", service)
    assert found is not None
    spec: Object = found["spec"]
    return spec


def chart_scaling(name: str) -> Scaling:
    """What the chart sets for one of the simulation's services, for between one and eight pods."""
    return replace(scaling_of(scaled(name.split("`")[1])), min_pods=1, max_pods=8)


@pytest.mark.parametrize("name", SERVICES)
def test_the_chart_sets_what_the_recorded_simulation_calls_now(name: str) -> None:
    chart, recorded = chart_scaling(name), ours(SERVICES[name])
    assert chart.triggers == recorded.triggers
    assert (chart.up, chart.down) == (recorded.up, recorded.down)


@pytest.mark.parametrize("which", TRACES)
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_refuses_little_and_no_more_than_it_did_with_32_requests_a_pod(name: str, which: str) -> None:
    service = SERVICES[name]
    make, num_pods = TRACES[which]
    trace = make(service.requests_per_s, 0)
    now, before = (simulate(service, one, trace, num_pods=num_pods) for one in (chart_scaling(name), BEFORE))
    assert now.refused_share <= MOST_REFUSED[which]
    assert now.refused_share <= before.refused_share + 0.002
    assert now.flaps <= max(before.flaps / 2, 7)


@pytest.mark.parametrize("limit", [32, 44, 61, 256])
def test_pods_at_their_target_refuse_nothing_for_an_hour_and_get_one_more_at_the_most(limit: int) -> None:
    """On a CPU limits of 32 to 61 were seen, and of 256 on a GPU."""
    scaling = chart_scaling("`score` on a GPU")
    (saturation, *_) = scaling.triggers
    pod = replace(GPU if limit == 256 else CPU, limit=limit, room=10**9)
    present = saturation.target * limit
    trace = at_random([2 * present / pod.seconds(present)] * 3600)
    outcome = simulate(pod, scaling, trace, num_pods=2)
    assert outcome.num_refused == 0
    assert outcome.most_pods <= 3
    assert min(number for _, number in outcome.counts) == 2


def settled(scaling: Scaling, seen: Seen) -> int:
    """The pods that one becomes under a load that stays as it is, however many there are."""
    autoscaler, num_pods = PodAutoscaler(scaling), 1
    readings = {trigger.name: READ[trigger.name](seen) for trigger in scaling.triggers}
    for at in range(0, 600, 15):
        num_pods = autoscaler.sync(float(at), num_pods, 1, readings)
    return num_pods


def test_one_pod_on_a_gpu_that_takes_256_requests_stays_alone_at_sixty_per_cent() -> None:
    seen = Seen(inflight=154, limit=256, answered_per_s=700, num_ready=1)
    assert settled(BEFORE, seen) == 5
    assert settled(LLM_D, seen) == 8
    assert settled(chart_scaling("`score` on a GPU"), seen) == 1


def test_a_few_long_answers_that_fill_vllms_cache_ask_for_another_pod_before_the_permits_are_taken() -> None:
    scaling = chart_scaling("`generate` over vLLM")
    seen = Seen(inflight=16, limit=FIRST_PERMITS, answered_per_s=1, cache=1.0, waiting=4, num_ready=1)
    assert settled(without(scaling, "cache", "waiting"), seen) == 1
    assert settled(BEFORE, seen) == 1
    assert settled(scaling, seen) == 2
    assert settled(scaling, replace(seen, cache=0.7, waiting=0)) == 1


# The autoscaler's own rules


def numbers(scaling: Scaling, readings: list[dict[str, float | None]], *, num_pods: int, num_ready: int) -> list[int]:
    """The pods after each look, one every 15 seconds."""
    autoscaler, found = PodAutoscaler(scaling), []
    for place, one in enumerate(readings):
        num_pods = autoscaler.sync(15.0 * place, num_pods, num_ready, one)
        found.append(num_pods)
    return found


SATURATED = Scaling((Trigger("saturation", 0.7, is_average=False), Trigger("capacity", 1.0)), up=UP)


def test_a_share_asks_for_nothing_while_no_pod_is_ready_and_a_number_of_requests_does() -> None:
    waiting: dict[str, float | None] = {"saturation": 15.0, "capacity": 0.0, "load": 480.0}
    assert numbers(SATURATED, [waiting] * 8, num_pods=1, num_ready=0) == [1] * 8
    assert numbers(BEFORE, [waiting] * 8, num_pods=1, num_ready=0) == [2, 2, 4, 4, 8, 8, 8, 8]


def test_pods_are_added_once_half_a_minute_agrees_and_no_more_than_as_many_again_in_another() -> None:
    calm: dict[str, float | None] = {"saturation": 0.7, "capacity": 0.0}
    full: dict[str, float | None] = {"saturation": 5.0, "capacity": 0.0}
    assert numbers(SATURATED, [calm, full, full, full, full, full], num_pods=1, num_ready=1) == [1, 1, 2, 2, 4, 4]
    assert numbers(SATURATED, [calm, full, calm, full], num_pods=1, num_ready=1) == [1] * 4


def test_what_cannot_be_read_takes_no_pod_away_and_brings_the_fallback_after_the_fourth_time() -> None:
    nothing: dict[str, float | None] = {"saturation": None, "capacity": None}
    half: dict[str, float | None] = {"saturation": 0.1, "capacity": None}
    assert numbers(SATURATED, [half] * 40, num_pods=3, num_ready=3) == [3] * 40
    with_fallback = replace(SATURATED, fallback_pods=2)
    assert numbers(with_fallback, [nothing] * 8, num_pods=1, num_ready=1) == [1, 1, 1, 2, 2, 2, 2, 2]
    assert numbers(with_fallback, [nothing] * 40, num_pods=4, num_ready=4) == [4] * 40


# The queries, asked of a real Prometheus


def query(service: str, trigger: str) -> str:
    (found,) = [one for one in scaled(service)["triggers"] if one["name"] == trigger]
    assert found["metadata"]["ignoreNullValues"] == "false"
    text: str = found["metadata"]["query"]
    return text


def told(name: str, values: str, pod: str = "a", workload: str = "gateway", **labels: str) -> dict[str, str]:
    """A series in promtool's notation, a sample every 15 seconds."""
    own = {"namespace": "fovea", "app_kubernetes_io_instance": workload, "pod": pod, **labels}
    return {"series": f"{name}{{{','.join(f'{key}={json.dumps(own[key])}' for key in own)}}}", "values": values}


def of_gateways(metric: str, *values: str, **labels: str) -> list[dict[str, str]]:
    """One series a gateway about `score`, and others that are not to be counted."""
    here = [
        told(f"fovea_{metric}", one, pod, service="score", **labels)
        for pod, one in zip("abcdefgh", values, strict=False)
    ]
    return [
        *here,
        told(f"fovea_{metric}", "7000+7000x480", service="predict", **labels),
        told(f"fovea_{metric}", "7000+7000x480", service="score", namespace="elsewhere", **labels),
    ]


def check(folder: Path, expression: str, series: list[dict[str, str]], expected: float | None, at: str = "2h") -> None:
    """Fail unless the query has this value then; None: no value at all."""
    samples = [] if expected is None else [{"labels": "{}", "value": 1}]
    asked = expression if expected is None else f"abs(({expression}) - {expected!r}) < bool 1e-6"
    test = {
        "interval": "15s",
        "input_series": series,
        "promql_expr_test": [{"expr": asked, "eval_time": at, "exp_samples": samples}],
    }
    (folder / "test.yml").write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def gauges(inflight: int, queued: int, limit: int) -> list[dict[str, str]]:
    """Two gateways, each with half of the requests and the whole limit."""
    return [
        *of_gateways("gateway_inflight_requests", f"{inflight // 2}x480", f"{inflight - inflight // 2}x480"),
        *of_gateways("gateway_queued_requests", f"{queued // 2}x480", f"{queued - queued // 2}x480"),
        *of_gateways("gateway_concurrency_limit", f"{limit}x480", f"{limit}x480"),
    ]


REFUSED = of_gateways("gateway_refused_requests_total", "0+30x480", "0+60x480")
NONE_REFUSED = of_gateways("gateway_refused_requests_total", "0x480", "0x480")
ANSWERED = [
    *of_gateways("upstream_requests_total", "0+300x480", "0+600x480", code="200"),
    *of_gateways("upstream_requests_total", "0+150x480", code="503"),
]
SATURATIONS: Mapping[str, tuple[list[dict[str, str]], Seen | None]] = {
    "two gateways see the load, and refuse some": (
        [*gauges(44, 9, 61), *REFUSED, *ANSWERED],
        Seen(inflight=44, queued=9, limit=61, refused_per_s=6, answered_per_s=60),
    ),
    "nothing was ever refused": (
        [*gauges(44, 9, 61), *NONE_REFUSED, *ANSWERED],
        Seen(inflight=44, queued=9, limit=61, answered_per_s=60),
    ),
    "an older gateway does not count refusals": (
        [*gauges(44, 9, 61), *ANSWERED],
        Seen(inflight=44, queued=9, limit=61, answered_per_s=60),
    ),
    "nothing was ever asked": (gauges(0, 0, FIRST_PERMITS), Seen()),
    "all is refused": (
        [*gauges(4, 0, 32), *REFUSED],
        Seen(inflight=4, limit=32, refused_per_s=6),
    ),
    "there is no pod, and requests wait for one": (gauges(0, 480, FIRST_PERMITS), Seen(queued=480)),
    "the limit is 0": (gauges(3, 0, 0), Seen(inflight=3, limit=0)),
    # An error, so that no pod is taken away: no answer must not count as no load.
    "no gateway is scraped": ([], None),
}


@needs_promtool
@pytest.mark.parametrize("case", SATURATIONS)
def test_prometheus_finds_the_saturation_that_the_simulation_goes_by(tmp_path: Path, case: str) -> None:
    series, seen = SATURATIONS[case]
    check(tmp_path, query("score", "saturation"), series, None if seen is None else READ["saturation"](seen))


# A busy hour, in which two pods answered 60 requests a second, and then an hour with 24 a second.
BUSY_THEN_CALM = [
    *of_gateways("upstream_requests_total", "0+450x240 108000+180x240", "0+450x240 108000+180x240", code="200"),
    *of_gateways("gateway_inflight_requests", "30x240 5x240", "31x240 5x240"),
    *of_gateways("gateway_queued_requests", "2x240 0x240", "2x240 0x240"),
    *of_gateways("gateway_concurrency_limit", "88x480", "88x480"),
    *of_gateways("upstream_ready_addresses", "2x480", "2x480"),
]
CALM = [
    *of_gateways("upstream_requests_total", "0+180x480", "0+180x480", code="200"),
    *gauges(10, 0, 88),
    *of_gateways("upstream_ready_addresses", "2x480", "2x480"),
]
CAPACITIES: Mapping[str, tuple[list[dict[str, str]], float | None]] = {
    "pods were busy within six hours": (BUSY_THEN_CALM, READ["capacity"](Seen(answered_per_s=24, capacity_per_s=30))),
    "pods were never busy": (CALM, READ["capacity"](Seen(answered_per_s=24))),
    "nothing was ever asked": ([*gauges(0, 0, 32), *of_gateways("upstream_ready_addresses", "0x480", "0x480")], 0.0),
    "there is no pod, and requests wait for one": (
        [*gauges(0, 480, 32), *of_gateways("upstream_ready_addresses", "0x480", "0x480")],
        0.0,
    ),
}


@needs_promtool
@pytest.mark.parametrize("case", CAPACITIES)
def test_prometheus_finds_how_many_pods_the_answers_need(tmp_path: Path, case: str) -> None:
    series, expected = CAPACITIES[case]
    check(tmp_path, query("score", "capacity"), series, expected)


def test_the_queries_look_as_far_back_as_the_simulation_does() -> None:
    text = query("score", "capacity")
    assert f"[{CAPACITY_S / 3600:.0f}h:1m]" in text
    assert f"[{RATE_S / 60:.0f}m]" in text
    assert f">= {BUSY_SHARE} *" in text
    assert chart_scaling("`score` on a GPU").triggers[0].target == BUSY_SHARE


@needs_promtool
@pytest.mark.parametrize(
    ("trigger", "metric", "values", "seen"),
    [
        ("cache", "vllm:kv_cache_usage_perc", ("0.5x480", "1x480"), Seen(cache=0.75, num_ready=2)),
        ("waiting", "vllm:num_requests_waiting", ("3x480", "4x480"), Seen(waiting=7, num_ready=2)),
        ("cache", "vllm:kv_cache_usage_perc", (), Seen()),
        ("waiting", "vllm:num_requests_waiting", (), Seen()),
    ],
)
def test_prometheus_finds_vllms_cache_and_queue_and_none_while_no_pod_has_started(
    tmp_path: Path, trigger: str, metric: str, values: tuple[str, ...], seen: Seen
) -> None:
    """A query without an answer would bring the fallback, a second pod beside the first that starts."""
    series = [
        *(told(metric, one, pod, "generate", engine="0") for pod, one in zip("ab", values, strict=False)),
        told(metric, "70x480", workload="generate", namespace="elsewhere"),
    ]
    check(tmp_path, query("generate", trigger), series, READ[trigger](seen))


@needs_promtool
def test_an_engine_of_our_own_that_has_not_started_yet_brings_no_fallback_either(tmp_path: Path) -> None:
    own = render(("production",), SITE, {"services": {"generate": {"vllm": {"enabled": False}}}})
    found = own.get("ScaledObject", "generate")
    assert found is not None
    (room,) = [one for one in found["spec"]["triggers"] if one["name"] == "room"]
    check(tmp_path, room["metadata"]["query"], [], 0.0)
    series = [told("fovea_room_demand_ratio", "1.5x480", pod, "generate") for pod in "ab"]
    check(tmp_path, room["metadata"]["query"], series, 3.0)
