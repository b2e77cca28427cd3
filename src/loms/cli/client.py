"""The commands' view of a running LOMS: its HTTP API."""

from __future__ import annotations

import json
import re
from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import typer
from rich.markup import escape

from loms.core.errors import LomsError, QueryError

UrlOption = Annotated[str, typer.Option("--url", envvar="LOMS_URL", help="Where LOMS listens.")]
TokenOption = Annotated[str, typer.Option("--token", envvar="LOMS_TOKEN", help="Its token, if it wants one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

DEFAULT_URL = "http://127.0.0.1:8090"


def shown(text: str) -> str:
    """Text from elsewhere for a rich console: markup and control characters (terminal escapes) lose their power."""
    return escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "�", text))


class Client:
    """GET requests against one LOMS; every failure is one sentence."""

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url.rstrip("/")
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def get(self, path: str, timeout_seconds: float = 60, /, **params: object) -> Any:
        """The decoded JSON of ``path``. Raises `QueryError` for a wrong query, `LomsError` otherwise."""
        query = urlencode({k: v for k, v in params.items() if v is not None}, doseq=True)
        url = f"{self._url}{path}" + (f"?{query}" if query else "")
        if not url.startswith(("http://", "https://")):
            raise LomsError(f"--url {self._url!r} is not an http address", hint=f"for example {DEFAULT_URL}")
        try:
            with urlopen(Request(url, headers=self._headers), timeout=timeout_seconds) as answer:  # noqa: S310
                return json.load(answer)
        except HTTPError as error:
            raise self._explained(error) from None
        except (HTTPException, UnicodeError) as error:
            raise LomsError(
                f"{self._url} is no address of a LOMS: {error!r}", hint=f"for example {DEFAULT_URL}"
            ) from None
        except (URLError, OSError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise LomsError(
                f"no LOMS answers at {self._url}: {reason}", hint="start one with: loms up (or name another with --url)"
            ) from None
        except ValueError:
            raise LomsError(f"{self._url} does not answer in JSON", hint="is this address a LOMS server?") from None

    def _explained(self, error: HTTPError) -> LomsError:
        try:
            body = json.load(error)
        except ValueError:
            body = {}
        if error.code == 401:
            return LomsError(f"{self._url} wants a token", hint="give it with --token or LOMS_TOKEN")
        if "errorType" in body:
            return QueryError(f"{body['errorType']}: {body.get('error', '')}")
        return LomsError(f"{self._url} answered {error.code}: {body.get('error') or error.reason}")
