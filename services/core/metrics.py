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

    Metrics that a process has no use for stay at zero: one list for all keeps the names the same everywhere.
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
        self.requests = self._counter("requests", "Answered requests, by route template.", "route", "method", "code")
        self.request_seconds = self._histogram(
            "request_seconds",
            "From the request's head to the response's last byte.",
            SECONDS_BUCKETS,
            "route",
        )
        self.inflight_requests = self._gauge("inflight_requests", "Requests being answered now.")
        self.concurrency_limit = self._gauge(
            "concurrency_limit", "Requests that a service works at together now; it grows while that makes it faster."
        )
        self.rejected = self._counter(
            "rejected",
            f"Requests refused before any work: {', '.join(REJECTIONS)}.",
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
            "cache_requests", "Look-ups in the result cache: hit, miss, error, shared.", "result"
        )
        self.cache_dropped_writes = self._counter(
            "cache_dropped_writes", "Results that Redis did not take, or that waited too many for it."
        )

    def _create_batching_metrics(self) -> None:
        self.stage_seconds = self._histogram(
            "stage_seconds",
            "Time in one stage: fetch, decode, tokenize, queue, infer, negatives, store, search, serialize.",
            SECONDS_BUCKETS,
            "stage",
        )
        self.queue_depth = self._gauge("queue_depth", "Items that wait for a batch.")
        self.queue_cost = self._gauge("queue_cost", "Cost of the items that wait for a batch.")
        self.oldest_queued_seconds = self._gauge(
            "oldest_queued_seconds", "How long the oldest waiting item has waited."
        )
        self.batch_size = self._histogram("batch_size", "Items in a batch.", SIZE_BUCKETS)
        self.batch_cost = self._histogram("batch_cost", "Padded cost of a batch.", COST_BUCKETS)
        self.batch_padding_ratio = self._histogram(
            "batch_padding_ratio", "Share of a batch's cost that is padding.", RATIO_BUCKETS
        )
        self.batch_cost_budget = self._gauge(
            "batch_cost_budget", "What one batch may cost now: less than the limit after running out of memory."
        )
        self.out_of_memory = self._counter("out_of_memory", "Batches that ran out of memory.")
        self.dropped_items = self._counter(
            "dropped_items", "Items taken out of the queue before they were computed: cancelled, deadline, …", "reason"
        )
        self.worker_heartbeat_timestamp_seconds = self._gauge(
            "worker_heartbeat_timestamp_seconds", "When the compute thread last started or ended a call."
        )

    def _create_model_metrics(self) -> None:
        self.model_info = self._gauge(
            "model_info", "1 for the checkpoint that answers now.", "name", "version", "digest"
        )
        self.model_load_seconds = self._gauge(
            "model_load_seconds", "Time from fetch to warmed up of the checkpoint that answers now.", "name"
        )
        self.model_ready = self._gauge("model_ready", "1 when a warmed-up checkpoint answers.", "name")
        self.model_loads = self._counter(
            "model_loads", "Versions loaded: at start, for a moved alias, and again after they were unloaded.", "name"
        )
        self.model_unloads = self._counter(
            "model_unloads", "Versions taken out of memory: replaced, or to make room for another model.", "name"
        )
        self.model_resident_bytes = self._gauge(
            "model_resident_bytes", "What the parameters in memory take, where memory is shared by a budget.", "name"
        )
        self.checkpoint_refusals = self._counter(
            "checkpoint_refusals", "Versions that did not load or failed their self-check.", "name"
        )

    def _create_generation_metrics(self) -> None:
        self.running_items = self._gauge("running_items", "Items in the running batch, which take part in every step.")
        self.room_demand_ratio = self._gauge(
            "room_demand_ratio",
            "Share of the running batch's room that running and waiting items need together; above 1, some wait.",
        )
        self.preemptions = self._counter(
            "preemptions", "Times that a running item gave its place to others, to be taken up again later."
        )
        self.time_to_first_token_seconds = self._histogram(
            "time_to_first_token_seconds", "From a request's place in the queue to its first token.", SECONDS_BUCKETS
        )
        self.inter_token_latency_seconds = self._histogram(
            "inter_token_latency_seconds", "Between two steps of one answer, which bring a token each.", SECONDS_BUCKETS
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of the prompts that were answered or ranked.")
        self.cached_prompt_tokens = self._counter(
            "cached_prompt_tokens", "Those of them whose keys and values were kept from an earlier prompt."
        )
        self.generated_tokens = self._counter("generated_tokens", "Tokens that were generated.")
        self.calibration_passes = self._counter(
            "calibration_passes", "Forward passes that estimated positional attention bias."
        )

    def _create_collection_metrics(self) -> None:
        self.searches = self._counter(
            "searches",
            "Searches of collections, by what they compared: every image (exact), those in the nearest lists "
            "(approximate), a short list while the condition's index was built (shortlist).",
            "result",
        )
        self.index_lag_images = self._gauge(
            "index_lag_images", "Images behind which the slowest index of each collection is, in sum."
        )

    def _create_gateway_metrics(self) -> None:
        self.upstream_requests = self._counter("upstream_requests", "Attempts sent to a service.", "service", "code")
        self.gateway_inflight_requests = self._gauge(
            "gateway_inflight_requests", "Requests that a service is answering now.", "service"
        )
        self.gateway_queued_requests = self._gauge(
            "gateway_queued_requests", "Requests held back until a service can take them.", "service"
        )
        self.gateway_recent_requests = self._gauge(
            "gateway_recent_requests",
            "Requests for a service that are there now or ended in the last five minutes, refused ones among them.",
            "service",
        )
        self.gateway_unserved_requests = self._counter(
            "gateway_unserved_requests", "Requests refused because no instance of the service answers.", "service"
        )
        self.gateway_held_body_bytes = self._gauge(
            "gateway_held_body_bytes", "Memory taken by long request bodies that no service has answered yet."
        )
        self.upstream_ready_addresses = self._gauge(
            "upstream_ready_addresses",
            "Addresses of a service that say that they are ready and are not left out.",
            "service",
        )
        self.upstream_ejections = self._counter(
            "upstream_ejections", "Times that an address was left out after failures.", "service"
        )
        self.gateway_concurrency_limit = self._gauge(
            "gateway_concurrency_limit", "Requests that a service's instances are given at a time now.", "service"
        )
        self.retries = self._counter("retries", "Requests sent again to another address.", "service")

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"fovea_{name}", documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"fovea_{name}", documentation, labels, registry=self.registry)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"fovea_{name}", documentation, labels, buckets=buckets, registry=self.registry)
