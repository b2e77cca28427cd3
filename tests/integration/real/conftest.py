"""Real engines for the tests: vLLM in an environment of its own, and llama.cpp, both with the 135M model.

The first use installs vLLM with ``.ci/install-vllm`` into ``.venv-vllm`` at the top of the checkout (about two minutes,
3.5 GB). Both engines get one core; everything started here is ended here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes import Loms, free_port, status, wait_until

from loms.core.errors import MissingPackageError
from loms.lab.llama import LlamaServer, require

ROOT = Path(__file__).parents[3]
HOME = ROOT / ".venv-vllm"
MODEL = "smollm2-135m"
START_SECONDS = 180
INSTALL_SECONDS = 540


class Vllm:
    """``vllm serve`` on one core, 1 GiB of KV cache, four sequences at a time; a context manager."""

    def __init__(self, home: Path, log: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.model = MODEL
        port = self.url.rpartition(":")[2]
        command = [
            *(str(home / "venv" / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(home / "model"), "--served-model-name", MODEL),
            *("--host", "127.0.0.1", "--port", port),
            *("--max-model-len", "1024", "--dtype", "bfloat16", "--enforce-eager", "--max-num-seqs", "4"),
            "--disable-uvicorn-access-log",
        ]
        settings = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # One core: with two, its threads collapse as soon as anything else runs.
            "VLLM_CPU_OMP_THREADS_BIND": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{home / 'venv' / 'bin'}:{os.environ['PATH']}",
        }
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **settings},
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_until(self._started, START_SECONDS, "vLLM's start")
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Vllm:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def core(self) -> int:
        """Process id of the engine core, which computes while the API server answers ``/health`` and ``/metrics``."""
        found = [pid for pid in _family(self._process.pid) if _command(pid).startswith("VLLM::EngineCore")]
        assert len(found) == 1, found
        return found[0]

    def freeze(self) -> None:
        os.kill(self.core, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.core, signal.SIGCONT)

    def health(self) -> int:
        return status(f"{self.url}/health")

    def resident_mib(self) -> float:
        return sum(_resident_kib(pid) for pid in _family(self._process.pid)) / 1024

    def stop(self) -> None:
        family = _family(self._process.pid)
        if self._process.poll() is None:
            self._process.terminate()
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _started(self) -> bool:
        if self._process.poll() is not None:
            pytest.fail(f"vLLM ended while starting:\n{self.log.read_text(errors='replace')[-3000:]}")
        return self.health() == 200


def _family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, of in parents.items() if of == parent]
    return found


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def _resident_kib(pid: int) -> int:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])
    return 0


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """One vLLM for all tests: it takes half a minute to start. Tests leave it idle and awake."""
    if not (HOME / "ready").exists():
        install = subprocess.run(
            [str(ROOT / ".ci" / "install-vllm"), str(HOME)], capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
        if install.returncode != 0:
            reason = f"vLLM cannot be installed: {install.stderr.strip()[-500:]}"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
    with Vllm(HOME, tmp_path_factory.mktemp("vllm") / "log.txt") as server:
        yield server


@pytest.fixture(scope="session")
def llama() -> Iterator[LlamaServer]:
    try:
        require()
    except MissingPackageError as error:
        pytest.skip(f"{error.message}; {error.hint}")
    with LlamaServer() as server:
        yield server


@pytest.fixture(scope="module")
def loms(tmp_path_factory: pytest.TempPathFactory, vllm: Vllm, llama: LlamaServer) -> Iterator[Loms]:
    """LOMS with its defaults, watching both engines. It ends with its module: its probes are requests, which other
    tests would count."""
    instances = [server.url.rpartition("/")[2] for server in (vllm, llama)]
    with Loms(tmp_path_factory.mktemp("loms"), instances) as running:
        for instance in instances:
            wait_until(
                lambda i=instance: running.engine(i).get("state") == "idle", 60, f"the first verdict on {instance}"
            )
        yield running


@pytest.fixture
def start_loms(tmp_path: Path) -> Callable[..., Loms]:
    """Makes a LOMS of the test's own; the second one finds the first one's data."""
    return lambda server, **sections: Loms(tmp_path, [server.url.rpartition("/")[2]], sections)


@pytest.fixture(name="wait_until", scope="session")
def wait_until_fixture() -> Callable[..., None]:
    return wait_until
