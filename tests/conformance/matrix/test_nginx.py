"""Behind a reverse proxy that sends only the door's paths to Tarry: the snippet of `deploy/nginx`, with Debian's nginx."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from bench.peers import packages
from bench.peers.peer import Skipped
from tests.conformance.matrix.conftest import Door, Stage
from tests.conformance.matrix.people import CLIENT, UNSTABLE, Person, fresh, schedule_path, text
from tests.conformance.matrix.synapse import Synapse
from tests.processes import ROOT, free_port
from tests.waiting import until


class Nginx(NamedTuple):
    url: str
    log: Path

    async def went_to(self, path: str) -> str:
        """The address that the last request for a path was passed to; it is written down after the answer."""

        async def written() -> str | None:
            lines = [line.split() for line in self.log.read_text().splitlines()]
            return next((address for address, asked in reversed(lines) if asked == path), None)

        return await until(written) or ""


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory, stage: Stage) -> Iterator[Nginx]:
    try:
        program = packages.program("nginx", "nginx")
    except Skipped as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("nginx")
    # The snippets as they are, but for the address and the place that this machine has.
    for name in ("tarry-matrix.conf", "tarry-matrix-pass.conf"):
        snippet = (ROOT / "deploy" / "nginx" / name).read_text()
        address = stage.door.url.removeprefix("http://")
        written = snippet.replace("127.0.0.1:8008", address).replace("/etc/nginx/snippets", str(folder))
        (folder / name).write_text(written)
    port = free_port()
    (folder / "nginx.conf").write_text(f"""
        daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
        events {{}}
        http {{
            client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
            uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
            log_format where '$upstream_addr $uri';
            access_log {folder}/access.log where;
            server {{
                listen 127.0.0.1:{port};
                include {folder}/tarry-matrix.conf;
                location / {{ proxy_pass {stage.homeserver.url}; proxy_set_header X-Forwarded-For $remote_addr; }}
            }}
        }}""")
    process = subprocess.Popen(
        [program, "-p", folder, "-c", folder / "nginx.conf"],
        env=packages.environment(),
        stderr=subprocess.PIPE,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 30
        while True:
            try:
                httpx.get(f"{url}/_matrix/client/versions", trust_env=False)
                break
            except httpx.TransportError:
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield Nginx(url, folder / "access.log")
    finally:
        process.terminate()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


async def test_nginx_passes_the_doors_paths_and_nothing_else(
    nginx: Nginx, alice: Person, door: Door, homeserver: Synapse
) -> None:
    person = alice.at(nginx.url)
    room_id = await person.create_room()
    to_tarry, to_homeserver = door.url.removeprefix("http://"), homeserver.url.removeprefix("http://")
    for path in (
        f"{CLIENT}/versions",
        f"{CLIENT}/v3/capabilities",
        f"{CLIENT}/v1/delayed_events",
        f"{UNSTABLE}/delayed_events",
        f"{CLIENT}/v3/rooms/{room_id}/state/m.room.create/",
        f"{CLIENT}/v3/future",
        f"{CLIENT}/unstable/io.element.msc3140/future",
    ):
        await person.ask("GET", path)
        assert await nginx.went_to(path) == to_tarry, path
    for path in (
        f"{CLIENT}/v3/sync",
        f"{CLIENT}/v3/account/whoami",
        f"{CLIENT}/v3/rooms/{room_id}/messages",
        f"{CLIENT}/v3/rooms/{room_id}/state",
        f"{CLIENT}/v1/rooms/{room_id}/hierarchy",
        "/_matrix/client/v1/media/config",
        "/_matrix/key/v2/server",
        "/",
    ):
        await person.ask("GET", path, params={"dir": "b"})
        assert await nginx.went_to(path) == to_homeserver, path


async def test_nginx_every_dialect_works_behind_it(nginx: Nginx, alice: Person) -> None:
    person = alice.at(nginx.url)
    room_id = await person.create_room()
    features = (await person.done("GET", f"{CLIENT}/versions"))["unstable_features"]
    assert features["org.matrix.msc4140"] is True
    seed = await person.delay(room_id, text("seed"))
    merged = await person.done("PUT", schedule_path(room_id), {"delay_ms": 60_000, "content": text("merged")})
    path = f"{CLIENT}/v3/rooms/{room_id}/send/m.room.message/{fresh()}"
    query = await person.done("PUT", f"{path}?org.matrix.msc4140.delay=60000", text("query"))
    odd = f"{CLIENT}/v3/rooms/{room_id}/state/org.example.state/a%2Fb%20%E2%98%8E?org.matrix.msc4140.delay=60000"
    state = await person.done("PUT", odd, {"n": 1})
    ids = [seed, merged["delay_id"], query["delay_id"], state["delay_id"]]
    assert {entry["delay_id"] for entry in (await person.listed())["scheduled"]} == set(ids)
    for delay_id in ids:
        assert (await person.manage(delay_id, "send")).status_code == 200
    assert {event["content"]["body"] for event in await person.events(room_id)} == {"seed", "merged", "query"}
    assert await person.state(room_id, "org.example.state", "a/b ☎") == {"n": 1}
    # What asks for no delay is sent at once, through Tarry.
    assert re.match(r"\$", await person.say(room_id, "at once"))
