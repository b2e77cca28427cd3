"""Who is to blame for a timeout: against real sockets, with an event loop that is held on purpose."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loms.collect.completion import CompletionClient
from loms.collect.http import HttpFetcher, no_connection
from loms.collect.lateness import Lateness
from loms.collect.targets import ProbeSettings, Target
from loms.core.errors import TargetError

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\na 1\n"


@contextmanager
def server(say: bytes | None) -> Iterator[Target]:
    """Accepts connections in a thread of its own and answers each request so; None: never."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(connection: socket.socket) -> None:
            with connection:
                while connection.recv(65536):
                    if say is not None:
                        connection.sendall(say)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        port = listening.getsockname()[1]
        probe = ProbeSettings(deadline_seconds=0.6)
        yield Target("j", f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/metrics", probe=probe)
        listening.shutdown(socket.SHUT_RDWR)


def reason(target: Target, timeout: float, turn_seconds: float = 0.0) -> str:
    """Of a fetch while every turn of the event loop takes so long; empty when it succeeds."""

    async def run() -> str:
        fetcher, loop, held = HttpFetcher(), asyncio.get_running_loop(), True

        def hold() -> None:
            time.sleep(turn_seconds)
            if held:
                loop.call_soon(hold)

        if turn_seconds:
            loop.call_soon(hold)
        try:
            await fetcher.fetch(target, timeout)
        except TargetError as error:
            return error.reason
        finally:
            held = False
            await fetcher.close()
        return ""

    return asyncio.run(run())


def test_connected_without_an_answer_is_a_timeout() -> None:
    with server(None) as target:
        assert reason(target, 0.3) == "timeout"


def test_an_answer_that_is_under_way_is_none() -> None:
    with server(ANSWER[:-2]) as target:
        assert reason(target, 0.3) == "incomplete"


def test_without_an_answer_while_the_loop_is_held_it_is_our_own_fault() -> None:
    with server(None) as target:
        assert reason(target, 0.6, turn_seconds=0.4) == "late"


def test_a_new_connection_gets_time_for_its_answer_however_many_turns_it_took() -> None:
    with server(ANSWER) as target:
        assert reason(target, 0.8, turn_seconds=0.19) == ""


def test_a_full_queue_of_connections_is_no_answer_of_the_target() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        assert reason(Target("j", "i", f"http://127.0.0.1:{port}/metrics"), 0.3) == "connect_timeout"
        for one in waiting:
            one.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "refused"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 111] Connect call failed"), "refused"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "connection"),
        (OSError(errno.EHOSTUNREACH, "no route to host"), "unreachable"),
        (OSError(errno.ENETUNREACH, "network is unreachable"), "unreachable"),
        (OSError(errno.EMFILE, "too many open files"), "unreachable"),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), "connect_timeout"),
    ],
)
def test_only_a_refused_or_broken_connection_says_that_nobody_is_there(error: OSError, expected: str) -> None:
    assert no_connection(error) == expected


def test_a_name_that_does_not_resolve_is_not_a_dead_engine() -> None:
    assert reason(Target("j", "i", "http://" + "x" * 70 + ".invalid:9/metrics"), 5) == "dns"


@pytest.mark.parametrize(("held", "alive"), [(False, False), (True, None)])
def test_a_probe_that_times_out_while_the_loop_is_held_gives_no_verdict(held: bool, alive: bool | None) -> None:
    async def run(target: Target) -> None:
        client = CompletionClient()
        if held:
            asyncio.get_running_loop().call_later(0.1, time.sleep, 0.9)
        answer = await client(target, "m")
        assert (answer.outcome, answer.alive) == ("timeout", alive)
        await client.close()

    with server(None) as target:
        asyncio.run(run(target))


def test_the_heartbeat_rests_while_nobody_watches() -> None:
    async def run() -> None:
        lateness = Lateness()
        with lateness.watch() as first:
            time.sleep(0.3)  # noqa: ASYNC251
            lateness.look()
            with lateness.watch() as second:
                pass
        seen = first.worst
        assert seen >= 0.15
        assert second.worst == 0.0
        await asyncio.sleep(0.25)  # two beats, if there were any
        assert first.worst == seen

    asyncio.run(run())
