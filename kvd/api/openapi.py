"""The OpenAPI 3.1 description, made from the route table and the dataclasses, so that it can't lag behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kvd.api import shapes
from kvd.api.backend import Entry, Finding, Invalidated, Status, Step
from kvd.api.namespaces import NamespaceQuota
from kvd.api.sessions import SessionChange, SessionDetail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvd.api.routes import Route

_SHAPES = (
    Status,
    Entry,
    Step,
    Finding,
    shapes.Usage,
    shapes.Listing,
    shapes.Version,
    shapes.Changed,
    shapes.PathRequest,
    shapes.PathsRequest,
    shapes.Namespaces,
    NamespaceQuota,
    Invalidated,
    shapes.Removed,
    shapes.CreateRequest,
    shapes.SetRequest,
    shapes.AttachRequest,
    shapes.RemoveRequest,
    shapes.InvalidateRequest,
    shapes.FsckRequest,
    SessionDetail,
    SessionChange,
    shapes.Closed,
    shapes.PinRequest,
    shapes.TtlRequest,
    shapes.ForkRequest,
    shapes.Failure,
)

_NAME = {
    "type": "string",
    "description": "A path from the root of the mount; a byte that is not UTF-8 is a lone surrogate (PEP 383).",
}

_STATUS_WORDS = {
    "400": "The request makes no sense",
    "404": "No such name",
    "409": "The object is leased, a name is taken or not empty, a fingerprint is another one",
    "413": "The body is too large",
    "500": "Damaged data, or a fault of the daemon",
    "503": "Too many operations, or something that kvd needs is not there",
    "507": "The tier is full, or has not so much to guarantee",
}


def _ref(shape: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{shape.__name__}"}


def _names_as_strings(schema: Any) -> Any:
    """Replace msgspec's view of bytes (base64) by ours."""
    match schema:
        case {"contentEncoding": "base64"}:
            return dict(_NAME)
        case dict():
            return {key: _names_as_strings(value) for key, value in schema.items()}
        case list():
            return [_names_as_strings(value) for value in schema]
        case _:
            return schema


def _operation(route: Route) -> dict[str, Any]:
    media_types = ("application/x-ndjson",) if route.streams else route.media_types
    schema: dict[str, Any] = dict(_ref(route.result)) if route.result is not None else {"type": "object"}
    if "text/plain" in media_types:
        schema = {"type": "string"}
    if route.streams:
        schema = {
            "description": "One a line; an empty line means that the daemon is still at work. A Failure is the last line.",
            "anyOf": [schema, _ref(shapes.Failure)],
        }
    responses: dict[str, Any] = {
        "200": {"description": route.summary, "content": {name: {"schema": schema} for name in media_types}},
        **{
            status: {"description": words, "content": {"application/json": {"schema": _ref(shapes.Failure)}}}
            for status, words in _STATUS_WORDS.items()
        },
    }
    operation: dict[str, Any] = {
        "operationId": route.path.removeprefix("/v1").removeprefix("/").removesuffix(".json"),
        "summary": route.summary,
        "responses": responses,
    }
    if route.query_path:
        operation["parameters"] = [
            {
                "name": "path",
                "in": "query",
                "required": True,
                "description": "Percent-encoded bytes; + is a plus.",
                "schema": {"type": "string"},
            }
        ]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.body)}}}
    return operation


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Describe the API.

    Parameters
    ----------
    routes
        The route table.

    Returns
    -------
    dict
        An OpenAPI 3.1 document.
    """
    _, components = msgspec.json.schema_components(_SHAPES, ref_template="#/components/schemas/{name}")
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kvd control API",
            "version": str(shapes.API_VERSION),
            "description": "HTTP on a UNIX socket. Names need not be UTF-8: see the shape of `path`.",
        },
        "paths": paths,
        "components": {"schemas": _names_as_strings(components)},
    }
