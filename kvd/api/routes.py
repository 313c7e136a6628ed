"""What the API answers: one function a route, and the table that `kvd.api.openapi` describes."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio
from starlette.responses import Response

from kvd.api import metrics, shapes, wire
from kvd.api.answers import answer, body_of, failure_answer
from kvd.api.backend import Engine, Entry, Finding, Invalidated, Namespace, NamespaceWish, Status, Step
from kvd.api.namespaces import NamespaceQuota
from kvd.api.openapi import document
from kvd.api.session_routes import SessionRoutes
from kvd.api.sessions import SessionChange, SessionDetail, SessionEntry
from kvd.api.stream import ListingAnswer, Operation, log_unexpected
from kvd.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from kvd.api.backend import Control

OPERATIONS_MAX: Final = 8
"""Promote, demote, sync, scrub, fsck and pin that may run at a time."""

ANSWER_S_MAX: Final = 60.0
"""A short answer that takes longer means that something hangs."""


class Routes(SessionRoutes):
    """The handlers, over one `Control`."""

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        self._running = 0

    def __repr__(self) -> str:
        return f"<Routes: {self._running} of {OPERATIONS_MAX} operations>"

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if self._running >= OPERATIONS_MAX:
            raise wire.TooManyError(f"{OPERATIONS_MAX} operations are running; try again when one has ended")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def status(self, request: Request) -> ASGIApp:
        """Answer `Status`."""
        del request
        return answer(await self._control.status())

    async def df(self, request: Request) -> ASGIApp:
        """Answer `Usage`."""
        del request
        status = await self._control.status()
        return answer(shapes.Usage(mount=status.mount, tiers=status.tiers))

    async def version(self, request: Request) -> ASGIApp:
        """Answer `Version`."""
        del request
        status = await self._control.status()
        return answer(shapes.Version(version=status.version, api=shapes.API_VERSION, mount=status.mount))

    async def metrics(self, request: Request) -> ASGIApp:
        """Answer the status as metrics."""
        text, content_type = metrics.render(await self._control.status(), request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type, "cache-control": "no-store"})

    async def list_(self, request: Request) -> ASGIApp:
        """Answer `Listing`."""
        path = wire.query_path(request.scope["query_string"])
        return ListingAnswer(path, await self._control.entries(path))

    async def stat(self, request: Request) -> ASGIApp:
        """Answer `Entry`."""
        return answer(await self._control.entry(wire.query_path(request.scope["query_string"])))

    async def promote(self, request: Request) -> ASGIApp:
        """Stream `Step`."""
        return await self._operation(request, self._control.promote)

    async def demote(self, request: Request) -> ASGIApp:
        """Stream `Step`."""
        return await self._operation(request, self._control.demote)

    async def sync(self, request: Request) -> ASGIApp:
        """Stream `Step`."""
        return await self._operation(request, self._control.sync)

    async def scrub(self, request: Request) -> ASGIApp:
        """Stream `Step`."""
        return await self._operation(request, self._control.scrub)

    async def fsck(self, request: Request) -> ASGIApp:
        """Stream `Finding`."""
        data, repair = wire.body_flags(await body_of(request), ("data", "repair"))
        return Operation(lambda: self._control.fsck(data=data, repair=repair), self._slot())

    async def pin(self, request: Request) -> ASGIApp:
        """Answer `Changed`."""
        return await self._set_pinned(request, pinned=True)

    async def unpin(self, request: Request) -> ASGIApp:
        """Answer `Changed`."""
        return await self._set_pinned(request, pinned=False)

    async def namespaces(self, request: Request) -> ASGIApp:
        """Answer `Namespaces`."""
        del request
        return answer(shapes.Namespaces(namespaces=tuple(self._control.namespaces())))

    async def namespace(self, request: Request) -> ASGIApp:
        """Answer `Namespace`."""
        return answer(self._control.namespace(wire.query_path(request.scope["query_string"])))

    async def create_namespace(self, request: Request) -> ASGIApp:
        """Answer `Namespace`."""
        wish = wire.body_shape(await body_of(request), shapes.CreateRequest)
        return answer(
            await self._control.create_namespace(
                NamespaceWish(
                    name=wire.top_name(wish.name),
                    fingerprint=wish.fingerprint,
                    mode=wish.mode,
                    uid=wish.uid,
                    gid=wish.gid,
                    admit=wish.admit,
                    durability=wish.durability,
                    on_fault=wish.on_fault,
                    session=wish.session,
                    format=wish.format,
                    layout=wish.layout,
                    on_full=wish.on_full,
                    quota=wish.quota,
                )
            )
        )

    async def set_namespace(self, request: Request) -> ASGIApp:
        """Answer `Namespace`."""
        wish = wire.body_shape(await body_of(request), shapes.SetRequest)
        given = {
            "admit": wish.admit,
            "durability": wish.durability,
            "on_fault": wish.on_fault,
            "session": wish.session,
            "format": wish.format,
            "layout": wish.layout,
            "on_full": wish.on_full,
        }
        policies: dict[str, str | int] = {policy: word for policy, word in given.items() if word is not None}
        return answer(await self._control.set_namespace(wire.top_name(wish.name), policies | wish.quota.given()))

    async def namespace_quota(self, request: Request) -> ASGIApp:
        """Answer `NamespaceQuota`."""
        return answer(await self._control.namespace_quota(wire.query_path(request.scope["query_string"])))

    async def attach_namespace(self, request: Request) -> ASGIApp:
        """Answer `Namespace`."""
        wish = wire.body_shape(await body_of(request), shapes.AttachRequest)
        return answer(self._control.attach_namespace(wire.top_name(wish.name), wish.fingerprint))

    async def remove_namespace(self, request: Request) -> ASGIApp:
        """Answer `Removed`."""
        wish = wire.body_shape(await body_of(request), shapes.RemoveRequest)
        with self._slot():
            names = await self._control.remove_namespace(wire.top_name(wish.name), force=wish.force)
        return answer(shapes.Removed(names=names))

    async def invalidate(self, request: Request) -> ASGIApp:
        """Answer `Invalidated`."""
        wish = wire.body_shape(await body_of(request), shapes.InvalidateRequest)
        with self._slot():
            return answer(
                await self._control.invalidate(
                    wire.top_name(wish.name), fingerprint=wish.fingerprint, present=wish.if_fingerprint
                )
            )

    async def reset_device(self, request: Request) -> ASGIApp:
        """Answer `Engine`."""
        del request
        with self._slot():
            return answer(await self._control.reset_device())

    async def openapi(self, request: Request) -> ASGIApp:
        """Answer the description of all this."""
        del request
        return answer(document(ROUTES))

    async def _operation(self, request: Request, begin: Callable[[Sequence[bytes]], AsyncIterator[Step]]) -> ASGIApp:
        paths = wire.body_paths(await body_of(request))
        return Operation(lambda: begin(paths), self._slot())

    async def _set_pinned(self, request: Request, *, pinned: bool) -> ASGIApp:
        path = wire.body_path(await body_of(request))
        with self._slot():
            return answer(shapes.Changed(changed=await self._control.pin(path, pinned=pinned)))


def guarded(handler: Callable[[Request], Awaitable[ASGIApp]]) -> Callable[[Request], Awaitable[ASGIApp]]:
    """Make every end of a handler an answer: an operator's problem, a bug, or no end in time."""

    async def call(request: Request) -> ASGIApp:
        try:
            with trio.move_on_after(ANSWER_S_MAX):
                return await handler(request)
            raise UnavailableError(f"the daemon did not answer within {ANSWER_S_MAX:g} s")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001  a bug in one handler is one 500, never the end of the server
            log_unexpected(error, request.scope)
            return failure_answer(error)

    return call


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One line of the table: what is asked (`query_path`, `body`), what comes back (`result`, a line of it if `streams`)."""

    method: str
    path: str
    summary: str
    result: type | None
    handler: Callable[[Routes, Request], Awaitable[ASGIApp]]
    body: type | None = None
    query_path: bool = False
    streams: bool = False
    media_types: tuple[str, ...] = ("application/json",)


def _get(
    path: str, summary: str, result: type | None, handler: Callable[[Routes, Request], Awaitable[ASGIApp]]
) -> Route:
    return Route(method="GET", path=path, summary=summary, result=result, handler=handler)


def _operation(path: str, summary: str, handler: Callable[[Routes, Request], Awaitable[ASGIApp]]) -> Route:
    return Route(
        method="POST", path=path, summary=summary, result=Step, handler=handler, body=shapes.PathsRequest, streams=True
    )


def _pin(path: str, summary: str, handler: Callable[[Routes, Request], Awaitable[ASGIApp]]) -> Route:
    return Route(
        method="POST", path=path, summary=summary, result=shapes.Changed, handler=handler, body=shapes.PathRequest
    )


def _post(
    path: str, summary: str, body: type, result: type, handler: Callable[[Routes, Request], Awaitable[ASGIApp]]
) -> Route:
    return Route(method="POST", path=path, summary=summary, result=result, handler=handler, body=body)


def _lines(path: str, summary: str, result: type, handler: Callable[[Routes, Request], Awaitable[ASGIApp]]) -> Route:
    return Route(
        method="POST", path=path, summary=summary, result=result, handler=handler, body=shapes.PathRequest, streams=True
    )


ROUTES: Final = (
    _get("/v1/status", "The daemon at a glance", Status, Routes.status),
    _get("/v1/df", "The books of every tier", shapes.Usage, Routes.df),
    Route(
        method="GET",
        path="/v1/list",
        summary="The names in a directory, or the one file that path is",
        result=shapes.Listing,
        handler=Routes.list_,
        query_path=True,
    ),
    Route(method="GET", path="/v1/stat", summary="One name", result=Entry, handler=Routes.stat, query_path=True),
    _operation("/v1/promote", "Bring objects to DDR", Routes.promote),
    _operation("/v1/demote", "Move objects to NVMe", Routes.demote),
    _operation("/v1/sync", "Make objects durable on NVMe; they stay where they are", Routes.sync),
    _operation("/v1/scrub", "Verify objects on NVMe; what is bad is healed or quarantined", Routes.scrub),
    Route(
        method="POST",
        path="/v1/fsck",
        summary="Check catalogue, page tables and files against each other",
        result=Finding,
        handler=Routes.fsck,
        body=shapes.FsckRequest,
        streams=True,
    ),
    _pin("/v1/pin", "Keep the objects at or below a path in DDR", Routes.pin),
    _pin("/v1/unpin", "Let the objects at or below a path go again", Routes.unpin),
    _get("/v1/namespaces", "Every namespace", shapes.Namespaces, Routes.namespaces),
    Route(
        method="GET",
        path="/v1/namespace",
        summary="One namespace",
        result=Namespace,
        handler=Routes.namespace,
        query_path=True,
    ),
    Route(
        method="GET",
        path="/v1/namespace/quota",
        summary="How a namespace stands in each tier",
        result=NamespaceQuota,
        handler=Routes.namespace_quota,
        query_path=True,
    ),
    _post("/v1/namespace/create", "Make a namespace", shapes.CreateRequest, Namespace, Routes.create_namespace),
    _post("/v1/namespace/set", "Change its policies", shapes.SetRequest, Namespace, Routes.set_namespace),
    _post("/v1/namespace/attach", "Compare its fingerprint", shapes.AttachRequest, Namespace, Routes.attach_namespace),
    _post("/v1/namespace/remove", "Remove it", shapes.RemoveRequest, shapes.Removed, Routes.remove_namespace),
    _post(
        "/v1/invalidate",
        "Make all content of a namespace vanish at once",
        shapes.InvalidateRequest,
        Invalidated,
        Routes.invalidate,
    ),
    Route(
        method="GET",
        path="/v1/session",
        summary="One session and what it holds",
        result=SessionDetail,
        handler=Routes.session,
        query_path=True,
    ),
    _lines("/v1/session/list", "The sessions at or below a path", SessionEntry, Routes.list_sessions),
    _lines("/v1/session/watch", "Changes of state at or below a path", SessionChange, Routes.watch_sessions),
    *(
        _post(f"/v1/session/{verb}", summary, shapes.PathRequest, SessionEntry, handler)
        for verb, summary, handler in (
            ("release", "Say that a session is not needed soon", Routes.release_session),
            ("resume", "Say that it is needed soon", Routes.resume_session),
            ("prefetch", "Guess that it is needed soon", Routes.prefetch_session),
        )
    ),
    Route(
        method="POST",
        path="/v1/session/fork",
        summary="Make one of it, up to a point; describe the new one",
        result=SessionEntry,
        handler=Routes.fork_session,
        body=shapes.ForkRequest,
        streams=True,
    ),
    _post("/v1/session/close", "End it, with its content", shapes.PathRequest, shapes.Closed, Routes.close_session),
    _post("/v1/session/pin", "Pin or unpin it", shapes.PinRequest, shapes.Changed, Routes.pin_session),
    _post("/v1/session/ttl", "Give it a time to live", shapes.TtlRequest, SessionEntry, Routes.live_session),
    Route(
        method="POST",
        path="/v1/device/reset",
        summary="Reset the card and give it the engine's tables again",
        result=Engine,
        handler=Routes.reset_device,
    ),
    Route(
        method="GET",
        path="/metrics",
        summary="The status as metrics, in the text format of Prometheus or as OpenMetrics",
        result=None,
        handler=Routes.metrics,
        media_types=metrics.MEDIA_TYPES,
    ),
    _get("/v1/version", "Who answers", shapes.Version, Routes.version),
    _get("/v1/openapi.json", "This description", None, Routes.openapi),
)
