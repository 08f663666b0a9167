"""The format of recorded samples for promtool, checked by how Prometheus itself reads them."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.monitoring.prometheus_server import needs_promtool
from tests.monitoring.recording import Series, filled, values_notation, written_value


@needs_promtool
@pytest.mark.parametrize(
    "values",
    [
        [1, 1, 1, 1, 2, 4, 6, 8, 8],
        [0.5, 0.5, 0.25, 3, 2, 1, 0],
        [None, None, None, 5, 6, 9],
        [None, 4, 4, 4, 4],
    ],
)
def test_what_is_written_reads_as_it_was(tmp_path: Path, values: list[float | None]) -> None:
    written = values_notation([None if value is None else float(value) for value in values])
    expected = [
        {
            "expr": "x",
            "eval_time": f"{place}m",
            "exp_samples": [] if value is None else [{"labels": "x", "value": value}],
        }
        for place, value in enumerate(values)
    ]
    test = {"interval": "1m", "input_series": [{"series": "x", "values": written}], "promql_expr_test": expected}
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [test]}))
    checked = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, f"{written}\n{checked.stdout}{checked.stderr}"


def test_a_series_that_ends_goes_stale_at_once() -> None:
    assert values_notation([1.0, None, None, None, 2.0]) == "1 stale _x2 2"
    assert values_notation([1.0, None]) == "1 stale"


def test_one_scrape_that_came_late_leaves_no_hole() -> None:
    assert filled([1.0, None, 2.0, None, None]) == [1.0, 1.0, 2.0, None, None]
    assert filled([1.0, 2.0, None]) == [1.0, 2.0, 2.0]


def test_times_are_stretched_and_counts_are_not() -> None:
    assert written_value("fovea_oldest_queued_seconds", 0.5, since=0) == 15
    assert written_value("fovea_worker_heartbeat_timestamp_seconds", 1001.0, since=1000.0) == 30
    assert written_value("process_start_time_seconds", 999.0, since=1000.0) == -30
    assert written_value("fovea_queue_depth", 3, since=0) == 3


def test_only_counters_that_did_not_move_are_left_out() -> None:
    assert Series({"__name__": "fovea_retries_total"}, [2.0, 2.0]).is_flat_counter
    assert not Series({"__name__": "fovea_retries_total"}, [2.0, 3.0]).is_flat_counter
    assert not Series({"__name__": "fovea_retries_total"}, [None, 3.0]).is_flat_counter
    assert not Series({"__name__": "fovea_model_ready"}, [0.0, 0.0]).is_flat_counter
