"""The story that ``loms demo`` tells: a real engine, four simulated ones, load, two faults, and what LOMS says."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import aiohttp
import yaml
from aiohttp import web
from rich.console import Console
from rich.markup import escape

from loms.core.clock import Clock
from loms.core.errors import LomsError
from loms.lab.fleet import Fleet
from loms.lab.llama import LlamaServer
from loms.lab.load import Lengths, LoadGenerator, LoadProfile

HANG_AT, FREEZE_AT = 30.0, 60.0
"""Seconds after the page is up at which the simulated engine hangs and the real one is frozen."""
FAULT_SECONDS = 45.0
START_SECONDS = 60.0


class Story:
    """Runs everything as child processes and in this event loop; when `run` ends, nothing is left of it."""

    def __init__(self, console: Console, clock: Clock, port: int, real: bool, seconds: float) -> None:
        self._console = console
        self._clock = clock
        self._port = port or _free_port()
        self._real = real
        self._seconds = seconds
        self._begin = clock.monotonic()
        self._frozen_at: dict[str, float] = {}
        """Instance → when its fault began, by the monotonic clock."""

    async def run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):  # asked to end, or the terminal was closed
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        if _taken(self._port):
            raise LomsError(f"port {self._port} is in use", hint="loms demo --port 0 takes a free one")
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loms-demo-")))
            self._say(
                "starting four simulated engines" + (" and a real llama.cpp with a 135M model" if self._real else "")
            )
            fleet = await asyncio.to_thread(lambda: stack.enter_context(Fleet(4, name="sim")))
            llama = await asyncio.to_thread(lambda: stack.enter_context(LlamaServer())) if self._real else None
            async with _receiver(self._notified) as hook:
                config = self._config(folder, fleet, llama, hook)
                log = stack.enter_context((folder / "loms.log").open("w"))
                process = _start(config, log)
                stack.callback(_end, process)
                await self._until_ready(process, folder / "loms.log")
                self._begin = self._clock.monotonic()
                load = asyncio.gather(*self._load(fleet, llama))
                try:
                    await self._story(fleet, llama)
                finally:
                    load.cancel()
                    with suppress(asyncio.CancelledError):
                        await load
                    self._say("cleaning up")

    def _config(self, folder: Path, fleet: Fleet, llama: LlamaServer | None, hook: str) -> Path:
        jobs = [{"name": "simulated", "interval": "2s", "targets": [_instance(url) for url in fleet.urls]}]
        if llama:
            jobs.append({"name": "llama.cpp", "interval": "2s", "targets": [_instance(llama.url)]})
        path = folder / "loms.yaml"
        settings = {
            "deployment_zone": "demo",
            "server": {"port": self._port},
            "store": {"path": str(folder / "data")},
            "scrape": {"timeout": "2s", "jobs": jobs, "discover": {"enabled": False}},
            "alerting": {"webhooks": [{"url": hook, "name": "demo"}]},
        }
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        return path

    def _load(self, fleet: Fleet, llama: LlamaServer | None) -> list[Any]:
        profiles = [
            (
                engine.url,
                engine.model,
                LoadProfile(rate=1.5 + i, seconds=1e9, prefix_words=120, seed=i, timeout_seconds=30),
            )
            for i, engine in enumerate(fleet.engines)
        ]
        if llama:
            gentle = LoadProfile(
                rate=0.5,
                seconds=1e9,
                prompt_words=Lengths(40),
                output_tokens=Lengths(32),
                max_in_flight=8,
                timeout_seconds=30,
            )
            profiles.append((llama.url, llama.model, gentle))
        return [LoadGenerator(url, model, profile, keep=1000).run() for url, model, profile in profiles]

    async def _story(self, fleet: Fleet, llama: LlamaServer | None) -> None:
        url = f"http://127.0.0.1:{self._port}"
        self._say(f"the page is up: [bold underline]{url}[/]   (in another terminal: {sys.argv[0]} top --url {url})")
        self._say(f"in {HANG_AT:.0f} s a simulated engine will hang with green health; look at the engines meanwhile")
        victim = _instance(fleet.urls[1])
        await self._until(HANG_AT)
        await _post(f"{fleet.urls[1]}/lab/faults", {"fault": "hang", "seconds": FAULT_SECONDS})
        self._frozen_at[victim] = self._clock.monotonic()
        self._say(
            f"[yellow]fault:[/] the core of {victim} hangs; its /health still answers 200, /metrics the old numbers"
        )
        if llama:
            await self._until(FREEZE_AT)
            llama.freeze()
            self._frozen_at[_instance(llama.url)] = self._clock.monotonic()
            self._say(f"[yellow]fault:[/] the real llama.cpp at {_instance(llama.url)} is frozen (SIGSTOP)")
        await self._until(HANG_AT + FAULT_SECONDS)
        self._say(f"the core of {victim} goes on")
        if llama:
            await self._until(FREEZE_AT + FAULT_SECONDS)
            llama.resume()
            self._say("the real engine goes on (SIGCONT); its incident should resolve by itself")
        await self._until(FREEZE_AT + FAULT_SECONDS + 30)
        self._say("that was the story; the page stays up until Ctrl-C" if not self._seconds else "that was the story")
        await self._until(self._seconds or 1e9)

    async def _notified(self, payload: dict[str, Any]) -> None:
        now = self._clock.monotonic()
        for alert in payload["alerts"]:
            labels, notes = alert["labels"], alert["annotations"]
            began = self._frozen_at.get(labels.get("instance", ""))
            after = f" {now - began:.0f} s after the fault" if began is not None and alert["status"] == "firing" else ""
            colour = "red" if alert["status"] == "firing" else "green"
            self._say(
                f"[{colour}]webhook: {alert['status']}{after}:[/] {escape(notes.get('summary', labels['alertname']))}"
            )
            if alert["status"] == "firing" and (step := notes.get("next_step")):
                self._console.print(f"           next: {escape(' '.join(step.split()))}", soft_wrap=True)

    async def _until_ready(self, process: subprocess.Popen[bytes], log: Path) -> None:
        end = self._clock.monotonic() + START_SECONDS
        async with aiohttp.ClientSession() as session:
            while self._clock.monotonic() < end and process.poll() is None:
                with suppress(aiohttp.ClientError):
                    async with session.get(f"http://127.0.0.1:{self._port}/readyz") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.2)
        raise LomsError("LOMS did not start", hint=_last_words(log))

    async def _until(self, seconds: float) -> None:
        """Wait until so many seconds after the page came up, but not past the end."""
        end = min(seconds, self._seconds or 1e9)
        await asyncio.sleep(max(0.0, self._begin + end - self._clock.monotonic()))

    def _say(self, text: str) -> None:
        self._console.print(f"[dim]{self._clock.monotonic() - self._begin:6.1f} s[/]  {text}", soft_wrap=True)


@asynccontextmanager
async def _receiver(notified: Any) -> AsyncIterator[str]:
    """A webhook receiver on a free loopback port; yields its URL."""

    async def handle(request: web.Request) -> web.Response:
        await notified(json.loads(await request.text()))
        return web.Response()

    application = web.Application()
    application.router.add_post("/", handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def _post(url: str, body: dict[str, Any]) -> None:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        answer.raise_for_status()


def _start(config: Path, log: IO[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "loms", "up", "--config", str(config)]
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _last_words(log: Path) -> str:
    return log.read_text(encoding="utf-8").strip()[-2000:] or "its log is empty"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _instance(url: str) -> str:
    return urlsplit(url).netloc


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
