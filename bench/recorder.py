"""Passes connections on to a server and writes down when each PUT begins: `recorder LISTEN TARGET FILE`.

A line of the file is the instant in nanoseconds and the path. It looks at nothing but the first bytes of what a client
sends, so that it costs next to nothing: what is measured is when a request was handed over.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import TextIO

import uvloop


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, file: TextIO | None) -> None:
    """Pass on what comes, until the end."""
    try:
        while data := await reader.read(1 << 16):
            if file is not None and data.startswith(b"PUT "):
                file.write(f"{time.time_ns()} {data.split(b' ', 2)[1].decode()}\n")
                file.flush()
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def main(listen: int, target: int, file: TextIO) -> None:
    """Serve until the end of the process."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, to_writer, file), pump(to_reader, writer, None))

    server = await asyncio.start_server(connected, "127.0.0.1", listen, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    # Appending, so that it may be emptied from outside.
    with Path(sys.argv[3]).open("a") as written:
        uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), written))
