"""The decisions of KEDA 2.20 and of Kubernetes' HorizontalPodAutoscaler 1.34, on a simulated clock.

`PodAutoscaler` follows `pkg/controller/podautoscaler`: of `replica_calculator.go`, `GetExternalMetricReplicas` and
`getUsageRatioReplicaCount` (a `Value` is scaled with the ready pods, the tolerance keeps what runs) and
`GetExternalPerPodMetricReplicas` (an `AverageValue` is the sum over the target); of `horizontal.go`,
`computeReplicasForMetrics` (the largest counts, and with one that can't be read nothing is taken away),
`stabilizeRecommendationWithBehaviors` (the least of the window on the way up, the greatest on the way down),
`convertDesiredReplicasWithBehaviorRate`, `calculateScaleUpLimitWithScalingRules` and
`calculateScaleDownLimitWithBehaviors` (the policies, counted from the beginning of their period), and that nothing is
done at zero.

`Activation` follows `RequestScale` and `scaleToZeroOrIdle` of `pkg/scaling/executor/scale_scaledobjects.go`: any active
trigger wakes; a trigger that can't be read keeps what runs, and then no activity is noted. The fallback is that of
`pkg/fallback`: after more failures than its threshold the autoscaler is told of as many pods as it names, or as many as
run (`currentReplicasIfHigher`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

POLL_S = SYNC_S = 15.0
TOLERANCE = 0.1
# What a trigger says, None where it can't be read.
Readings = Mapping[str, float | None]


@dataclass(frozen=True)
class Trigger:
    """A metric and the value that it should have: a pod (`is_average`), or at all."""

    name: str
    target: float
    is_average: bool = True


@dataclass(frozen=True)
class Policy:
    """The most that is added or taken away within a period: pods, or per cent of those that there were."""

    value: int
    period_s: float
    is_percent: bool = True


@dataclass(frozen=True)
class Rules:
    """One direction of `behavior`: of several policies the one that changes most holds."""

    window_s: float
    policies: tuple[Policy, ...]


# The defaults of `autoscaling/v2`.
DEFAULT_UP = Rules(0.0, (Policy(100, 15.0), Policy(4, 15.0, is_percent=False)))
DEFAULT_DOWN = Rules(300.0, (Policy(100, 15.0),))


@dataclass(frozen=True)
class Scaling:
    """What a ScaledObject says."""

    triggers: tuple[Trigger, ...]
    min_pods: int = 1
    max_pods: int = 8
    up: Rules = DEFAULT_UP
    down: Rules = DEFAULT_DOWN
    cooldown_s: float = 300.0
    initial_cooldown_s: float = 0.0
    fallback_pods: int = 0
    fallback_failures: int = 3


def scaling_of(spec: Mapping[str, Any]) -> Scaling:
    """Read the `spec` of a ScaledObject; a trigger is known by its name."""
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    fallback = spec.get("fallback", {"replicas": 0, "failureThreshold": 3})
    return Scaling(
        triggers=tuple(
            Trigger(
                one["name"],
                float(one["metadata"].get("threshold", one["metadata"].get("targetValue"))),
                one["metricType"] == "AverageValue",
            )
            for one in spec["triggers"]
        ),
        min_pods=spec["minReplicaCount"],
        max_pods=spec["maxReplicaCount"],
        up=_rules_of(behavior["scaleUp"]),
        down=_rules_of(behavior["scaleDown"]),
        cooldown_s=spec["cooldownPeriod"],
        initial_cooldown_s=spec["initialCooldownPeriod"],
        fallback_pods=fallback["replicas"],
        fallback_failures=fallback["failureThreshold"],
    )


def _rules_of(rules: Mapping[str, Any]) -> Rules:
    return Rules(
        rules["stabilizationWindowSeconds"],
        tuple(Policy(one["value"], one["periodSeconds"], one["type"] == "Percent") for one in rules["policies"]),
    )


class PodAutoscaler:
    """The HorizontalPodAutoscaler that KEDA makes of a ScaledObject: 1 to N."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._min_pods = max(1, scaling.min_pods)
        self._recommended: list[tuple[float, int]] = []
        self._added: list[tuple[float, int]] = []
        self._removed: list[tuple[float, int]] = []
        self._failures: dict[str, int] = {}

    def sync(self, now: float, num_pods: int, num_ready: int, readings: Readings) -> int:
        """Return how many pods there should be."""
        if num_pods == 0:
            return 0
        self._recommended = self._recommended or [(now, num_pods)]
        if not self._min_pods <= num_pods <= self._scaling.max_pods:
            return min(max(num_pods, self._min_pods), self._scaling.max_pods)
        proposed = [self._proposal(trigger, num_pods, num_ready, readings) for trigger in self._scaling.triggers]
        known = [one for one in proposed if one is not None]
        if not known or (len(known) < len(proposed) and max(known) < num_pods):
            return num_pods
        desired = self._within_policies(now, num_pods, self._stabilized(now, num_pods, max(known)))
        if desired != num_pods:
            (self._added if desired > num_pods else self._removed).append((now, abs(desired - num_pods)))
        return desired

    def _proposal(self, trigger: Trigger, num_pods: int, num_ready: int, readings: Readings) -> int | None:
        value = readings[trigger.name]
        failures = self._failures[trigger.name] = 0 if value is not None else self._failures.get(trigger.name, 0) + 1
        if value is None:
            has_fallback = self._scaling.fallback_pods and failures > self._scaling.fallback_failures
            return max(self._scaling.fallback_pods, num_pods) if has_fallback else None
        usage = value / trigger.target / (num_pods if trigger.is_average else 1)
        if abs(1 - usage) <= TOLERANCE:
            return num_pods
        return math.ceil(value / trigger.target * (1 if trigger.is_average else num_ready))

    def _stabilized(self, now: float, num_pods: int, recommended: int) -> int:
        up, down = self._scaling.up.window_s, self._scaling.down.window_s
        self._recommended = [one for one in self._recommended if one[0] > now - max(up, down)]
        least = min([recommended, *(number for at, number in self._recommended if at > now - up)])
        greatest = max([recommended, *(number for at, number in self._recommended if at > now - down)])
        self._recommended.append((now, recommended))
        return min(max(num_pods, least), greatest)

    def _within_policies(self, now: float, num_pods: int, desired: int) -> int:
        if desired > num_pods:
            most = max(math.ceil(self._allowed(now, num_pods, policy, 1)) for policy in self._scaling.up.policies)
            return min(desired, self._scaling.max_pods, max(most, num_pods))
        fewest = min(int(self._allowed(now, num_pods, policy, -1)) for policy in self._scaling.down.policies)
        return max(desired, self._min_pods, min(fewest, num_pods))

    def _allowed(self, now: float, num_pods: int, policy: Policy, direction: int) -> float:
        added, removed = (
            sum(number for at, number in events if at > now - policy.period_s)
            for events in (self._added, self._removed)
        )
        before = num_pods - added + removed
        change = before * policy.value / 100 if policy.is_percent else policy.value
        return before + direction * change


class Activation:
    """KEDA's own part: 0 to 1 and back."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._active_at: float | None = None

    def poll(self, now: float, num_pods: int, readings: Readings) -> int:
        """Return how many pods there should be; where there are some already, their number is not KEDA's to change."""
        values: Sequence[float | None] = [readings[trigger.name] for trigger in self._scaling.triggers]
        is_active, is_error = any(value for value in values), None in values
        if is_active and not num_pods:
            self._active_at = now
            return max(1, self._scaling.min_pods)
        if is_active and not is_error:
            self._active_at = now
        if is_active or is_error or self._scaling.min_pods or not num_pods:
            return max(num_pods, 0 if is_active or is_error else self._scaling.min_pods)
        patience_s = self._scaling.initial_cooldown_s if self._active_at is None else self._scaling.cooldown_s
        return 0 if (self._active_at or 0.0) + patience_s < now else num_pods
