"""What KEDA and Kubernetes make of a service's load, by what they are told: simulated hours, and a markdown table.

python -m benchmarks.autoscaling

The chart's triggers are compared with other targets, with what they were before, and with what llm-d and vLLM's
production-stack set. Algorithms are in `autoscalers`, the service and what was measured of it in `scaled_service`.
Times of requests are measured: of `predict` and `embed` on two cores, the median latencies of the run `overload` at a
light load and at saturation (`benchmarks/results.jsonl`); of `score`, batches of 128 on an H100 with 790 images/s, of
which open_clip's 2,141 images/s are the share of each image; of `generate`, a prefill of 4,096 tokens on it in 130 ms
and a cache of 108,560 tokens, for prompts of 8,192 tokens and answers of 256 (20 ms each and 1.4 ms for each other
prompt that is read are assumed). Starts of pods are assumed.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.autoscalers import Policy, Rules, Scaling, Trigger
from benchmarks.record import record
from benchmarks.scaled_service import ARRIVALS, Outcome, Read, Seen, Service, Simulation, Start, Trace

HOUR_S = 3600
SERVICES = {
    "`predict` on a CPU": Service(base_s=0.047, each_s=0.0031, start_s=60.0, ready_s=480.0),
    "`embed` on a CPU": Service(base_s=0.011, each_s=0.0039, start_s=60.0, ready_s=1200.0),
    "`score` on a GPU": Service(base_s=0.102, each_s=0.00047, start_s=180.0, ready_s=480.0, room=128),
    "`generate` over vLLM": Service(
        base_s=5.1, each_s=0.62, start_s=480.0, ready_s=2400.0, room=108_560 // (8_192 + 256), has_cache=True
    ),
}


def saturation(seen: Seen) -> float:
    """Of the requests that the pods take at once, the share that there are, refused ones among them."""
    offered = 1 + seen.refused_per_s / max(seen.answered_per_s, 0.1)
    return (seen.queued + seen.inflight * offered) / max(seen.limit, 1)


def capacity(seen: Seen) -> float:
    """How many pods the answers need, by what busy pods answered; 0 where none was busy."""
    return seen.answered_per_s / seen.capacity_per_s if seen.capacity_per_s else 0.0


def waiting(seen: Seen) -> float:
    """Requests that wait inside vLLM; a service without it has them in its queue."""
    return seen.queued if seen.waiting is None else seen.waiting


def pool_saturation(seen: Seen) -> float:
    """llm-d's: per pod the greater of 5 waiting requests and 0.8 of the cache."""
    return max(waiting(seen) / max(1, seen.num_ready) / 5, (seen.cache or 0.0) / 0.8)


READ: Mapping[str, Read] = {
    "saturation": saturation,
    "saturation of summed limits": lambda seen: saturation(seen) / MOST_GATEWAYS,
    "capacity": capacity,
    "cache": lambda seen: seen.cache or 0.0,
    "waiting": lambda seen: seen.waiting or 0.0,
    "load": lambda seen: seen.inflight + seen.queued,
    "pool saturation": pool_saturation,
    "queue": waiting,
}
# The chart's most.
MOST_GATEWAYS = 8
UP = Rules(30.0, (Policy(100, 30.0),))
DOWN = (Policy(50, 60.0),)
TARGET = 0.7
BEFORE = Scaling((Trigger("load", 32.0),), up=Rules(0.0, UP.policies), down=Rules(300.0, DOWN))
# https://github.com/llm-d/llm-d, guides/workload-autoscaling/keda-epp-saturation/optimized-baseline
LLM_D = Scaling((Trigger("pool saturation", 0.7), Trigger("load", 16.0)))
# https://github.com/vllm-project/production-stack, docs/source/use_cases/autoscaling-keda.rst
PRODUCTION_STACK = Scaling((Trigger("queue", 5.0),))


def ours(service: Service, target: float = TARGET) -> Scaling:
    """What the chart sets; a test compares them."""
    triggers = [Trigger("saturation", target, is_average=False), Trigger("capacity", 1.0)]
    if service.has_cache:
        triggers += [Trigger("cache", 0.8, is_average=False), Trigger("waiting", 10.0)]
    return Scaling(tuple(triggers), up=UP, down=Rules(max(900.0, service.ready_s), DOWN))


def without(scaling: Scaling, *names: str) -> Scaling:
    """Leave triggers away."""
    return replace(scaling, triggers=tuple(one for one in scaling.triggers if one.name not in names))


def summed(scaling: Scaling) -> Scaling:
    """Divide by the sum of what each gateway says the limit is."""
    triggers = [
        replace(one, name="saturation of summed limits") if one.name == "saturation" else one
        for one in scaling.triggers
    ]
    return replace(scaling, triggers=tuple(triggers))


def to_zero(scaling: Scaling, service: Service) -> Scaling:
    """Let it have no pod while nobody asks."""
    return replace(
        scaling,
        triggers=(*scaling.triggers, Trigger(ARRIVALS, 1e9)),
        min_pods=0,
        cooldown_s=max(300.0, service.ready_s - 240),
        initial_cooldown_s=service.ready_s + 60,
    )


BEFORE_NAME, NOW = "before: 32 requests a pod", "**now: 0.7 of the limit**"
POLICIES: Mapping[str, Callable[[Service], Scaling]] = {
    BEFORE_NAME: lambda _: BEFORE,
    NOW: ours,
    **{f"{target} of the limit": partial(ours, target=target) for target in (0.5, 0.6, 0.8, 0.9)},
    "0.7, without `capacity`": lambda service: without(ours(service), "capacity"),
    "0.7, the limits of eight gateways summed up": lambda service: summed(ours(service)),
    "0.7, without vLLM's metrics": lambda service: without(ours(service), "cache", "waiting"),
    "llm-d": lambda _: LLM_D,
    "production-stack": lambda _: PRODUCTION_STACK,
}


def at_random(rates: Sequence[float], *, seed: int = 0) -> Trace:
    """Requests that come independently of one another, at these rates per second."""
    chance = random.Random(seed)
    return [_poisson(chance, rate) for rate in rates]


def _poisson(chance: random.Random, mean: float) -> int:
    if mean > 50:
        return max(0, round(chance.gauss(mean, math.sqrt(mean))))
    number, product = 0, chance.random()
    while product > math.exp(-mean):
        number += 1
        product *= chance.random()
    return number


def steady(per_s: float, seed: int) -> Trace:
    """An hour of what one and a half pods can do."""
    return at_random([1.5 * per_s] * HOUR_S, seed=seed)


def daily(per_s: float, seed: int) -> Trace:
    """From what a fifth of a pod can do to what four can and back, within six hours."""
    return at_random(
        [per_s * (0.2 + 3.8 * math.sin(math.pi * at / 6 / HOUR_S) ** 2) for at in range(6 * HOUR_S)], seed=seed
    )


def bursty(per_s: float, seed: int) -> Trace:
    """Six hours with bursts at once to between 1.3 and 3.3 pods, of three minutes, one in ten minutes."""
    chance = random.Random(seed)
    rates = [0.3 * per_s] * (6 * HOUR_S)
    at = chance.expovariate(1 / 420)
    while at < len(rates):
        height, end = chance.uniform(1.0, 3.0) * per_s, at + chance.expovariate(1 / 180)
        for second in range(int(at), min(int(end), len(rates))):
            rates[second] += height
        at = end + chance.expovariate(1 / 420)
    return at_random(rates, seed=seed)


def sparse(per_s: float, seed: int) -> Trace:
    """Eight hours with a request a second for four minutes now and then, and forty minutes without one between."""
    chance = random.Random(seed)
    rates = [0.0] * (8 * HOUR_S)
    at = chance.expovariate(1 / 600)
    while at < len(rates):
        end = at + chance.expovariate(1 / 240)
        for second in range(int(at), min(int(end), len(rates))):
            rates[second] = min(1.0, per_s)
        at = end + chance.expovariate(1 / 2400)
    return at_random(rates, seed=seed)


# With the pods that there are at the beginning.
TRACES: Mapping[str, tuple[Callable[[float, int], Trace], int]] = {
    "steady": (steady, 2),
    "daily": (daily, 1),
    "bursty": (bursty, 1),
}
WAKING_S = 480.0
# Requests wait for the first pod as long as the chart lets them.
WAIT_S = WAKING_S + 50


def simulate(service: Service, scaling: Scaling, trace: Trace, *, num_pods: int, seed: int = 0) -> Outcome:
    """Return what becomes of a service that begins with so many pods."""
    wait_s = 0.0 if scaling.min_pods else WAIT_S
    return Simulation(service, scaling, READ, Start(num_pods, seed, wait_s)).run(trace)


def wake(service: Service, scaling: Scaling, *, seed: int = 0) -> Outcome:
    """Have a request a second wait for the first of its pods, and be answered for a while."""
    trace = at_random([1.0] * int(WAKING_S + 600), seed=seed)
    return simulate(replace(service, start_s=WAKING_S), to_zero(scaling, service), trace, num_pods=0, seed=seed)


def figures(outcome: Outcome) -> dict[str, float]:
    return {
        "refused_share": round(outcome.refused_share, 5),
        "p50_s": float(f"{outcome.latency_s(0.5):.3g}"),
        "p99_s": float(f"{outcome.latency_s(0.99):.3g}"),
        "turns": outcome.flaps,
        "pod_hours": round(outcome.pod_s / HOUR_S, 1),
    }


def compare(seed: int = 0) -> dict[str, Any]:
    """Return the figures of all policies, services and traces."""
    loads: dict[str, Any] = {}
    waking: dict[str, Any] = {}
    for name, service in SERVICES.items():
        traces = {which: (make(service.requests_per_s, seed), pods) for which, (make, pods) in TRACES.items()}
        policies = {
            policy: scaling_for(service)
            for policy, scaling_for in POLICIES.items()
            if service.has_cache or "vLLM's" not in policy
        }
        loads[name] = {
            policy: {
                which: figures(simulate(service, scaling, trace, num_pods=pods, seed=seed))
                for which, (trace, pods) in traces.items()
            }
            for policy, scaling in policies.items()
        }
    for name in ("`predict` on a CPU", "`score` on a GPU"):
        service = SERVICES[name]
        asked = sparse(service.requests_per_s, seed)
        waking[name] = {}
        for policy in (BEFORE_NAME, NOW, "llm-d", "production-stack"):
            scaling = POLICIES[policy](service)
            waking[name][policy] = {
                "pods": max(wake(service, scaling, seed=one).most_pods for one in range(4)),
                "sparse": figures(simulate(service, to_zero(scaling, service), asked, num_pods=0, seed=seed)),
            }
    pods = {name: {"limit": one.limits[-1], "per_s": round(one.requests_per_s, 1)} for name, one in SERVICES.items()}
    return {"pods": pods, "loads": loads, "waking": waking}


def cells(found: Mapping[str, float]) -> tuple[str, str, str, str]:
    return (
        f"{found['refused_share']:.1%}",
        f"{found['p50_s']:g}, {found['p99_s']:g}",
        f"{found['turns']}",
        f"{found['pod_hours']:.1f}",
    )


COLUMNS = ("refused", "p50, p99 in s", "turns", "pod-hours")


def load_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a heading and a row for each service and policy."""
    rows = [("", *(f"{which}: {column}" for which in TRACES for column in COLUMNS))]
    for name, policies in result["loads"].items():
        pod = result["pods"][name]
        rows.append((f"{name}: limit {pod['limit']}, {pod['per_s']:g}/s a pod", *[""] * (len(rows[0]) - 1)))
        rows += [
            (policy, *(cell for which in TRACES for cell in cells(found[which]))) for policy, found in policies.items()
        ]
    return rows


def waking_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a heading and a row for each policy: services that wake from zero."""
    names = list(result["waking"])
    columns = ("pods asked for while it wakes", *(f"sparse: {column}" for column in COLUMNS))
    rows = [("", *(f"{name}, {column}" for name in names for column in columns))]
    for policy in result["waking"][names[0]]:
        found = [result["waking"][name][policy] for name in names]
        rows.append((policy, *(cell for one in found for cell in (str(one["pods"]), *cells(one["sparse"])))))
    return rows


def main() -> None:
    result = compare()
    for heading, *rows in (load_rows(result), waking_rows(result)):
        for row in (heading, ["---"] * len(heading), *rows):
            print(f"| {' | '.join(row)} |")
        print()
    record("autoscaling", result)


if __name__ == "__main__":
    main()
