"""Prometheus metrics. Their names are documented in `docs/operations/metrics.md` and do not change lightly.

Figures are read from the engine, and from what is counted as it is sent (`sent`), when they are asked for. No label ever holds an id, an owner or a name of a client's.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tarry.core.telemetry.figure import AnyFigure, HistogramFigure
from tarry.doors.http.operator.sent import LATENESS_MS, Sent
from tarry.engine.engine import Engine
from tarry.index.progress import Progress

OUTCOMES: Final = ("sent", "cancelled", "failed")


class Metrics:
    """The registry of this server's metrics."""

    def __init__(
        self,
        engine: Engine,
        sent: Sent,
        sessions: Callable[[], int],
        batches: Callable[[], int],
        progress: Callable[[], Progress | None],
        figures: Sequence[AnyFigure],
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Lateness(sent))
        self._registry.register(_EngineFigures(engine))
        self._registry.register(_DoorFigures(sessions, batches))
        self._registry.register(_PipelineFigures(engine, progress))
        self._registry.register(OtherFigures(figures))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def render(self) -> tuple[bytes, str]:
        """The text that Prometheus reads, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _Lateness(Collector):
    """How long after its due instant each message was sent, by the door through which it came."""

    def __init__(self, sent: Sent) -> None:
        self._sent = sent

    def collect(self) -> Iterator[Metric]:
        """The histogram."""
        family = HistogramMetricFamily(
            "tarry_lateness_seconds", "From the due instant of a message to its sending", labels=["door"]
        )
        bounds = [*(str(bound / 1000) for bound in LATENESS_MS), "+Inf"]
        for door, lateness in self._sent.doors.items():
            total = 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip(bounds, lateness.buckets, strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric([door], buckets, lateness.sum_ms / 1000)
        yield family


class _EngineFigures(Collector):
    """Figures of the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Counters and gauges; nothing but readiness before the engine is ready."""
        engine = self._engine
        yield GaugeMetricFamily("tarry_ready", "1 once recovery is done", value=float(engine.ready))
        if not engine.ready:
            return
        stats = engine.stats()
        counters = stats.counters
        yield CounterMetricFamily(
            "tarry_messages_accepted",
            "Messages accepted since the ledger began",
            value=counters.get("accepted", 0),
        )
        finalised = CounterMetricFamily(
            "tarry_messages_finalised", "Messages finalised since the ledger began", labels=["outcome"]
        )
        for outcome in OUTCOMES:
            finalised.add_metric([outcome], counters.get(outcome, 0))
        yield finalised
        yield CounterMetricFamily(
            "tarry_attempts_retried",
            "Attempts to send that will be made again",
            value=counters.get("retried", 0),
        )
        yield CounterMetricFamily(
            "tarry_messages_damaged",
            "Messages not sent because their bytes are damaged",
            value=counters.get("damaged", 0),
        )
        yield CounterMetricFamily(
            "tarry_messages_isolated",
            "Errors that ended one message, or passed one entry over, and nothing else",
            value=counters.get("isolated", 0),
        )
        yield CounterMetricFamily(
            "tarry_delays_ignored",
            "Entries published with a delay that does not count because delaying is off there",
            value=counters.get("delay_ignored", 0),
        )
        stranded = GaugeMetricFamily(
            "tarry_messages_stranded",
            "Due messages that wait for a part which a start did not have",
            labels=["outlet"],
        )
        for scheme, count in stats.stranded.items():
            stranded.add_metric([scheme], count)
        yield stranded
        yield CounterMetricFamily(
            "tarry_watermark_lowered",
            "How often the watermark was taken back because the clock had been ahead",
            value=counters.get("watermark_lowered", 0),
        )
        steps = CounterMetricFamily(
            "tarry_clock_steps", "How often the clock was set while the process ran", labels=["direction"]
        )
        for direction, count in stats.clock_steps.items():
            steps.add_metric([direction], count)
        yield steps
        for name, text, value in (
            ("tarry_pending", "Messages not finalised", stats.pending),
            ("tarry_wheel_entries", "Entries in the wheel", stats.in_wheel),
            ("tarry_tail_entries", "Entries of the un-indexed tail that are not in the wheel", stats.in_tail),
            ("tarry_sending", "Messages on their way to an outlet", stats.sending),
            ("tarry_owners", "Owners with pending messages", stats.owners),
            ("tarry_topics", "Topics", stats.topics),
            ("tarry_ledger_next_seq", "The seq that the next record gets", stats.next_seq),
            ("tarry_ledger_durable_seq", "The last seq that is on disk", stats.durable_seq),
            ("tarry_ledger_low_space", "1 while nothing new is accepted for want of space", stats.low_space),
            ("tarry_ledger_failed", "1 once the ledger could not be written", stats.failed is not None),
            (
                "tarry_watermark_seconds",
                "Everything due before this instant is finalised",
                stats.watermark_ms / 1000,
            ),
            (
                "tarry_clock_ahead_seconds",
                "How far the clock was set forward without time having passed; 0 while it is confirmed",
                stats.clock_ahead_ms / 1000,
            ),
        ):
            yield GaugeMetricFamily(name, text, value=float(value))


class _DoorFigures(Collector):
    """Figures of the HTTP door."""

    def __init__(self, sessions: Callable[[], int], batches: Callable[[], int]) -> None:
        self._sessions = sessions
        self._batches = batches

    def collect(self) -> Iterator[Metric]:
        """Gauges."""
        yield GaugeMetricFamily("tarry_http_sessions", "Consumer sessions open", value=self._sessions())
        yield GaugeMetricFamily("tarry_http_batches", "Batch requests under way", value=self._batches())


class OtherFigures(Collector):
    """Figures of the rest of the server."""

    def __init__(self, figures: Sequence[AnyFigure]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """The present value of each figure."""
        for figure in self._figures:
            if isinstance(figure, HistogramFigure):
                yield _histogram(figure)
                continue
            labels = [] if figure.label is None else [figure.label]
            kind = CounterMetricFamily if figure.counts else GaugeMetricFamily
            family = kind(figure.name, figure.text, labels=labels)
            for value, number in figure.values().items():
                family.add_metric([value][: len(labels)], number)
            yield family


def _histogram(figure: HistogramFigure) -> Metric:
    found = figure.of()
    counts = list(found.counts)
    bounds = [*map(str, found.bounds), "+Inf"]
    family = HistogramMetricFamily(figure.name, figure.text)
    family.add_metric([], list(zip(bounds, accumulate(counts), strict=True)), found.total)
    return family


class _PipelineFigures(Collector):
    """Figures that the pipeline reported last; it is another process, and may be on another machine."""

    def __init__(self, engine: Engine, progress: Callable[[], Progress | None]) -> None:
        self._engine = engine
        self._progress = progress

    def collect(self) -> Iterator[Metric]:
        """Whether the pipeline runs; and if it ever did here, its progress."""
        progress, now_ms = self._progress(), time.time_ns() // 1_000_000
        is_up = progress is not None and progress.is_up(now_ms)
        yield GaugeMetricFamily("tarry_pipeline_up", "1 while the pipeline runs here", value=float(is_up))
        if progress is None or not self._engine.ready:
            return
        lag = max(0, self._engine.stats().durable_seq - progress.cursor)
        behind_ms = progress.behind_ms + now_ms - progress.at_ms if lag else 0
        for name, text, value in (
            ("tarry_pipeline_cursor_seq", "The seq up to which the index is complete", progress.cursor),
            ("tarry_pipeline_lag_records", "Records that are durable and not indexed", lag),
            ("tarry_pipeline_behind_seconds", "For how long there have been such records", behind_ms / 1000),
            (
                "tarry_pipeline_last_commit_seconds",
                "The instant of the last commit",
                progress.last_commit_at_ms / 1000,
            ),
        ):
            yield GaugeMetricFamily(name, text, value=float(value))
        yield CounterMetricFamily("tarry_pipeline_commits", "Batches committed", value=progress.commits)
        yield CounterMetricFamily(
            "tarry_pipeline_failures",
            "Lives of the pipeline that ended with an error",
            value=progress.failures,
        )
