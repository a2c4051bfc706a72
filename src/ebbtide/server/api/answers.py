"""Answers made from things: their models, for the description of the API, and their JSON.

A route returns a thing, which has a document (`ebbtide.documents`), or a list of things. Clients of
lakeFS expect other names for some fields: a class of `@answers` adds those. Not for: answers that
no thing stands behind, which are models of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from fastapi import Response
from pydantic import BaseModel, create_model
from pydantic_core import to_json

from ebbtide.documents import Document, document_of, is_documented, parts_of
from ebbtide.server.api.base import Pagination, Wire
from ebbtide.server.api.lists import PageOf

Names = TypeVar("Names", bound=type[BaseModel])
Model = type[BaseModel]
JSON: Final = "application/json"


_NAMES: Final[dict[type, Any]] = {}  # models with a method `of`, by the things


def answers(*things: type) -> Callable[[Names], Names]:
    """Declares a model whose fields the answers for these things have too. Its method `of` makes
    it for a thing. The answer has the model's name."""

    def register(names: Names) -> Names:
        _NAMES.update(dict.fromkeys(things, names))
        return names

    return register


def plain(value: object) -> Document:
    """Returns an answer as JSON, without fields that have no value."""
    if isinstance(value, PageOf):
        pagination = value.pagination.model_dump()
        return {"pagination": pagination, "results": [plain(each) for each in value.results]}
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_none=True)
    found = document_of(value, omit_none=True)
    names = _NAMES.get(type(value))
    if names is not None:
        found |= names.of(value).model_dump(exclude_none=True)
    return found


def model_of(hint: Any) -> Model | None:  # a type, as it is annotated
    """Returns the model of the answers of a route; None if it returns no things."""
    if get_origin(hint) is PageOf:
        return _list_of(_model_of(get_args(hint)[0]))
    return _model_of(hint) if is_documented(_first(hint)) else None


def answering(endpoint: Callable[..., Any], status: int) -> Callable[..., Any]:
    """Returns the endpoint with an answer in place of the things that it returns."""

    def answer(value: object) -> Response:
        return Response(to_json(plain(value)), status_code=status, media_type=JSON)

    @wraps(endpoint)
    def called(*given: Any, **named: Any) -> Response:  # the endpoint's own
        return answer(endpoint(*given, **named))

    @wraps(endpoint)
    async def awaited(*given: Any, **named: Any) -> Response:  # the endpoint's own
        return answer(await endpoint(*given, **named))

    return awaited if inspect.iscoroutinefunction(endpoint) else called


def _first(hint: Any) -> Any:  # types, as they are annotated
    """Returns the first of several things that have one form, such as branches and tags."""
    return get_args(hint)[0] if isinstance(hint, UnionType) else hint


@cache
def _list_of(model: Model) -> Model:
    name = model.__name__.removesuffix("Answer") + "List"
    results = (list[model], ...)  # type: ignore[valid-type]  # a type made here
    return create_model(name, __base__=Wire, pagination=(Pagination, ...), results=results)


def _model_of(hint: Any) -> Model:  # a type, as it is annotated
    thing = _first(hint)
    return _documented(thing) if is_documented(thing) else thing


@cache
def _documented(thing: type) -> Model:
    """Returns the model of a thing's answer. A field that can be None can be absent."""
    names = _NAMES.get(thing)
    name = f"{thing.__name__.removesuffix('Row')}Answer" if names is None else names.__name__
    made: Model = create_model(
        name,
        __base__=names or Wire,
        __doc__=(names or thing).__doc__,
        **_fields(thing),
    )
    return made


def _fields(thing: type) -> dict[str, Any]:  # types with their defaults
    found: dict[str, Any] = {}
    hints = get_type_hints(thing)
    for name, attribute, is_inline in parts_of(thing):
        hint = hints.get(attribute)
        if hint is None:
            hint = get_type_hints(getattr(thing, attribute).fget)["return"]
        if is_inline:
            found |= _fields(hint)
        else:
            found[name] = (_wire(hint), None if NoneType in get_args(hint) else ...)
    return found


def _wire(hint: Any) -> Any:  # types, as they are annotated
    """Returns the type of a field in an answer."""
    if is_documented(hint):
        return _documented(hint)
    if is_typeddict(hint):  # pydantic takes none of Python before 3.12
        return dict[str, Any]
    origin, inner = get_origin(hint), tuple(_wire(each) for each in get_args(hint))
    if isinstance(hint, UnionType):
        return Union[inner]  # noqa: UP007 - of types that are made here
    if origin is tuple:
        return list[inner[0]]  # type: ignore[valid-type]
    if origin is Mapping:
        return dict[inner]  # type: ignore[misc, valid-type]
    return hint
