"""The OpenAI-compatible part of a simulated engine's HTTP border: bodies in, JSON and server-sent events out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loms.lab.scheduler import FinishReason
from loms.lab.tokens import QUOTED, chat_tokens, natural_length, reply_pieces, tokenize

Json = dict[str, Any]


class ApiError(Exception):
    """An answer in OpenAI's error shape."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body: Json = {"error": {"message": message, "type": kind, "param": param, "code": status}}


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, "BadRequestError", param)


def invalid(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a body."""
    first = error.errors(include_url=False, include_context=False)[0]
    param = ".".join(str(part) for part in first["loc"]) or None
    return bad_request(f"{param or 'body'}: {first['msg']}", param)


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _Ask(BaseModel):
    """What both endpoints take; parameters without meaning here are accepted and ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    model: str | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    n: Literal[1] | None = None
    seed: int | None = None
    ignore_eos: bool = False
    """Say as many tokens as asked for."""


class _Part(BaseModel):
    type: Literal["text"]
    text: str


class _Message(BaseModel):
    role: str
    content: str | list[_Part] | None = None

    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatAsk(_Ask):
    messages: Annotated[list[_Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    def prompt_tokens(self) -> list[int]:
        return chat_tokens((message.role, message.text()) for message in self.messages)

    def asked(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionAsk(_Ask):
    prompt: Annotated[str | list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] = 16

    def prompt_tokens(self) -> list[int]:
        return tokenize(self.prompt) if isinstance(self.prompt, str) else self.prompt

    def asked(self) -> int | None:
        return self.max_tokens


@dataclass(frozen=True, slots=True)
class Plan:
    """A request made out: what goes in, and what is going to be said."""

    prompt: tuple[int, ...]
    pieces: tuple[str, ...]
    reply: tuple[int, ...]
    finish_reason: FinishReason
    max_tokens: int | None


def plan(ask: ChatAsk | CompletionAsk, max_model_len: int) -> Plan:
    """Fix the answer to a request; raises `ApiError` when prompt and answer do not fit the model's length."""
    prompt = tuple(ask.prompt_tokens())
    room = max_model_len - len(prompt)
    asked = ask.asked()
    if room < 1:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens, but the prompt has {len(prompt)}.",
            "input_tokens",
        )
    if asked is not None and asked > room:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens, but {len(prompt)} prompt tokens and "
            f"max_tokens {asked} were asked for.",
            "max_tokens",
        )
    seed = hash((ask.seed or 0, *prompt)) & 0x7FFFFFFF
    limit = asked or room
    length = limit if ask.ignore_eos else min(limit, natural_length(seed))
    pieces = tuple(reply_pieces(seed, length))
    reply = tuple(token for piece in pieces for token in tokenize(piece))
    return Plan(prompt, pieces, reply, "length" if length == limit else "stop", asked)


def usage(prompt: int, completion: int, cached: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class Writer:
    """The JSON of one answer, plain or in chunks."""

    def __init__(self, made: Plan, *, chat: bool, request_id: str, created: int, model: str) -> None:
        self._plan = made
        self._chat = chat
        self._head: Json = {"id": request_id, "object": "text_completion", "created": created, "model": model}
        if chat:
            self._head["object"] = "chat.completion.chunk"
        head = _compact(self._head)[:-1]
        self._event = f'data: {head},"choices":[{{"index":0,' + ('"delta":{"content":' if chat else '"text":')
        self._after = ("}" if chat else "") + ',"logprobs":null,"finish_reason":'

    def plain(self, used: Json) -> Json:
        text = "".join(self._plan.pieces)
        choice: Json = {"index": 0, "logprobs": None, "finish_reason": self._plan.finish_reason}
        if not self._chat:
            return {**self._head, "choices": [{**choice, "text": text}], "usage": used}
        message = {"role": "assistant", "content": text}
        return {**self._head, "object": "chat.completion", "choices": [{**choice, "message": message}], "usage": used}

    def opening(self) -> bytes:
        """A chat begins with an empty message that names the role."""
        if not self._chat:
            return b""
        before = self._event.removesuffix('"content":')
        return f'{before}"role":"assistant","content":""{self._after}null}}]}}\n\n'.encode()

    def chunks(self, start: int, stop: int) -> bytes:
        """Pieces ``start`` to ``stop`` as one event each; the last piece carries the finish reason."""
        pieces, final = self._plan.pieces, len(self._plan.pieces) - 1
        between = f"{self._after}null}}]}}\n\n"
        events = [f"{self._event}{QUOTED[piece]}{between}" for piece in pieces[start : min(stop, final)]]
        if stop > final:
            events.append(f'{self._event}{QUOTED[pieces[final]]}{self._after}"{self._plan.finish_reason}"}}]}}\n\n')
        return "".join(events).encode()

    def closing(self, used: Json | None) -> bytes:
        """The chunk with the usage, if it was asked for, and the end of the stream."""
        done = b"data: [DONE]\n\n"
        if used is None:
            return done
        return f"data: {_compact({**self._head, 'choices': [], 'usage': used})}\n\n".encode() + done


def _compact(body: Json) -> str:
    return json.dumps(body, separators=(",", ":"))
