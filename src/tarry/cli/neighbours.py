"""The systems that the configuration names, for `tarry doctor`: each is asked whether it is there and knows us.

Each is asked in the way in which the server speaks to it, and with the same credentials, within a few seconds. Nothing is sent
that lasts. The texts hold no secret.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Iterable, Iterator
from email.utils import parsedate_to_datetime
from typing import Final

import aiohttp

from tarry.cli.finding import CheckLevel, CheckResult
from tarry.config import Config, ConfigError
from tarry.config.dapr import DaprApp
from tarry.config.matrix import Matrix
from tarry.config.settings import Traces
from tarry.core.errors import Invalid
from tarry.core.time.clock import SystemClock
from tarry.doors.dapr.components import ComponentDefinition
from tarry.doors.dapr.resources import BadResource
from tarry.doors.dapr.sidecar import Resources
from tarry.outlets.dapr.component import Component, ComponentSurroundings, make
from tarry.outlets.dapr.errors import ComponentError, Denied
from tarry.outlets.matrix.homeserver import FAILURES, Homeserver, HomeserverSettings
from tarry.serve.composition.brokers import DAPR_NAMESPACE, read_access
from tarry.serve.composition.matrix import tokens_of

WITHIN_S: Final = 5.0
"""How long each may take to answer."""
MAX_SKEW_S: Final = 5.0
OWN_KINDS: Final = ("pubsub.tarry", "pubsub.in-memory")
"""Components that are no systems of their own."""


def check_neighbours(config: Config) -> Iterator[CheckResult]:
    """Check all neighbours at once."""
    checks: list[Awaitable[list[CheckResult]]] = []
    matrix, dapr = config.doors.matrix, config.doors.dapr
    if matrix.enabled is not False and matrix.homeserver is not None:
        checks.append(check_homeserver(matrix))
    if dapr.enabled is not False:
        for app in (dapr, *dapr.apps):
            checks.append(check_brokers(app))
    if config.brokers.allow:
        checks.append(check_destinations(config))
    if config.traces.endpoint is not None:
        checks.append(check_collector(config.traces))

    async def ask() -> list[list[CheckResult]]:
        return await asyncio.gather(*checks)

    for found in asyncio.run(ask()):
        yield from found


async def check_homeserver(config: Matrix) -> list[CheckResult]:
    """The homeserver answers, knows Tarry as its application service, and has the same time."""
    about = "homeserver"
    try:
        tokens = tokens_of(config)
    except ConfigError as error:
        return [CheckResult(about, "bad", str(error))]
    url = config.homeserver or ""
    homeserver = Homeserver(HomeserverSettings(url=url, as_token=tokens.as_token))
    try:
        async with asyncio.timeout(WITHIN_S):
            async with homeserver.stream("GET", "/_matrix/client/versions", [], None) as response:
                status, date = response.status, response.headers.get("Date")
            if status != 200:
                return [
                    CheckResult(
                        about,
                        "bad",
                        f"{url} answers {status} and is no homeserver; set doors.matrix.homeserver",
                    )
                ]
            whoami = await homeserver.as_service("GET", "/_matrix/client/v3/account/whoami")
    except FAILURES as error:
        reason = str(error) or type(error).__name__
        return [
            CheckResult(
                about, "bad", f"{url} cannot be reached: {reason}; start it, or set doors.matrix.homeserver"
            )
        ]
    finally:
        await homeserver.close()
    if whoami.status != 200:
        return [
            CheckResult(
                about,
                "bad",
                f"{url} does not know Tarry (it answers {whoami.status}): name {config.registration} in its "
                "`app_service_config_files`, and start it again",
            )
        ]
    found = [CheckResult(about, "ok", f"{url} answers, and knows Tarry")]
    if date is not None:
        found.append(check_skew(date, time.time(), "homeserver"))
    return found


def check_skew(date: str, now_s: float, whose: str) -> CheckResult:
    """The clock here against that of another machine, as its answer states it."""
    about = "clock"
    try:
        # Its time is in whole seconds.
        off_s = now_s - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return CheckResult(about, "note", f"the {whose} does not tell the time")
    if abs(off_s) > MAX_SKEW_S:
        way = "ahead of" if off_s > 0 else "behind"
        return CheckResult(
            about, "note", f"{abs(off_s):.0f} s {way} that of the {whose}; look at the time service of both"
        )
    return CheckResult(about, "ok", f"agrees with that of the {whose}")


async def check_brokers(app: DaprApp) -> list[CheckResult]:
    """The brokers of an application's components take a connection, with the credentials of their files."""
    try:
        resources = Resources(app, dict(os.environ))
    except (BadResource, OSError) as error:
        return [CheckResult("components", "bad", f"{error} (application {app.app_id})")]
    theirs = [one for one in resources.definitions if one.open_to(app.app_id)]
    return await _check_components(theirs, app.app_id, app.namespace)


async def check_destinations(config: Config) -> list[CheckResult]:
    """The brokers to which `broker://` destinations lead take a connection."""
    try:
        definitions = read_access(config).definitions
    except (BadResource, Invalid, OSError) as error:
        return [CheckResult("components", "bad", f"{error} (broker:// destinations)")]
    return await _check_components(definitions, config.brokers.app_id, DAPR_NAMESPACE)


async def _check_components(
    definitions: Iterable[ComponentDefinition], app_id: str, namespace: str
) -> list[CheckResult]:
    theirs = [one for one in definitions if one.kind not in OWN_KINDS]
    return list(await asyncio.gather(*(_check_component(one, app_id, namespace) for one in theirs)))


async def _check_component(definition: ComponentDefinition, app_id: str, namespace: str) -> CheckResult:
    about = f"broker {definition.name}"
    level: CheckLevel = "note" if definition.ignore_errors else "bad"
    component: Component | None = None
    try:
        surroundings = ComponentSurroundings(name=definition.name, clock=SystemClock())
        component = make(definition.kind, definition.properties_for(app_id, namespace), surroundings)
        async with asyncio.timeout(WITHIN_S):
            await component.start()
    except TimeoutError:
        reason = f"did not answer within {WITHIN_S:.0f} s; start it, or mend its file"
    except Denied as error:
        reason = f"{error}; mend the credentials in its file"
    except ComponentError as error:
        reason = str(error)
    else:
        return CheckResult(about, "ok", f"{definition.kind} is connected to")
    finally:
        if component is not None:
            await component.close()
    return CheckResult(about, level, f"{definition.kind} ({definition.file}): {reason}")


async def check_collector(traces: Traces) -> list[CheckResult]:
    """The collector of traces takes a request in which there are none."""
    about = "collector"
    url = traces.endpoint or ""
    headers = {**traces.headers, "content-type": "application/x-protobuf"}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(WITHIN_S)) as session,
            session.post(url, data=b"", headers=headers) as response,
        ):
            status = response.status
    except (aiohttp.ClientError, OSError) as error:
        reason = str(error) or type(error).__name__
        return [
            CheckResult(
                about, "note", f"{url} cannot be reached: {reason}; traces are lost until it is there"
            )
        ]
    if status in (401, 403):
        return [CheckResult(about, "note", f"{url} answers {status}; set traces.headers to what it asks for")]
    if status >= 300:
        return [
            CheckResult(
                about, "note", f"{url} answers {status}; set traces.endpoint to where it takes traces"
            )
        ]
    return [CheckResult(about, "ok", f"{url} takes traces")]
