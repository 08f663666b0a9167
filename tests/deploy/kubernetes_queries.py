"""The metrics and labels that a PromQL query names."""

import re
from collections.abc import Set

from tests.documentation.reference import metrics

# What Prometheus Operator adds to each series of a pod, the last as the PodMonitors ask for it.
TARGET_LABELS = frozenset(
    {"namespace", "job", "instance", "pod", "container", "endpoint", "app_kubernetes_io_instance"}
)
WORDS = frozenset(
    {
        *("sum", "max", "min", "avg", "count", "by", "without", "on", "or", "and", "unless", "rate", "increase"),
        *("clamp_min", "max_over_time", "avg_over_time", "vector", "Inf"),
    }
)
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")


def labels_by_series() -> dict[str, frozenset[str]]:
    """Every series that a process can have, with the labels of its metric."""
    found = {}
    for name, metric in metrics().items():
        (family,) = metric.describe()
        labels = frozenset(metric._labelnames)
        found[name] = labels
        if family.type == "histogram":
            found |= {
                f"{name}{end}": labels | ({"le"} if end == "_bucket" else set())
                for end in ("_bucket", "_sum", "_count")
            }
    return found


def matchers(query: str) -> list[tuple[str, str, str]]:
    """Series, label and value of each matcher."""
    return [(name, label, value) for name, inner in SELECTOR.findall(query) for label, value in MATCHER.findall(inner)]


def check_query(query: str, *, allowed: Set[str] = frozenset()) -> list[str]:
    """Series and labels that do not exist; `allowed` are further words, such as those of a template."""
    known = labels_by_series()
    wrong = [
        f"{name} has no label {label}"
        for name, label, _ in matchers(query)
        if name in known and label not in known[name] | TARGET_LABELS
    ]
    bare = SELECTOR.sub(r"\1", re.sub(r"\[[\w:]+\]", "", re.sub(r"\b(by|without|on)\s*\([^)]*\)", r"\1", query)))
    words = set(re.findall(r"[a-zA-Z_:][\w:]*", bare))
    grouped = {
        label for inner in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query) for label in re.findall(r"\w+", inner)
    }
    wrong += [f"no process has the metric {word}" for word in sorted(words - known.keys() - WORDS - allowed)]
    named = [known[word] for word in words & known.keys()]
    wrong += [
        f"no metric of the query has the label {label}"
        for label in sorted(grouped)
        if not any(label in labels | TARGET_LABELS for labels in named)
    ]
    return wrong if named or words & allowed else [*wrong, "the query names no metric"]
