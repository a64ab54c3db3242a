"""What the service tells Prometheus: one prefix, seconds, totals, and no ids in labels."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from beamtree.serve.engine.engine import Engine
from beamtree.serve.engine.model_slot import Reload
from beamtree.serve.engine.search import Reply

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
KIND = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The numbers of one service, in a registry of their own."""

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
        self.duration = histogram("request_duration_seconds", "From the request to its answer.", SECONDS, "route")
        self.queued = histogram("queue_duration_seconds", "Waiting for a search.", SECONDS)
        self.searched = histogram("search_duration_seconds", "One search of a batch.", SECONDS)
        self.batch = histogram("batch_size", "Histories that were searched together.", COUNTS)
        self.returned = histogram("returned_items", "Items of an answer.", COUNTS)
        self.short = counter("short_results_total", "Answers with fewer items than asked for, though more were left.")
        self.popular = counter("popular_results_total", "Answers with popular items, for want of a known item.")
        self.rejected = counter("requests_rejected_total", "Requests that were not answered.", "reason")
        self.degraded = counter("degraded_total", "Answers from a narrower beam than asked for.", "reason")
        self.changes = counter("changes_total", "Changes of items and events.", "kind")
        self.reloads = counter("reloads_total", "Runs that were to be loaded.", "result")
        self.waiting = gauge("requests_waiting", "Histories in the queue.")
        self.step = gauge("beam_steps_narrowed", "How often the beam is halved now.")
        self.items = gauge("index_items", "Items that are served.")
        self.version = gauge("index_version_info", "The model that is served.", "model", "version")
        self.changed = gauge("index_changes", "Changes applied since the run was trained.")
        self.loaded = gauge("last_reload_success_timestamp_seconds", "When a run was last loaded.")
        for result in ("ok", "failed"):
            self.reloads.labels(result)
        for reason in ("queue_full", "deadline", "stopping", "unauthorized", "too_large"):
            self.rejected.labels(reason)
        self.degraded.labels("load")

    def answered(self, reply: Reply) -> None:
        """Count an answer."""
        self.queued.observe(reply.waited)
        for each in reply.answers:
            self.returned.observe(len(each.items))
            if each.is_popular:
                self.popular.inc()
        if reply.short:
            self.short.inc(reply.short)
        if reply.narrowed_from is not None:
            self.degraded.labels("load").inc()

    def searched_batch(self, rows: int, seconds: float) -> None:
        """Count a batch."""
        self.batch.observe(rows)
        self.searched.observe(seconds)

    def reloaded(self, reload: Reload) -> None:
        """Count a run that was to be loaded."""
        self.reloads.labels("failed" if reload.error else "ok").inc()
        if reload.error is None:
            self.loaded.set(reload.at)

    def text(self, engine: Engine) -> bytes:
        """All numbers as Prometheus reads them."""
        loaded = engine.loaded
        self.waiting.set(engine.waiting)
        self.step.set(engine.step)
        self.items.set(loaded.source.model.tree.num_visible)
        self.changed.set(loaded.source.version)
        self.version.clear()  # the model of before is gone
        self.version.labels(loaded.name, loaded.digest).set(1)
        return bytes(generate_latest(self.registry))
