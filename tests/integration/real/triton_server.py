"""A real Triton (2.51.0) on the CPU, with the Python model of ``tests/data/triton-models``.

The first use installs it with ``.ci/install-triton`` into ``.venv-triton`` at the top of the checkout (half a minute,
0.4 GB). What is started here is ended here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.processes import free_port, status, wait_until

ROOT = Path(__file__).parents[3]
HOME = ROOT / ".venv-triton"
MODELS = ROOT / "tests" / "data" / "triton-models"
MODEL = "double"
START_SECONDS = 60
INSTALL_SECONDS = 240


def install() -> str:
    """Make sure that Triton is there; why it cannot be installed, else nothing."""
    if (HOME / "ready").exists():
        return ""
    command = [str(ROOT / ".ci" / "install-triton"), str(HOME)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_SECONDS, env={**os.environ, "PYTHON": sys.executable}
    )
    return "" if done.returncode == 0 else f"Triton cannot be installed: {done.stderr.strip()[-500:]}"


class Triton:
    """``tritonserver`` with summaries of latencies, metrics on a port of their own; a context manager."""

    def __init__(self, log: Path) -> None:
        http, grpc, metrics = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{http}"
        self.instance = f"127.0.0.1:{metrics}"
        self.log = log
        triton, venv = HOME / "tritonserver", HOME / "venv"
        command = [
            *(str(triton / "bin" / "tritonserver"), "--model-repository", str(MODELS)),
            *("--backend-directory", str(HOME / "backends"), "--cache-directory", str(triton / "caches")),
            *("--http-address", "127.0.0.1", "--http-port", str(http)),
            *("--grpc-address", "127.0.0.1", "--grpc-port", str(grpc)),
            *("--metrics-address", "127.0.0.1", "--metrics-port", str(metrics)),
            *("--allow-gpu-metrics", "false", "--metrics-interval-ms", "500"),
            *("--metrics-config", "summary_latencies=true"),
        ]
        packages, libraries = _folders_of(venv / "bin" / "python")
        environment = {
            **os.environ,
            "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": packages,
            # The back end's stub is linked with this Python's library.
            "LD_LIBRARY_PATH": f"{Path(packages) / 'nvidia_pytriton.libs'}:{libraries}",
        }
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=HOME,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_until(self._started, START_SECONDS, "Triton's start", pause=0.1)
        except BaseException:
            self.stop()
            raise

    @property
    def group(self) -> int:
        """The process group in which server and back end run."""
        return self._process.pid

    def __enter__(self) -> Triton:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def infer(self, rows: int = 1, *, first: float = 0.0, timeout_us: int = 0) -> int:
        """One request for rows of numbers from ``first`` on, which may wait so long in the queue; HTTP status."""
        values = [first + i for i in range(4 * rows)]
        request: dict[str, Any] = {"inputs": [{"name": "X", "shape": [rows, 4], "datatype": "FP32", "data": values}]}
        if timeout_us:
            request["parameters"] = {"timeout": timeout_us}
        status, answer = self._post(f"/v2/models/{MODEL}/infer", request)
        if status == 200:
            assert answer["outputs"][0]["data"] == [2 * value for value in values]
        return status

    def statistics(self) -> dict[str, Any]:
        """What Triton says of the model over its API."""
        with urllib.request.urlopen(f"{self.url}/v2/models/{MODEL}/stats", timeout=10) as response:
            told: dict[str, Any] = json.load(response)["model_stats"][0]
            return told

    def stop(self) -> None:
        """End the server; its back end's processes, which are of the same group, end with it."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def _started(self) -> bool:
        text = self.log.read_text(errors="replace")[-3000:]
        assert self._process.poll() is None, f"Triton ended while starting:\n{text}"
        return status(f"{self.url}/v2/health/ready") == 200


def _folders_of(python: Path) -> tuple[str, str]:
    """Where an interpreter has its packages, and where its own library is."""
    code = "import sysconfig as s; print(s.get_path('purelib')); print(s.get_config_var('LIBDIR'))"
    found = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    packages, libraries = found.stdout.split()
    return packages, libraries
