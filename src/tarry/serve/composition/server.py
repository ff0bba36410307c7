"""The composition root: wires the parts together, runs them, and takes them down again.

Order of starting: configuration, data folder, address, ledger, registry, engine, listener. Order of
stopping: the listener (accept no more, let requests end), the engine (let attempts end), the registry, the
seal of the ledger, the lock. The process around it is in `process`.

A server that shares its ledger stands by between address and ledger, until the ledger is its own. It never gives it back
within one life: one that was superseded ends, as after any fault, and its next life stands by (docs/adr/0033-a-server-that-stands-by.md).

Nothing else in the project knows all the parts, and this module decides nothing that they could.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from tarry.config import Config, ConfigError, Loaded
from tarry.config.check import in_clear_text
from tarry.core.errors import TarryError, Unavailable
from tarry.core.messages.ids import Ids
from tarry.core.telemetry.figure import Figure
from tarry.core.tenants.access import Access, Token
from tarry.core.time.clock import SteadyClock, SystemClock
from tarry.doors.http.app import HttpApp, build_app
from tarry.engine.engine import Engine
from tarry.engine.loop.alarm import Alarm
from tarry.engine.loop.driver import Driver, Offloader, launcher
from tarry.engine.wiring import Surroundings
from tarry.index.delta import DeltaIndex
from tarry.index.progress import read_progress
from tarry.ledger.aside import publish
from tarry.ledger.disk import RealDisk
from tarry.ledger.ledger import Ledger
from tarry.ledger.log.replicated_log import ReplicatedLog
from tarry.outlets.webhook import WebhookOutlet
from tarry.registry.registry import Registry
from tarry.serve.composition import configuration
from tarry.serve.composition.registry_folder import RegistryFolder
from tarry.serve.composition.watchdog import Watchdog
from tarry.serve.datafolder import DataFolder
from tarry.serve.transport.callers import traced_app
from tarry.serve.transport.connection_budget import ConnectionBudget
from tarry.serve.transport.listener import Listener, ListenError
from tarry.web.pages import dashboard

if TYPE_CHECKING:
    from tarry.serve.composition.node import ClusterNode
    from tarry.serve.composition.shared import SnapshotUploads

log = logging.getLogger("tarry.serve")

FLUSH_WITHIN_S: Final = 10.0
"""At a stop the registry is given this long; what it lacks is replayed at the next start."""

FAREWELL_S: Final = 5.0
"""A server whose ledger has stopped answers for this long with the reason; then it ends, and is started again by its supervisor."""
FOLLOW_EVERY_S: Final = 0.05
"""So often the engine of a standby looks for what is new."""
SHARED_FAREWELL_S: Final = 0.1
"""Such a farewell where another server goes on with the ledger: clients are to find that one soon."""


class Server:
    """The parts, and the order in which they come and go. Needs a running loop."""

    def __init__(
        self,
        config: Config,
        folder: DataFolder,
        set_aside: Sequence[int] = (),
        *,
        clock: SteadyClock | None = None,
        alarm: Alarm | None = None,
    ) -> None:
        """`clock`, and an alarm that rings by it, are for servers under test; no setting gives others than the machine's."""
        self._config = config
        self._set_aside = set_aside
        self._folder = folder
        loop = asyncio.get_running_loop()
        self._writing = Offloader(loop, "registry", self._faulted)
        self._reading = Offloader(loop, "index", self._faulted)
        self._clock = clock or SystemClock()
        self._alarm = alarm
        self._webhook = WebhookOutlet(config.webhook, self._clock)
        self._ledger: Ledger | None = None
        self._registry = RegistryFolder(folder.registry)
        self._engine: Engine | None = None
        self._driver: Driver | None = None
        self._watchdog = Watchdog(loop)
        self._budget = ConnectionBudget()
        self._budget.reserve(config.webhook.max_connections)
        self._access = Access(configuration.tokens_of(config))
        self._doors = configuration.doors_of(config, self._access, self._budget, self._clock)
        self._tracer = configuration.tracer_of(config)
        self._app: HttpApp | None = None
        self._listener: Listener | None = None
        self._url = ""
        self._node: ClusterNode | None = None
        self._uploading = Offloader(loop, "snapshots", self._faulted)
        self._uploads: SnapshotUploads | None = None
        self._shared_log: ReplicatedLog | None = None
        """The log of a ledger that is shared, once it is this server's."""
        self._running = False
        """Whether the ledger was read to its end."""
        self.addresses: list[str] = []
        """URLs of the doors beside the native API, once it has started."""
        self.fault: Exception | None = None
        """The fault that escaped from the engine, if any: it cannot go on."""
        self.on_fault: Callable[[], object] | None = None

    @property
    def engine(self) -> Engine:
        """The engine, once it has started."""
        if self._engine is None:
            raise RuntimeError("the server has not started")
        return self._engine

    def _bind(self) -> Listener:
        """Take all addresses, so that a taken one is told before anything is opened."""
        if self._listener is None:
            http = self._config.http
            self._listener = Listener(http, self._budget.share_of("http", http.max_connections))
            self._budget.check()
            self._url = self._listener.bind()
            self.addresses = [address for door in self._doors for address in door.bind()]
        return self._listener

    async def stand_by(self, stop: asyncio.Event) -> bool:
        """Follow the log of a shared ledger until the ledger is this server's; False if it was told to stop before.

        Meanwhile only health and figures are served. The other doors have their addresses and refuse connections, so that
        clients with several addresses try the next.
        """
        config, listener = self._config, self._bind()
        node = self._node = configuration.cluster_node(config, self._folder, self._clock, self._url)
        await listener.start(node.app(self._access, configuration.door_settings(config)), self._access)
        owning = asyncio.create_task(self._own(node))
        others = [asyncio.create_task(stop.wait()), asyncio.create_task(self._follow(node))]
        try:
            await asyncio.wait((owning, *others), return_when=asyncio.FIRST_COMPLETED)
            if owning.done():
                self._shared_log = owning.result()
                self._uploads = node.uploads(self._shared_log, self._uploading)
            elif not stop.is_set():
                # The engine that follows has failed.
                await others[1]
        finally:
            for task in (owning, *others):
                task.cancel()
        return self._shared_log is not None

    async def _own(self, node: "ClusterNode") -> ReplicatedLog:
        await node.inspect()
        print(f"tarry: standing by on {self._url}", flush=True)  # noqa: T201 - who started us waits for it
        return await node.owned()

    async def _follow(self, node: "ClusterNode") -> None:
        """Let an engine follow the log all the time: so a takeover with much that waits takes no longer than one with little."""
        more = False
        while True:
            await asyncio.sleep(0 if more else FOLLOW_EVERY_S)
            more = self._follow_some(node)

    def _follow_some(self, node: "ClusterNode") -> bool:
        """Let the engine follow a step; whether there is more. The first makes it."""
        if self._engine is not None and self._ledger is not None:
            self._ledger.look()
            return self._engine.follow(self._set_aside)
        log = node.followed
        if log is None:
            return False
        ledger = self._ledger = Ledger.follow(
            RealDisk(),
            str(self._folder.ledger),
            configuration.ledger_settings(self._config),
            self._clock,
            log,
        )
        self._folder.check_key(ledger.ledger_id)
        self._engine = self._registry.engine(
            ledger, partial(self._engine_on, ledger), lambda engine: engine.follow(self._set_aside)
        )
        return True

    async def start(self) -> str:
        """Open everything and begin to accept; gives the URL."""
        config, listener = self._config, self._bind()
        url = self._url
        began = time.monotonic()
        self._ledger = self._open_ledger()
        self._folder.check_key(self._ledger.ledger_id)
        engine = self._engine = self._recovered_engine(self._ledger)
        self._running = True
        stats = engine.stats()
        took_ms = round((time.monotonic() - began) * 1000)
        log.info("recovered", extra={"seq": stats.durable_seq, "pending": stats.pending, "took_ms": took_ms})
        loop = asyncio.get_running_loop()
        self._driver = Driver(engine, loop, self._faulted, self._alarm)
        self._ledger.on_failed(self._ledger_failed)
        self._ledger.start(self._driver.post, loop.call_soon)
        self._driver.start()
        self._app = build_app(
            engine,
            self._access,
            configuration.door_settings(config),
            partial(read_progress, self._folder.pipeline),
            {path: app for door in self._doors for path, app in door.mounts.items()},
            dashboard(),
            [
                *self._watchdog.figures,
                *self._budget.figures,
                Figure(
                    name="tarry_token_limited",
                    text="How often a token was told to wait because of its operations a second",
                    label="token",
                    counts=True,
                    values=lambda: {
                        one.caller.name: one.caller.standing.limited for one in self._access.tokens
                    },
                ),
                *(figure for door in self._doors for figure in door.figures),
                *(self._node.figures if self._node is not None else ()),
            ],
            lambda: None if self._node is None else self._node.shown(),
            lambda: [] if self._node is None else self._node.warnings,
        )
        for door in self._doors:
            await door.start(engine)
        # What a start costs is nobody's turn.
        self._watchdog.start()
        if self._node is None:
            await listener.start(traced_app(self._app, engine), self._access)
        else:
            listener.change(traced_app(self._app, engine))
        for address in self.addresses:
            log.info("a door is open", extra={"url": address})
        for name in in_clear_text(config):
            log.warning(
                "tokens pass over the network in clear text: set %s.tls_cert and %s.tls_key, or put a proxy in front that speaks TLS",
                name,
                name,
            )
        log.info("ready", extra={"url": url, "data": config.data, "tokens": len(config.tokens)})
        return url

    def _open_ledger(self) -> Ledger:
        if self._ledger is not None:
            # It was followed, and is this server's now.
            self._ledger.own()
            return self._ledger
        # A missing key is told before anything is opened.
        self._folder.id_key()
        settings = configuration.ledger_settings(self._config)
        ledger = Ledger.open(
            RealDisk(), str(self._folder.ledger), settings, self._clock, log=self._shared_log
        )
        for note in ledger.notes:
            log.warning("recovery: %s", note)
        return ledger

    def _recovered_engine(self, ledger: Ledger) -> Engine:
        """An engine in the state of the ledger's head."""
        engine = self._engine
        if engine is None:
            engine = self._registry.engine(
                ledger, partial(self._engine_on, ledger), lambda engine: engine.recover(self._set_aside)
            )
        else:
            engine.recover(self._set_aside)
        publish(str(self._folder.ledger), engine.set_aside)
        if self._shared_log is not None:
            # Late, as with the uploads: a server with a ledger of its own needs none of it.
            from tarry.serve.composition.shared import share_set_aside

            share_set_aside(self._config, engine.set_aside)
        # What is there now stays: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        return engine

    def _snapshot_made(self, path: str, seq: int, first_seq: int) -> None:
        """A snapshot of the registry: other servers of this ledger are to have it too."""
        if self._uploads is not None:
            self._uploads.made(path, seq, first_seq)

    def _ledger_failed(self, error: OSError) -> None:
        """Only a start finds out what the disk has: end, once those who wait have been told."""
        reason = Unavailable(f"the ledger has stopped: {error}")
        farewell_s = FAREWELL_S if self._node is None else SHARED_FAREWELL_S
        asyncio.get_running_loop().call_later(farewell_s, self._faulted, reason)

    def _faulted(self, error: Exception) -> None:
        if self.fault is None:
            self.fault = error
            self._running = False
            log.critical("a fault: %s", error, exc_info=None if isinstance(error, TarryError) else error)
            if self.on_fault is not None:
                self.on_fault()

    def _undecided(self, error: Exception) -> None:
        """A record was enqueued that could not be decided. While the ledger is still read, the start itself fails with it."""
        if self._running:
            self._faulted(error)

    def _engine_on(self, ledger: Ledger, registry: Registry) -> Engine:
        config, folder = self._config, self._folder
        loop = asyncio.get_running_loop()
        given = Surroundings(
            ledger=ledger,
            registry=registry,
            index=DeltaIndex(f"{config.tables()}/index", ledger.ledger_id, config.pipeline.storage_options),
            clock=self._clock,
            ids=Ids(folder.id_key()),
            outlets={"http": self._webhook, "https": self._webhook}
            | {scheme: outlet for door in self._doors for scheme, outlet in door.outlets.items()},
            launch=launcher(loop, self._faulted),
            offload=self._writing,
            reading=self._reading,
            settings=config.engine,
            broker_policy=config.doors.pulsar.policy(config.policies.broker),
            namespace_policies=configuration.namespace_policies(config),
            snapshot_folder=str(folder.registry),
            on_snapshot=self._snapshot_made,
            shared=lambda: self._access.has_tenants,
            tenure_ms=config.cluster.session_timeout_ms // 2,
            seed=time.time_ns(),
            tracer=self._tracer,
            on_fault=self._undecided,
        )
        return Engine(given)

    def renew(self, load: Callable[[], Loaded]) -> None:
        """Read certificates and tokens again. If some cannot be used, the log says so and the old ones stay."""
        renewing = [door.renew for door in self._doors]
        if self._listener is not None:
            renewing.append(self._listener.renew)
        for renew in renewing:
            try:
                renew()
            except ListenError as error:
                log.error("the certificate stays as it was: %s", error)
        try:
            self._renew_tokens(configuration.tokens_of(load().config))
        except (ConfigError, TarryError) as error:
            log.error("the tokens stay as they were: %s", error)
        log.info("certificates and tokens were read again", extra={"tokens": len(self._access.tokens)})

    def _renew_tokens(self, tokens: Sequence[Token]) -> None:
        if self._access.tokens and not tokens:
            # Where it listens was settled at the start, when there were some.
            raise ConfigError("without any, everybody may do everything; that takes a restart")
        self._access.replace(tokens)
        for door in self._doors:
            door.revoke()
        if self._app is not None:
            self._app.revoke()

    async def stop(self) -> None:
        """Take down the opened parts, in the opposite order.

        A server that could not start because of what it found leaves everything as it found it: what is
        in memory then is no state to write down.
        """
        if self._app is not None:
            self._app.stop()
        await asyncio.gather(*(door.stop() for door in self._doors))
        if self._listener is not None:
            await self._listener.stop()
        if self._driver is not None:
            self._driver.stop()
        if self._running and self._engine is not None:
            self._engine.ready = False
            await self._let_attempts_end(self._engine)
        await self._webhook.close()
        for door in self._doors:
            await door.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        if self._running and self._engine is not None and self._ledger is not None:
            await _flush(self._engine)
            if self._driver is not None:
                self._driver.close()
            self._ledger.close()
        await self.leave()
        self._watchdog.stop()
        self._writing.close()
        self._reading.close()
        self._uploading.close()
        self._registry.close()
        # Where the process goes on, the collector may look at what the engine left behind.
        gc.unfreeze()
        if self._running:
            log.info("stopped")

    async def leave(self) -> None:
        """Leave the servers that share the ledger, if it is shared: another one takes it over."""
        if self._node is not None:
            await self._node.leave()

    async def _let_attempts_end(self, engine: Engine) -> None:
        """Wait a moment for the verdicts of messages in flight: without them these are sent again next time."""
        deadline = time.monotonic() + self._config.http.drain_ms / 1000
        while time.monotonic() < deadline:
            if not engine.sending:
                return
            await asyncio.sleep(0.01)


async def _flush(engine: Engine) -> None:
    """Bring the registry up to date, so that the next start replays nothing. Not more than a convenience."""
    try:
        async with asyncio.timeout(FLUSH_WITHIN_S):
            await engine.flush()
    except (TimeoutError, TarryError) as error:
        log.warning(
            "the registry is behind the ledger; the next start takes longer",
            extra={"reason": str(error) or type(error).__name__},
        )
