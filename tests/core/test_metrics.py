import re

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from services.core.metrics import Metrics

UNITLESS_HISTOGRAMS = {"fovea_batch_size", "fovea_batch_cost"}


def our_families(metrics: Metrics) -> list[Metric]:
    """As a scraper sees them."""
    metrics.requests.labels("/ping", "GET", 200, "").inc()
    families = text_string_to_metric_families(metrics.render().decode())
    return [family for family in families if not family.name.startswith(("python_", "process_"))]


def test_names_carry_the_prefix_and_no_colon() -> None:
    names = [family.name for family in our_families(Metrics("t"))]
    assert len(names) >= 20
    assert all(re.fullmatch(r"fovea_[a-z_]+", name) for name in names)


def test_histograms_end_in_their_unit() -> None:
    names = {family.name for family in our_families(Metrics("t")) if family.type == "histogram"}
    assert names > UNITLESS_HISTOGRAMS
    assert all(name.endswith(("_seconds", "_bytes", "_ratio")) for name in names - UNITLESS_HISTOGRAMS)


def test_counters_end_in_total_and_time_stamps_in_their_unit() -> None:
    samples = {sample.name for family in our_families(Metrics("t")) for sample in family.samples}
    assert "fovea_requests_total" in samples
    assert not any("timestamp" in name and not name.endswith("_timestamp_seconds") for name in samples)


def test_two_sets_of_metrics_do_not_share_a_count() -> None:
    first, second = Metrics("a"), Metrics("b")
    first.rejected.labels("queue_full").inc()
    assert b'fovea_rejected_total{reason="queue_full"} 1.0' in first.render()
    assert b'fovea_rejected_total{reason="queue_full"} 0.0' in second.render()
