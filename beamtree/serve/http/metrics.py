"""Prometheus metrics of the service: prefix beamtree_, seconds, totals, and no ids in labels."""

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from beamtree.query import RecommendResponse
from beamtree.serve.engine.engine import Engine
from beamtree.serve.engine.follower import FollowerState
from beamtree.serve.engine.model_slot import Reload

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one service, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # else every counter is there twice
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"beamtree_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"beamtree_{name}", text, labels, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"beamtree_{name}", text, labels, registry=registry)

        self.requests = counter("requests_total", "Requests by route and status.", "route", "code")
        self.duration = histogram("request_duration_seconds", "From request to response.", SECONDS, "route")
        self.queued = histogram("queue_duration_seconds", "Time in the queue.", SECONDS)
        self.searched = histogram("search_duration_seconds", "One search of a batch.", SECONDS)
        self.batch = histogram("batch_size", "Histories searched together.", COUNTS)
        self.returned = histogram("returned_items", "Items per result.", COUNTS)
        self.short = counter("short_results_total", "Results with fewer than m items although more were available.")
        self.popular = counter("popular_results_total", "Results with popular items, for lack of a known item.")
        self.rejected = counter("requests_rejected_total", "Requests without an answer.", "reason")
        self.degraded = counter("degraded_total", "Responses from a narrower beam than requested.", "reason")
        self.changes = counter("changes_total", "Changes of items and events.", "kind")
        self.reloads = counter("reloads_total", "Attempts to load a run.", "result")
        self.waiting = gauge("requests_waiting", "Histories in the queue.")
        self.step = gauge("beam_steps_narrowed", "Steps by which the beam is narrowed.")
        self.items = gauge("index_items", "Visible items.")
        self.version = gauge("index_version_info", "The model in use.", "model", "version")
        self.changed = gauge("index_changes", "Changes applied since training.")
        self.loaded = gauge("last_reload_success_timestamp_seconds", "When a run was last loaded.")
        for result in ("ok", "failed"):
            self.reloads.labels(result)
        for reason in ("queue_full", "deadline", "stopping", "unauthorized", "too_large", "storage"):
            self.rejected.labels(reason)
        self.degraded.labels("load")

    def count_response(self, response: RecommendResponse) -> None:
        """Count a response and its results."""
        self.queued.observe(response.queue_seconds)
        for result in response.results:
            self.returned.observe(len(result.items))
            if result.is_popular:
                self.popular.inc()
        if response.short:
            self.short.inc(response.short)
        if response.narrowed_from is not None:
            self.degraded.labels("load").inc()

    def count_batch(self, rows: int, seconds: float) -> None:
        """Count a search."""
        self.batch.observe(rows)
        self.searched.observe(seconds)

    def count_reload(self, reload: Reload) -> None:
        """Count an attempt to load a run."""
        self.reloads.labels("failed" if reload.error else "ok").inc()
        if reload.error is None:
            self.loaded.set(reload.at)

    def follow(self, state: Callable[[], FollowerState]) -> None:
        """Add the metrics of a service that follows another."""

        def gauge(name: str, text: str, value: Callable[[], float]) -> None:
            Gauge(f"beamtree_{name}", text, registry=self.registry).set_function(value)

        gauge("writer_connected", "Whether there are signs of the writer.", lambda: state().connected)
        gauge("writer_silent_seconds", "Seconds since the last sign of the writer.", lambda: state().seconds)
        gauge("changes_behind", "Changes of the writer that were read and not applied.", lambda: state().behind)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return bytes(generate_latest(self.registry))

    def read_engine(self, engine: Engine) -> None:
        """Set the metrics that are read from an engine."""
        run = engine.loaded
        self.waiting.set(engine.waiting)
        self.step.set(engine.steps_narrowed)
        self.items.set(run.live.model.tree.num_visible)
        self.changed.set(run.live.version)
        self.version.clear()  # removes the previous model
        self.version.labels(run.name, run.digest).set(1)
