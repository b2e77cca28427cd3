"""A process of HTTP servers that misbehave, one way per path. Prints its ports as one line of JSON, then serves.

Run as ``python bad_targets.py TLS_DIR``; ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

TEXT = "text/plain; version=0.0.4"
GOOD = "# TYPE a gauge\na 1\nb 2\n"


def answer(body: bytes | str, content_type: str = TEXT, status: str = "200 OK", more: str = "") -> bytes:
    content = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(content)}\r\n{more}\r\n"
    return head.encode() + content


WHOLE: dict[str, bytes] = {
    "/good": answer(GOOD),
    "/malformed": answer("a 1\nb{x=1} 2\n"),
    "/html": answer("<html>Welcome</html>", "text/html; charset=utf-8"),
    "/duplicates": answer("a 1\nb 2\na 3\na 4\n"),
    "/latin1": answer('a 1\nb{city="Köln"} 1\n'.encode("latin-1")),
    "/error500": answer("oh no", status="500 Internal Server Error"),
    "/off": answer("off", status="501 Not Implemented"),
    "/gzip": answer(gzip.compress(GOOD.encode()), more="Content-Encoding: gzip\r\n"),
    "/bomb": answer(gzip.compress(bytes(64 << 20)), more="Content-Encoding: gzip\r\n"),
    "/many": answer("".join(f'a{{n="{i}"}} 1\n' for i in range(2000))),
    "/redirect": answer("", status="302 Found", more="Location: /good\r\n"),
    "/redirect-away": b"",
    "/redirect-loop": answer("", status="301 Moved", more="Location: /redirect-loop\r\n"),
    "/cut": answer(GOOD)[:-5],
    "/not-http": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n4\r\nb 2\n\r\n0\r\n\r\n",
}
CLOSING = {"/cut", "/not-http", "/port-and-close"}
counts: Counter[str] = Counter()


async def endless() -> AsyncIterator[bytes]:
    yield f"HTTP/1.1 200 OK\r\nContent-Type: {TEXT}\r\n\r\n".encode()
    count = 0
    while True:
        yield "".join(f'a{{n="{count + i}"}} 1\n' for i in range(1000)).encode()
        count += 1000


async def drip() -> AsyncIterator[bytes]:
    for byte in answer(GOOD * 100):
        yield bytes((byte,))
        await asyncio.sleep(0.05)


async def hang() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


STREAMS: dict[str, Callable[[], AsyncIterator[bytes]]] = {"/endless": endless, "/drip": drip, "/hang": hang}


def nth(count: int) -> bytes:
    """The ``/sequence``: what its ``count``-th scrape finds (from 0); after the end the last one stays."""
    bodies = [
        'a{job="x",exported_job="y",instance="z",empty=""} 1\nb 2\n',
        "b 3\n",
        None,
        f"b 4\nc 5\nd 6 {time.time_ns() // 1_000_000 - 200}\n",
        "b 7\nb 8\n",
        "c x\nb 9\n",
        "b 10\n",
    ]
    body = bodies[min(count, len(bodies) - 1)]
    return answer("broken", status="500 Internal Server Error") if body is None else answer(body)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            first = await reader.readexactly(1)
            if first == b"\x16":  # a TLS hello where HTTP is spoken
                writer.write(answer("", status="400 Bad Request"))
                return
            head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            path = head.split(" ", 2)[1]
            if path == "/echo":  # what the client sent, as the label of a sample
                sent = head.replace("\\", "\\\\").replace('"', '\\"').replace("\r\n", "\\n")
                writer.write(answer(f'request{{head="{sent}"}} 1\n'))
            elif path in ("/port", "/port-and-close"):  # which connection this is
                writer.write(answer(f"port {writer.get_extra_info('peername')[1]}\n"))
            elif path.startswith("/sequence"):  # one for each client: they differ in the query string
                writer.write(nth(counts[path]))
                counts[path] += 1
            elif path in STREAMS:
                async for piece in STREAMS[path]():
                    writer.write(piece)
                    await writer.drain()
            else:
                writer.write(WHOLE.get(path, answer("not here", status="404 Not Found")))
            await writer.drain()
            if path in CLOSING:
                return
    except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
        return
    finally:
        writer.close()


def tls(directory: Path, *, client: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=directory / "ca.pem")
    context.load_cert_chain(directory / "server.pem", directory / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED if client else ssl.CERT_NONE
    return context


async def main(directory: Path) -> None:
    contexts: dict[str, ssl.SSLContext | None] = {
        "http": None,
        "tls": tls(directory, client=False),
        "mutual_tls": tls(directory, client=True),
    }
    servers = {name: await asyncio.start_server(serve, "127.0.0.1", 0, ssl=c) for name, c in contexts.items()}
    ports = {name: server.sockets[0].getsockname()[1] for name, server in servers.items()}
    with socket.socket() as closed:  # bound, and not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        WHOLE["/redirect-away"] = answer(
            "", status="307 Elsewhere", more=f"Location: http://localhost:{ports['http']}/echo\r\n"
        )
        print(json.dumps({**ports, "closed": closed.getsockname()[1]}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
