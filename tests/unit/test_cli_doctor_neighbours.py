"""Findings of `tarry doctor` about the homeserver, the brokers and the collector that the configuration names: each is broken once."""

import json
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec import structs

from tarry.cli.finding import CheckResult
from tarry.cli.neighbours import (
    check_brokers,
    check_collector,
    check_homeserver,
    check_neighbours,
    check_skew,
)
from tarry.config import Config, load
from tarry.config.brokers import BrokerAllow, Brokers
from tarry.config.dapr import DaprApp
from tarry.config.matrix import Matrix
from tarry.config.settings import Traces
from tests.processes import free_port
from tests.unit.cli_kit import Shell
from tests.unit.dapr_kit import resources
from tests.unit.matrix_kit import AS_TOKEN, HS_TOKEN, TinyHomeserver


def of(findings: list[CheckResult]) -> list[tuple[str, str]]:
    return [(finding.about, finding.level) for finding in findings]


def matrix(folder: Path, url: str, as_token: str = AS_TOKEN) -> Matrix:
    file = folder / "registration.yaml"
    file.write_text(json.dumps({"as_token": as_token, "hs_token": HS_TOKEN}))
    return Matrix(enabled=True, homeserver=url, registration=str(file))


async def test_a_homeserver_that_knows_us_and_the_ways_in_which_it_may_not(tmp_path: Path) -> None:
    homeserver = TinyHomeserver()
    homeserver.users[AS_TOKEN] = ("@tarry:example.org", "")
    await homeserver.start()
    try:
        config = matrix(tmp_path, homeserver.url)
        assert of(await check_homeserver(config)) == [("homeserver", "ok"), ("clock", "ok")]

        (unknown,) = await check_homeserver(matrix(tmp_path, homeserver.url, as_token="another-token"))
        assert unknown.level == "bad"
        assert "registration.yaml in its `app_service_config_files`" in unknown.text
        assert "another-token" not in unknown.text

        late = formatdate(time.time() - 100, usegmt=True)
        homeserver.answers.append(lambda _: web.json_response({"versions": []}, headers={"Date": late}))
        findings = await check_homeserver(matrix(tmp_path, homeserver.url))
        assert of(findings) == [("homeserver", "ok"), ("clock", "note")]
        assert "ahead of that of the homeserver" in findings[1].text

        homeserver.answers[:] = [lambda _: web.Response(status=404)]
        (other,) = await check_homeserver(matrix(tmp_path, homeserver.url))
        assert (other.level, "answers 404" in other.text) == ("bad", True)
    finally:
        await homeserver.stop()
    (away,) = await check_homeserver(matrix(tmp_path, homeserver.url))
    assert (away.level, "cannot be reached" in away.text) == ("bad", True)
    (unread,) = await check_homeserver(structs.replace(config, registration=str(tmp_path / "none.yaml")))
    assert (unread.level, "cannot be read" in unread.text) == ("bad", True)


def test_the_clocks_of_two_machines() -> None:
    assert check_skew(formatdate(1_000, usegmt=True), 1_002, "homeserver").level == "ok"
    assert "20 s behind that of" in check_skew(formatdate(1_020, usegmt=True), 1_000, "homeserver").text
    assert check_skew("yesterday", 1_000, "homeserver").level == "note"


def app(folder: Path, **redis: Any) -> DaprApp:
    made = resources(
        folder, {"name": "orders", "kind": "pubsub.redis", **redis}, {"name": "own", "kind": "pubsub.tarry"}
    )
    return DaprApp(resources_path=(str(made),))


async def test_a_broker_that_is_away_or_whose_file_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (away,) = await check_brokers(app(tmp_path / "away", redisHost=f"127.0.0.1:{free_port()}"))
    assert (away.about, away.level) == ("broker orders", "bad")
    assert "all.yaml" in away.text
    (tmp_path / "wrong").mkdir()
    (wrong,) = await check_brokers(app(tmp_path / "wrong", redisHost="nonsense:port"))
    assert (wrong.level, "redisHost" in wrong.text) == ("bad", True)
    (nonsense,) = await check_brokers(DaprApp(resources_path=(str(tmp_path / "nowhere"),)))
    assert (nonsense.about, nonsense.level) == ("components", "bad")
    # Without a file there is nothing but Tarry's own topics.
    assert await check_brokers(DaprApp()) == []


def test_brokers_that_are_destinations(tmp_path: Path) -> None:
    nobody = {"kind": "pubsub.redis", "redisHost": f"127.0.0.1:{free_port()}"}
    files = (str(resources(tmp_path, {"name": "orders", **nobody}, {"name": "closed", **nobody})),)

    def found(*components: str) -> list[CheckResult]:
        allow = tuple(BrokerAllow(component=one, namespaces=("public/default",)) for one in components)
        return list(check_neighbours(Config(brokers=Brokers(resources_path=files, allow=allow))))

    (away,) = found("orders")
    assert (away.about, away.level, "all.yaml" in away.text) == ("broker orders", "bad", True)
    (mistyped,) = found("order")
    assert (mistyped.about, mistyped.level) == ("components", "bad")
    assert "did you mean orders?" in mistyped.text
    # Those that nobody may send to are not connected to.
    assert found() == []


async def test_a_collector_that_takes_traces_and_those_that_do_not(tmp_path: Path) -> None:
    homeserver = TinyHomeserver()  # Takes anything, and answers as the test says.
    await homeserver.start()
    try:
        traces = Traces(
            endpoint=f"{homeserver.url}/v1/traces", headers={"authorization": "Bearer secret-one"}
        )
        assert of(await check_collector(traces)) == [("collector", "ok")]
        assert homeserver.got[-1].headers["authorization"] == "Bearer secret-one"
        for status, advice in ((401, "traces.headers"), (404, "traces.endpoint")):
            homeserver.answers[:] = [lambda _, status=status: web.Response(status=status)]  # type: ignore[misc]
            (found,) = await check_collector(traces)
            assert (found.level, advice in found.text, "secret-one" in found.text) == ("note", True, False)
    finally:
        await homeserver.stop()
    (away,) = await check_collector(traces)
    assert (away.level, "cannot be reached" in away.text) == ("note", True)


def test_only_what_is_named_is_asked_and_the_whole_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(check_neighbours(load().config)) == []
    tarry = Shell(monkeypatch, capsys)
    tarry.set("TARRY_DATA", str(tmp_path / "d"))
    tarry.set("TARRY_TRACES__ENDPOINT", f"http://127.0.0.1:{free_port()}/v1/traces")
    config = matrix(tmp_path, f"http://127.0.0.1:{free_port()}")
    tarry.set("TARRY_DOORS__MATRIX__HOMESERVER", config.homeserver or "")
    tarry.set("TARRY_DOORS__MATRIX__REGISTRATION", config.registration or "")
    ended = tarry("doctor", "--json")
    found = {finding["about"]: finding["level"] for finding in ended.json()}
    assert ended.code == 1
    assert (found["homeserver"], found["collector"]) == ("bad", "note")
    # A door that is closed is nobody's concern.
    tarry.set("TARRY_DOORS__MATRIX__ENABLED", "false")
    assert not [one for one in tarry("doctor", "--json").json() if one["about"] == "homeserver"]
