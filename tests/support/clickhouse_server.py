"""A small ClickHouse server for tests: its HTTP interface, answered by an embedded chDB in a process of its own.

What LOMS sends to a ClickHouse it can send here: queries in the URL or the body, settings and ``param_x`` as URL
parameters, any format, compressed bodies both ways, ``query_id`` with KILL QUERY, and ClickHouse's way of saying that
something went wrong (status, ``X-ClickHouse-Exception-Code``, ``Code: N. DB::Exception: …``). Faults can be ordered
by POST to ``/faults``.

With ``--shards`` it plays a cluster of two, named ``cluster``, as far as a process without Keeper can. Distributed
tables are the engine's own, over shards that are all this process; what makes them differ is a filter on each local
table, by which a shard sees those rows only that the sharding key sends to it. So queries are really taken apart, run
once per shard and merged. ``ON CLUSTER`` is left out of statements and Replicated engines become plain ones: the queue
of statements, replication and its deduplication are not tested by this.
"""

from __future__ import annotations

import argparse
import base64
import email
import hmac
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import chdb
import pyarrow as pa

USER, PASSWORD = "loms", "p@ss/word"
SHARDS = 2

_TRANSPORT = frozenset(
    """query database query_id user password compress decompress buffer_size wait_end_of_query session_id default_format
    client_protocol_version send_progress_in_http_headers http_headers_progress_interval_ms enable_http_compression
    insert_deduplication_token cancel_http_readonly_queries_on_client_close replace_running_query quota_key
    role""".split()  # noqa: SIM905 - twenty names
)
"""URL parameters that are no settings of the session."""
_STATUS = {60: 404, 81: 404, 36: 400, 47: 400, 62: 400, 159: 408, 202: 503, 497: 403, 516: 403}
_CODECS = {"gzip": "gzip", "zstd": "zstd", "lz4": "lz4"}


@dataclass
class Fault:
    """What happens to the next ``times`` requests whose query matches: ``drop_after`` runs the query and closes the
    connection without an answer, ``drop_before`` does not run it, ``overloaded`` answers 503, ``slow`` waits first."""

    match: str
    do: str
    times: int = 1
    seconds: float = 0.0


@dataclass
class Engine:
    """chDB, with idle connections kept by their settings: a connection is a session."""

    path: str
    config: str
    """A configuration file of ClickHouse; empty for none."""
    filters: dict[str, str] = field(default_factory=dict)
    """Local table → what of it a shard sees."""
    idle: dict[tuple[object, ...], list[Any]] = field(default_factory=lambda: defaultdict(list))
    faults: list[Fault] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    """Those that came, the newest last."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.anchor = self._open()
        tables = "SELECT name, engine_full FROM system.tables WHERE engine = 'Distributed'"
        for row in self.anchor.query(tables, "JSONEachRow").bytes().splitlines():
            self._note(json.loads(row)["engine_full"])

    def _open(self) -> Any:
        return chdb.connect(f"{self.path}?config-file={self.config}" if self.config else self.path)

    def _note(self, statement: str) -> None:
        if made := re.search(r"\bDistributed\(([^,]*), ([^,]*), ([^,]*), (.*?)\)(?: SETTINGS.*)?$", statement, re.S):
            database, table = made[2].strip("`'"), made[3].strip("`'")
            self.filters = {**self.filters, f"{database}.{table}": f"{made[4]} % {SHARDS} = shardNum() - 1"}

    def adapted(self, sql: str) -> str:
        """A statement for a cluster as this process can run it."""
        sql = re.sub(r" ON CLUSTER `?cluster`?", "", sql) if self.config else sql
        sql = re.sub(r"\bReplicated(\w*MergeTree)\('[^']*', '[^']*'(?:, )?", r"\1(", sql) if self.config else sql
        self._note(sql)
        return sql

    def run(self, sql: str, form: str, database: str, settings: dict[str, str], params: dict[str, str]) -> Any:
        # Rows that come in are not filtered: a view would get none of them.
        filters = {} if "FROM INFILE" in sql else self.filters
        key = (database, len(filters), *sorted(settings.items()))
        with self.lock:
            connection = self.idle[key].pop() if self.idle[key] else None
        if connection is None:
            connection = self._connect(database, settings, filters)
        try:
            answer = connection.query(sql, form, params=params)
            found = answer.bytes() or b"", answer.rows_read(), answer.bytes_read()
        except BaseException:
            connection.close()  # chDB would put what it had begun to answer in front of the next answer
            raise
        with self.lock:
            self.idle[key].append(connection)
        return found

    def _connect(self, database: str, settings: dict[str, str], filters: dict[str, str]) -> Any:
        connection = self._open()
        try:
            if filters:
                shown = ", ".join(f"'{table}': '{rows}'" for table, rows in filters.items())
                connection.query(f"SET additional_table_filters = {{{shown}}}")
            connection.query(f"USE `{database}`")
            for name, value in sorted(settings.items(), key=lambda item: item[0] == "readonly"):
                connection.query(f"SET {name} = '{value}'")
        except BaseException:
            connection.close()
            raise
        return connection

    def fault(self, query: str) -> Fault | None:
        with self.lock:
            self.queries = [*self.queries[-999:], query]
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.match, query):
                    fault.times -= 1
                    return fault
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    engine: Engine

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        url = urlsplit(self.path)
        if url.path == "/ping":
            self._send(200, b"Ok.\n", {})
        elif url.path == "/faults":
            self.engine.faults[:] = [Fault(**one) for one in json.loads(body)]
            self._send(200, b"", {})
        elif url.path == "/queries":
            self._send(200, json.dumps(self.engine.queries).encode(), {})
        else:
            given = dict(parse_qsl(url.query, keep_blank_values=True))
            if self._known(given):
                self._run(given, body)
            else:
                self._fail(
                    "Code: 516. DB::Exception: Authentication failed: password is incorrect. (AUTHENTICATION_FAILED)"
                )

    def _known(self, given: dict[str, str]) -> bool:
        scheme, _, credentials = self.headers.get("Authorization", "").partition(" ")
        user, _, password = base64.b64decode(credentials).decode().partition(":") if scheme == "Basic" else ("", "", "")
        user = user or self.headers.get("X-ClickHouse-User", "") or given.get("user", "")
        password = password or self.headers.get("X-ClickHouse-Key", "") or given.get("password", "")
        return hmac.compare_digest(f"{user}:{password}", f"{USER}:{PASSWORD}")

    def _run(self, given: dict[str, str], body: bytes) -> None:
        if encoding := self.headers.get("Content-Encoding"):
            body = pa.CompressedInputStream(pa.BufferReader(body), _CODECS[encoding]).read()
        if self.headers.get("Content-Type", "").startswith("multipart/form-data"):
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            for part in email.message_from_bytes(head + body).get_payload():
                given[part.get_param("name", header="content-disposition")] = part.get_payload(decode=True).decode()
            body = b""
        query, data = (given["query"].encode(), body) if "query" in given else (body, b"")
        if insert := re.match(rb"\s*(INSERT INTO .*? FORMAT (\w+))\s*\n", query + b"\n", re.S):
            query, data = insert[1], query[insert.end() :] + data
        sql = self.engine.adapted(query.decode())
        fault = self.engine.fault(sql)
        if fault and fault.do == "slow":
            time.sleep(fault.seconds)
        if fault and fault.do == "overloaded":
            self._send(503, b"too much to do\n", {})
            return
        if fault and fault.do == "drop_before":
            self._hang_up()
            return
        try:
            answer, headers = self._execute(sql, data, given)
        except Exception as error:  # noqa: BLE001 - chDB raises RuntimeError and more
            self._fail(str(error))
            return
        if fault and fault.do == "drop_after":
            self._hang_up()
            return
        accepted = self.headers.get("Accept-Encoding", "").replace(" ", "").split(",")
        if given.get("enable_http_compression") == "1" and (codec := next((c for c in accepted if c in _CODECS), "")):
            answer = pa.compress(answer, _CODECS[codec], asbytes=True)
            headers["Content-Encoding"] = codec
        self._send(200, answer, headers)

    def _execute(self, sql: str, data: bytes, given: dict[str, str]) -> tuple[bytes, dict[str, str]]:
        settings = {
            name: value for name, value in given.items() if name not in _TRANSPORT and not name.startswith("param_")
        }
        params = {name.removeprefix("param_"): value for name, value in given.items() if name.startswith("param_")}
        database, query_id = given.get("database", "default"), given.get("query_id", "")
        form = given.get("default_format", self.headers.get("X-ClickHouse-Format", "TabSeparated"))
        if sql.startswith("INSERT") and data:
            with tempfile.NamedTemporaryFile() as rows:
                rows.write(data)
                rows.flush()
                target, kind = re.fullmatch(r"(INSERT INTO .*?) FORMAT (\w+)", sql, re.S).groups()  # type: ignore[union-attr]
                # Here the shards are one table, in which the second's block would pass for the first's.
                token = "" if self.engine.config else given.get("insert_deduplication_token", "")
                known = f" SETTINGS insert_deduplication_token = '{token}'" if token else ""
                sql = f"{target} FROM INFILE '{rows.name}'{known} FORMAT {kind}"
                answer, count, size = self.engine.run(sql, form, database, settings, params)
        else:
            # chDB takes no query_id: it stands in front of the query, where KILL QUERY finds it.
            if sql.startswith("KILL QUERY"):
                sql = re.sub(r"\bquery_id\b", "extract(query, '^/\\\\*id:(.*?)\\\\*/')", sql)
            elif query_id:
                sql = f"/*id:{query_id}*/ {sql}"
            answer, count, size = self.engine.run(sql, form, database, settings, params)
        named = re.search(r"\bFORMAT\s+(\w+)\s*;?\s*$", sql)
        summary = {"read_rows": str(count), "read_bytes": str(size), "written_rows": str(count if data else 0)}
        return answer, {
            "X-ClickHouse-Summary": json.dumps(summary),
            "X-ClickHouse-Query-Id": query_id or os.urandom(8).hex(),
            "X-ClickHouse-Timezone": "UTC",
            **({"X-ClickHouse-Format": named[1] if named else form} if answer else {}),
        }

    def _fail(self, text: str) -> None:
        text = text[max(text.find("Code: "), 0) :]
        code = int(found[1]) if (found := re.match(r"Code: (\d+)", text)) else 1002
        headers = {"X-ClickHouse-Exception-Code": str(code)}
        self._send(_STATUS.get(code, 500), f"{text}\n".encode(), headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/octet-stream", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: object) -> None:
        pass


class ClickHouseServer:
    """The server in a process of its own; a context manager. `stop` and `start` keep data and port."""

    def __init__(self, folder: Path, port: int, *, tls: tuple[Path, Path] | None = None, shards: bool = False) -> None:
        self.port = port
        self.cluster = "cluster" if shards else ""
        self._folder = folder
        self._tls = tls
        self.start()

    def __enter__(self) -> ClickHouseServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self, database: str = "loms") -> str:
        return f"clickhouse{'s' if self._tls else ''}://{USER}:p%40ss%2Fword@localhost:{self.port}/{database}"

    def start(self) -> None:
        command = [sys.executable, __file__, str(self._folder), "--port", str(self.port)]
        if self.cluster:
            command.append("--shards")
        if self._tls:
            command += ["--certificate", str(self._tls[0]), "--key", str(self._tls[1])]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the test server did not start"

    def stop(self) -> None:
        """Nothing listens afterwards."""
        self._process.kill()
        self._process.communicate()

    def order(self, *faults: Fault) -> None:
        """These faults and no others."""
        self._ask("/faults", json.dumps([vars(fault) for fault in faults]).encode())

    def queries(self) -> list[str]:
        """The newest that came."""
        found: list[str] = json.loads(self._ask("/queries"))
        return found

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", body, timeout=20) as answer:
            text: bytes = answer.read()
            return text


def configuration(folder: Path) -> str:
    """Writes a configuration with a cluster whose shards are all this process; returns its path."""
    shard = "<shard><replica><host>localhost</host><port>9000</port></replica></shard>"
    path = folder / "config.xml"
    cluster = f"<remote_servers><cluster>{shard * SHARDS}</cluster></remote_servers>"
    path.write_text(f"<clickhouse><tcp_port>9000</tcp_port>{cluster}</clickhouse>")
    return str(path)


def serve(folder: Path, port: int, certificate: str, key: str, shards: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Handler.engine = Engine(str(folder / "chdb"), configuration(folder) if shards else "")
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--port", type=int, default=8123)
    options.add_argument("--certificate", default="")
    options.add_argument("--key", default="")
    options.add_argument("--shards", action="store_true")
    given = options.parse_args()
    serve(given.folder, given.port, given.certificate, given.key, given.shards)
