"""The proxy: byte for byte, streaming both ways, and gone when the client is."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from tests.unit.matrix_kit import bearer, matrix_serving
from tests.waiting import WITHIN_S, until


async def test_requests_arrive_as_they_were_sent(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        target = "/_matrix/client/v3/rooms/!a%3Ab/state/m.x/%2F%F0%9F%A6%89?a=%7B%22b%22%3A1%7D&a=+&&empty=&c"
        body = bytes(range(256)) * 10
        host, port = serving.client.base_url.host, serving.client.base_url.port
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(
            f"PUT {target} HTTP/1.1\r\nHost: matrix.example.org\r\nContent-Length: {len(body)}\r\n"
            "Authorization: X-Matrix origin=a,key=b,sig=c\r\nX-Forwarded-For: 203.0.113.7\r\n"
            "Connection: close, X-Hop\r\nX-Hop: 1\r\nTE: trailers\r\nX-Kept: Mixed, Case\r\n"
            "Accept-Encoding: br\r\n\r\n".encode()
            + body
        )
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert answer.startswith(b"HTTP/1.1 200 ")
        (got,) = serving.homeserver.got
        assert got.raw_path == target
        assert got.body == body
        assert got.headers["Host"] == "matrix.example.org"
        assert got.headers["Authorization"] == "X-Matrix origin=a,key=b,sig=c"
        assert got.headers["X-Forwarded-For"] == "127.0.0.1"
        assert got.headers["X-Kept"] == "Mixed, Case"
        assert got.headers["Accept-Encoding"] == "br"
        assert got.headers["Content-Length"] == str(len(body))
        for dropped in ("X-Hop", "TE", "Transfer-Encoding", "User-Agent", "Content-Type", "Accept"):
            assert dropped not in got.headers, dropped


async def test_answers_arrive_as_they_were_given(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        body = b"\x1f\x8bnot really gzip" * 100
        answers = [
            web.Response(
                status=418,
                body=body,
                headers=[("Content-Encoding", "gzip"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"),
                         ("X-Odd", "ü"), ("Connection", "close"), ("Date", "long ago")],
            ),
            web.Response(status=304, headers={"ETag": '"x"'}),
            web.Response(status=302, headers={"Location": "/elsewhere"}),
            web.Response(status=204),
        ]  # fmt: skip
        serving.homeserver.answers.append(lambda _: answers.pop(0))
        request = serving.client.build_request("GET", "/_synapse/client/x")
        answer = await serving.client.send(request, stream=True)
        assert b"".join([piece async for piece in answer.aiter_raw()]) == body
        assert answer.status_code == 418
        assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert answer.headers["content-length"] == str(len(body))
        assert len(answer.headers.get_list("date")) == 1
        answer = await serving.client.get("/.well-known/matrix/client")
        assert (answer.status_code, answer.headers["etag"], answer.content) == (304, '"x"', b"")
        answer = await serving.client.get("/_matrix/media/v3/x")
        assert (answer.status_code, answer.headers["location"]) == (302, "/elsewhere")
        assert (await serving.client.head("/_matrix/media/v3/x")).status_code == 204


async def test_an_upload_and_a_download_stream(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        pieces, size = 64, 256 * 1024
        began = asyncio.Event()
        digest = hashlib.sha256()

        async def slowly() -> AsyncIterator[bytes]:
            for number in range(pieces):
                yield bytes([number]) * size
                if number == 0:
                    # The rest is only sent once the homeserver has seen the beginning.
                    await asyncio.wait_for(began.wait(), 20)

        async def serve(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            if request.method == "POST":
                async for piece in request.content.iter_any():
                    began.set()
                    digest.update(piece)
                response.content_length = 2
                await response.prepare(request)
                await response.write(b"ok")
                return response
            await response.prepare(request)
            for number in range(pieces):
                await response.write(bytes([number]) * size)
            return response

        serving.homeserver.serve = serve
        answer = await serving.client.post("/_matrix/media/v3/upload", content=slowly())
        assert answer.content == b"ok"
        whole = b"".join(bytes([number]) * size for number in range(pieces))
        assert digest.digest() == hashlib.sha256(whole).digest()
        assert (await serving.client.get("/_matrix/media/v3/download/x")).content == whole


async def test_the_beginning_of_an_answer_does_not_wait_for_its_end(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        end = asyncio.Event()

        async def serve(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"first")
            await end.wait()
            await response.write(b"last")
            return response

        serving.homeserver.serve = serve
        async with serving.client.stream("GET", "/_matrix/client/v3/sync") as answer:
            parts = answer.aiter_raw()
            assert await asyncio.wait_for(anext(parts), 20) == b"first"
            end.set()
            assert await asyncio.wait_for(anext(parts), 20) == b"last"


async def test_a_long_poll_ends_at_the_homeserver_when_the_client_goes(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        arrived, ended = asyncio.Event(), asyncio.Event()

        async def serve(request: web.Request) -> web.StreamResponse:
            arrived.set()
            await until(lambda: request.transport is None or request.transport.is_closing())
            ended.set()
            return web.Response()

        serving.homeserver.serve = serve
        host, port = serving.client.base_url.host, serving.client.base_url.port
        _, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /_matrix/client/v3/sync?timeout=30000 HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(arrived.wait(), 20)
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        await asyncio.wait_for(ended.wait(), 20)


async def test_a_homeserver_that_is_down_or_breaks_off_is_told(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        await serving.homeserver.stop()
        answer = await serving.client.get("/_matrix/client/v3/sync", headers=bearer("x"))
        assert (answer.status_code, answer.json()["errcode"]) == (502, "M_UNKNOWN")
        assert answer.headers["access-control-allow-origin"] == "*"
        assert (await serving.client.get("/_matrix/client/versions")).status_code == 502
        await serving.homeserver.start()
        assert (await serving.client.get("/_matrix/client/v3/sync")).status_code == 200


async def test_only_the_homeservers_public_paths_are_passed_on(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        for path in ("/", "/_synapse/admin/v1/users", "/metrics", "/v1/messages", "/health", "/_matrixx/"):
            answer = await serving.client.get(path)
            assert (answer.status_code, answer.json()["errcode"]) == (404, "M_UNRECOGNIZED"), path
        assert not serving.homeserver.got
        for path in (
            "/_matrix/federation/v1/version",
            "/_matrix/key/v2/server",
            "/_synapse/client/oidc/callback",
        ):
            assert (await serving.client.get(path)).status_code == 200
        await until(lambda: len(serving.homeserver.got) == 3)


# Who is told to have sent it

FORGED = [
    ("X-Forwarded-For", "6.6.6.6"),
    ("X-Forwarded-For", "7.7.7.7"),
    ("X-Real-IP", "6.6.6.6"),
    ("Forwarded", "for=6.6.6.6"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Host", "evil.example"),
    ("X-Forwarded-Port", "666"),
]


async def test_a_client_cannot_pretend_to_be_another(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data") as serving:
        await serving.client.get("/_matrix/client/v3/devices", headers=FORGED)
        (got,) = serving.homeserver.got
        assert got.headers.getall("X-Forwarded-For") == ["127.0.0.1"]
        assert got.headers.getall("X-Forwarded-Proto") == ["http"]
        assert not {"X-Real-IP", "Forwarded", "X-Forwarded-Host", "X-Forwarded-Port"} & set(got.headers)


async def test_our_own_proxies_are_believed_as_far_as_they_have_seen(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", trusted_proxies=["127.0.0.1", "10.0.0.0/8"]) as serving:
        for forwarded, told in (
            # The client wrote the first one; a proxy of ours at 10.1.1.1 saw 203.0.113.7 and one here saw 10.1.1.1.
            ("6.6.6.6, 203.0.113.7, 10.1.1.1", "203.0.113.7, 10.1.1.1, 127.0.0.1"),
            ("203.0.113.7", "203.0.113.7, 127.0.0.1"),
            ("nonsense, 203.0.113.7", "203.0.113.7, 127.0.0.1"),
            ("", "127.0.0.1"),
        ):
            headers = {
                "X-Forwarded-For": forwarded,
                "X-Forwarded-Proto": "https",
                "X-Forwarded-Host": "matrix.example.org",
                "X-Real-IP": "6.6.6.6",
                "Forwarded": "for=6.6.6.6",
            }
            await serving.client.get("/_matrix/client/v3/devices", headers=headers)
            got = serving.homeserver.got.pop()
            assert got.headers["X-Forwarded-For"] == told
            assert got.headers.getall("X-Forwarded-Proto") == ["https"]
            assert got.headers["X-Forwarded-Host"] == "matrix.example.org"
            assert not {"X-Real-IP", "Forwarded"} & set(got.headers)


ASTRAY = [
    "/_matrix/../_synapse/admin/v1/users",
    "/_matrix/%2e%2e/_synapse/admin/v1/users",
    "/_matrix/.%2E/_synapse/admin/v1/users",
    "/_matrix/client/..%2f..%2f_synapse/admin",
    "/_matrix/client/./../../_synapse/admin",
    "/_matrix/..\\_synapse/admin",
    "/_matrix/..%5c_synapse/admin",
    "/_synapse/client/../admin/v1/users",
    "/.well-known/matrix/../../_synapse/admin",
    "/_matrix/..",
    "/_synapse/admin/v1/users",
]


async def test_no_path_leads_astray(tmp_path: Path) -> None:
    """The homeserver, or a proxy before it, may resolve dots: what it then serves has to be what is passed on."""
    async with matrix_serving(tmp_path / "data") as serving:
        host, port = serving.client.base_url.host, serving.client.base_url.port
        for path in ASTRAY:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ")), path
        assert not serving.homeserver.got
        for path in ("/_matrix/media/v3/download/a/..b", "/_matrix/client/v3/rooms/%21a%2F..%2Fb/state"):
            assert (await serving.client.get(path)).status_code == 200
        assert len(serving.homeserver.got) == 2


async def test_slow_requests_of_one_token_leave_connections_to_the_others(tmp_path: Path) -> None:
    async with (
        matrix_serving(tmp_path / "data", max_connections=8) as serving,
        asyncio.timeout(WITHIN_S),
        asyncio.TaskGroup() as tasks,
    ):
        released = asyncio.Event()
        polls = 0

        async def serve(request: web.Request) -> web.StreamResponse:
            nonlocal polls
            if request.path.endswith("/sync"):
                polls += 1
                await released.wait()
            return web.json_response({})

        serving.homeserver.serve = serve
        host, port = serving.client.base_url.host, serving.client.base_url.port

        async def poll(token: str) -> tuple[int, bytes]:
            reader, writer = await asyncio.open_connection(host, port)
            head = f"GET /_matrix/client/v3/sync HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.read()
            writer.close()
            return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]

        waiting = [tasks.create_task(poll("ann-token")) for _ in range(4)]
        await until(lambda: polls == 4)
        status, body = await poll("ann-token")
        assert (status, b"M_LIMIT_EXCEEDED" in body, b"retry_after_ms" in body) == (429, True, True)
        waiting.append(tasks.create_task(poll("bob-token")))
        await until(lambda: polls == 5)
        released.set()
        assert {status for status, _ in await asyncio.gather(*waiting)} == {200}
        assert (await poll("ann-token"))[0] == 200
