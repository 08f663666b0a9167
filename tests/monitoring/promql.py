"""The metrics and labels that a PromQL expression names, and those that it may name."""

import re
from functools import cache

from prometheus_client.metrics import MetricWrapperBase

from services.core.metrics import Metrics

# Added by scraping; `le` by histograms.
TARGET_LABELS = frozenset({"job", "instance", "namespace", "app_kubernetes_io_instance"})
# Of Prometheus itself and of its client library, with labels of their own.
FOREIGN = {
    "up": frozenset[str](),
    "process_start_time_seconds": frozenset[str](),
    "process_resident_memory_bytes": frozenset[str](),
    "process_cpu_seconds_total": frozenset[str](),
}
METRIC = re.compile(r"\b(?:fovea_[a-z_]+|process_[a-z_]+|up)\b")
SELECTION = re.compile(r"\{([^}]*)\}")
MATCHER = re.compile(r"([a-zA-Z_]+)\s*(?:=~|!~|!=|=)")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
TEXT = re.compile(r'"[^"]*"')


@cache
def labels_by_metric() -> dict[str, frozenset[str]]:
    """Every name that a scraper sees of us, with its labels."""
    known = dict(FOREIGN)
    for metric in vars(Metrics("docs")).values():
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            # The library tells a metric's labels in public only once one has a value.
            labels = frozenset(metric._labelnames)
            if family.type == "counter":
                known[f"{family.name}_total"] = labels
            elif family.type == "histogram":
                known[f"{family.name}_bucket"] = labels | {"le"}
                known[f"{family.name}_sum"] = known[f"{family.name}_count"] = labels
            else:
                known[family.name] = labels
    return known


def metrics_in(expression: str) -> set[str]:
    return set(METRIC.findall(TEXT.sub("", expression)))


def labels_in(expression: str) -> set[str]:
    """Labels that are selected or grouped by."""
    matched = {name for inside in SELECTION.findall(expression) for name in MATCHER.findall(TEXT.sub('""', inside))}
    grouped = {name.strip() for inside in GROUPING.findall(TEXT.sub('""', expression)) for name in inside.split(",")}
    return matched | grouped - {""}


def unknown_in(expression: str) -> set[str]:
    """Metrics that nothing exposes, and labels that none of the metrics named with them has."""
    metrics = metrics_in(expression)
    known = labels_by_metric()
    has = TARGET_LABELS.union(*(known.get(metric, frozenset()) for metric in metrics))
    return {metric for metric in metrics if metric not in known} | (labels_in(expression) - has)
