"""Every metric of the project: names, labels, units and buckets.

Names start with `fovea_`, hold no colon (reserved for recording rules) and end in their unit: `_seconds`,
`_bytes`, `_ratio`, `_total` for counters. Labels are few and bounded: never a path, a key or a request id.
"""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# From a cache hit to a batch of long generations; each bucket at most 2.5 times the one before.
SECONDS_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0,
)  # fmt: skip
SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
COST_BUCKETS = tuple(4**power for power in range(2, 13))
RATIO_BUCKETS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75)
# Exported as 0 from the start, so that the first one is seen as an increase.
REJECTIONS = (
    "queue_full", "deadline_too_near", "decode_queue_full", "bodies_full", "body_memory_full", "too_large", "slow_body",
    "draining", "loading", "broken", "unauthenticated", "forbidden", "rate_limit", "foreign_host", "foreign_origin",
    "connections",
)  # fmt: skip
CANCELLATIONS = ("disconnect", "deadline")


class Metrics:
    """One registry with all metric objects; created once per process and passed to the code that measures.

    Metrics that a process does not use stay at zero: one list for all keeps the names the same everywhere.
    """

    def __init__(self, service: str) -> None:
        self.service = service
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._create_http_metrics()
        self._create_batching_metrics()
        self._create_model_metrics()
        self._create_generation_metrics()
        self._create_collection_metrics()
        self._create_gateway_metrics()

    def render(self) -> bytes:
        """Return the text exposition format, for `/metrics`."""
        return generate_latest(self.registry)

    def _create_http_metrics(self) -> None:
        self.requests = self._counter(
            "requests",
            "Requests that received a response, by route template and version of the model (empty: no model).",
            "route",
            "method",
            "code",
            "version",
        )
        self.request_seconds = self._histogram(
            "request_seconds",
            "Time from the request's head to the response's last byte.",
            SECONDS_BUCKETS,
            "route",
            "version",
        )
        self.inflight_requests = self._gauge("inflight_requests", "Requests in flight.")
        self.concurrency_limit = self._gauge(
            "concurrency_limit", "Current limit of concurrent requests; it grows while that improves throughput."
        )
        self.rejected = self._counter(
            "rejected",
            f"Requests rejected before any work: {', '.join(REJECTIONS)}.",
            "reason",
        )
        self.cancelled = self._counter(
            "cancelled", f"Requests whose work was cancelled: {', '.join(CANCELLATIONS)}.", "reason"
        )
        for reason in REJECTIONS:
            self.rejected.labels(reason)
        for reason in CANCELLATIONS:
            self.cancelled.labels(reason)
        self.cache_requests = self._counter(
            "cache_requests", "Lookups in the result cache: hit, miss, error, shared.", "result"
        )
        self.cache_dropped_writes = self._counter(
            "cache_dropped_writes", "Results not written to Redis because it failed or too many writes were queued."
        )

    def _create_batching_metrics(self) -> None:
        self.stage_seconds = self._histogram(
            "stage_seconds",
            "Time in one stage: fetch, decode, tokenize, queue, infer, negatives, store, search, serialize.",
            SECONDS_BUCKETS,
            "stage",
        )
        self.queue_depth = self._gauge("queue_depth", "Items waiting for a batch.")
        self.queue_cost = self._gauge("queue_cost", "Total cost of the items waiting for a batch.")
        self.oldest_queued_seconds = self._gauge(
            "oldest_queued_seconds", "Time that the oldest waiting item has waited."
        )
        self.batch_size = self._histogram("batch_size", "Items in a batch.", SIZE_BUCKETS)
        self.batch_cost = self._histogram("batch_cost", "Padded cost of a batch.", COST_BUCKETS)
        self.batch_padding_ratio = self._histogram(
            "batch_padding_ratio", "Share of a batch's cost that is padding.", RATIO_BUCKETS
        )
        self.batch_cost_budget = self._gauge(
            "batch_cost_budget", "Current cost limit of a batch; lowered after running out of memory."
        )
        self.out_of_memory = self._counter("out_of_memory", "Batches that ran out of memory.")
        self.dropped_items = self._counter(
            "dropped_items", "Items removed from the queue before they were computed: cancelled, deadline, …", "reason"
        )
        self.worker_heartbeat_timestamp_seconds = self._gauge(
            "worker_heartbeat_timestamp_seconds", "Time at which the compute thread last started or finished a call."
        )

    def _create_model_metrics(self) -> None:
        self.model_info = self._gauge(
            "model_info", "1 for the checkpoint that is serving.", "name", "version", "digest"
        )
        self.model_load_seconds = self._gauge(
            "model_load_seconds", "Time to fetch, load and warm up the serving checkpoint.", "name"
        )
        self.model_ready = self._gauge("model_ready", "1 if a warmed-up checkpoint is serving.", "name")
        self.model_loads = self._counter(
            "model_loads", "Versions loaded: at startup, after an alias moved, and after they were unloaded.", "name"
        )
        self.model_unloads = self._counter(
            "model_unloads", "Versions unloaded: replaced, or removed to make room for another model.", "name"
        )
        self.model_resident_bytes = self._gauge(
            "model_resident_bytes", "Memory used by the loaded parameters, if models share a memory budget.", "name"
        )
        self.checkpoint_refusals = self._counter(
            "checkpoint_refusals", "Versions that did not load or failed their self-check.", "name"
        )

    def _create_generation_metrics(self) -> None:
        self.running_items = self._gauge("running_items", "Items in the running batch.")
        self.room_demand_ratio = self._gauge(
            "room_demand_ratio",
            "Share of the running batch's capacity that running and waiting items need; above 1, some wait.",
        )
        self.kv_cache_usage_ratio = self._gauge(
            "kv_cache_usage_ratio", "Share of the cache of keys and values that running answers hold.", "name"
        )
        self.preemptions = self._counter(
            "preemptions", "Running items paused to make room for others and resumed later."
        )
        self.time_to_first_token_seconds = self._histogram(
            "time_to_first_token_seconds",
            "Time from queueing a request to its first token; waiting for a permit and tokenising come before.",
            SECONDS_BUCKETS,
        )
        self.inter_token_latency_seconds = self._histogram(
            "inter_token_latency_seconds", "Time between two consecutive tokens of an answer.", SECONDS_BUCKETS
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of answers and rankings.")
        self.cached_prompt_tokens = self._counter(
            "cached_prompt_tokens", "Prompt tokens whose keys and values were reused from an earlier prompt."
        )
        self.generated_tokens = self._counter("generated_tokens", "Generated tokens.")
        self.calibration_passes = self._counter(
            "calibration_passes", "Forward passes that estimated positional attention bias."
        )

    def _create_collection_metrics(self) -> None:
        self.searches = self._counter(
            "searches",
            "Searches of collections, by the images compared: all (exact), those in the nearest lists (approximate), "
            "or a short list while the condition's index was being built (shortlist).",
            "result",
        )
        self.index_lag_images = self._gauge(
            "index_lag_images", "Images missing from the slowest index of each collection, summed over collections."
        )

    def _create_gateway_metrics(self) -> None:
        self.upstream_requests = self._counter("upstream_requests", "Attempts sent to a service.", "service", "code")
        self.gateway_inflight_requests = self._gauge(
            "gateway_inflight_requests", "Requests in flight to a service.", "service"
        )
        self.gateway_queued_requests = self._gauge(
            "gateway_queued_requests", "Requests queued until a service can accept them.", "service"
        )
        self.gateway_recent_requests = self._gauge(
            "gateway_recent_requests",
            "Requests for a service that are there now or ended in the last five minutes, refused ones among them.",
            "service",
        )
        self.gateway_unserved_requests = self._counter(
            "gateway_unserved_requests", "Requests refused because no instance of the service answers.", "service"
        )
        self.gateway_refused_requests = self._counter(
            "gateway_refused_requests", "Requests refused for lack of capacity, here or by the service.", "service"
        )
        self.gateway_held_body_bytes = self._gauge(
            "gateway_held_body_bytes", "Memory held by long request bodies of unanswered requests."
        )
        self.upstream_ready_addresses = self._gauge(
            "upstream_ready_addresses",
            "Addresses of a service that are ready and not ejected.",
            "service",
        )
        self.canary_withdrawn = self._gauge(
            "canary_withdrawn", "Whether the gateway sends marked keys to stable, as their canary fails.", "service"
        )
        self.upstream_ejections = self._counter(
            "upstream_ejections", "Ejections of addresses after failures.", "service"
        )
        self.gateway_concurrency_limit = self._gauge(
            "gateway_concurrency_limit", "Current limit of concurrent requests to a service's instances.", "service"
        )
        self.retries = self._counter("retries", "Requests retried at another address.", "service")

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"fovea_{name}", documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"fovea_{name}", documentation, labels, registry=self.registry)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"fovea_{name}", documentation, labels, buckets=buckets, registry=self.registry)
