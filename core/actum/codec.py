"""Values to JSON text and back, without loss: equal with the same type, or refused with a path.

JSON natives are written as they are. Other known types become an object with one tag key, as in
`{"$uuid": "…"}`. Dataclasses, pydantic models and enums are written as plain data *without* a type
name: they are rebuilt only when the reader declares a type, so stored text never chooses code.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import sys
import traceback
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, get_type_hints
from uuid import UUID

import orjson

from actum.errors import BadDefinition, BadValue, Rejected

if TYPE_CHECKING:  # pydantic costs 50 ms at import; a process that never decodes models skips it
    from pydantic import TypeAdapter

MAX_BYTES: Final = 1_048_576
MAX_DEPTH: Final = 100  # a tagged value takes two levels of JSON, and orjson stops at 254
MAX_DIGITS: Final = 4_000  # below the 4,300 at which Python itself refuses to convert

_SHORT = 256  # text below this is not counted before it is written

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_INT_BOUND = 10**MAX_DIGITS
_INT_TEXT = re.compile(r"-?[0-9]{1,4000}")
_LONG_NUMBER = re.compile(r"[0-9]{19}")  # may be an integer that orjson would read as a float
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,79}")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_NOT_IN_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MICROSECOND = timedelta(microseconds=1)
_NAIVE = "has no timezone; write datetime(..., tzinfo=timezone.utc) or datetime.now(timezone.utc)"


def encode(value: object, *, max_bytes: int = MAX_BYTES, path: str = "$") -> str:
    """Canonical JSON text of `value`: the same bytes for the same value in every process.

    Raises `BadValue`, whose path starts with `path`, for whatever would not come back equal.
    """
    walk = _Walk(max_bytes)
    try:
        raw = orjson.dumps(_plain(value, 0, walk), option=orjson.OPT_SORT_KEYS)
        walk.check(len(raw))
    except _Refused as refused:
        raise BadValue(refused.path(path), refused.reason) from None
    except _TooLarge as large:
        raise BadValue(path, str(large)) from None
    except RecursionError:
        raise BadValue(path, "is nested too deeply for the stack that is left") from None
    return raw.decode()


def decode(text: str, type_: object = None) -> Any:
    """The value that `encode` was given; dataclasses, models and enums need their type declared.

    An unknown tag stays a plain dict. Nothing is imported or called because of what `text` says.
    Raises `BadValue` for text that is not JSON or does not fit `type_`.
    """
    value = plain(text)
    if '"$' in text or "\\u0024" in text:  # most text has no tag; then there is nothing to walk
        return revive(value, type_)
    return convert(value, type_)


def plain(text: str) -> Any:
    """The JSON of `text` with its tags as they are; `revive` makes values of them.

    Raises `BadValue` for text that is not JSON.
    """
    try:
        return _parse(text)
    except orjson.JSONDecodeError as error:
        raise BadValue("$", f"is not JSON: {error}") from None
    except ValueError:
        raise BadValue("$", f"has an integer of more than {MAX_DIGITS:,} digits") from None
    except RecursionError:
        raise BadValue("$", "is nested too deeply") from None


def revive(plain_value: Any, type_: object = None) -> Any:
    """The value behind parsed JSON, as `decode` would return it from the text."""
    try:
        value = _revive(plain_value, 0)
    except _Refused as refused:
        raise BadValue(refused.path("$"), refused.reason) from None
    except RecursionError:
        raise BadValue("$", "is nested too deeply for the stack that is left") from None
    return convert(value, type_)


def convert(value: Any, type_: object) -> Any:
    """`value` as the declared type; as it is when none is declared. Raises `BadValue`."""
    # Also lets Decimal("NaN") through, which pydantic refuses on its own.
    if type_ is None or type_ is Any or (type(value) is type_ and type_ in _NATIVE):
        return value
    return _rebuild(value, type_)


@lru_cache(maxsize=4096)
def parameter_types(function: Callable[..., Any]) -> dict[str, Any]:
    """The declared types of a function's parameters that need rebuilding; none if unreadable."""
    try:
        hints = get_type_hints(function)
    except Exception:  # annotations may name anything, even what is not importable
        return {}
    skipped = (Any, str, int, float, bool, dict, list, None)
    return {k: v for k, v in hints.items() if k != "return" and v not in skipped}


def digest(text: str) -> str:
    """SHA-256 of `text` in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def storable_text(text: str, max_chars: int = 8_000) -> str:
    """`text` as Postgres can store it and a terminal can show it. Never fails.

    NUL, lone surrogates and control characters other than newline and tab are escaped. Of a longer
    text the first `max_chars` characters stay, with a marker that counts the rest.
    """
    shown = _UNPRINTABLE.sub(_escape, text[:max_chars])
    cut = len(text) - max_chars
    return f"{shown}… [{cut:,} more characters cut]" if cut > 0 else shown


def storable_error(exc: BaseException) -> dict[str, str]:
    """Type, message and the last frames of `exc` as storable text. Never fails."""
    kind = type(exc)
    return {
        "type": storable_text(f"{kind.__module__}.{kind.__qualname__}", 200),
        "message": storable_text(_attempt(lambda: str(exc), "its __str__")),
        "traceback": storable_text(
            # Frames only: a formatted exception would repeat a message of any size.
            _attempt(lambda: "".join(traceback.format_tb(exc.__traceback__, -8)), "its traceback"),
            4_000,
        ),
    }


def check_name(name: str, field: str, max_chars: int = 200) -> str:
    """`name`, if it can serve as a key, name or queue name; else `Rejected`, naming `field`."""
    if not isinstance(name, str):
        raise Rejected(f"{field}: must be text, not {_type_name(name)}")
    if not name.strip():
        raise Rejected(f"{field}: must not be empty")
    if len(name) > max_chars:
        raise Rejected(f"{field}: has {len(name):,} characters; the limit is {max_chars:,}")
    bad = _NOT_IN_NAMES.search(name)
    if bad:
        raise Rejected(f"{field}: has the unprintable character {_escape(bad)}; remove it")
    return name


def aware(value: datetime, field: str) -> datetime:
    """`value`, if it has a timezone; else `BadValue`, naming `field`."""
    if not isinstance(value, datetime):
        raise BadValue(field, f"must be a datetime, not {_type_name(value)}")
    if value.utcoffset() is None:
        raise BadValue(field, _NAIVE)
    return value


# --- refusals ------------------------------------------------------------------------------------


class _Refused(Exception):
    """A value can't pass. Containers add their step on the way out: a good value pays nothing."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.trail: list[str] = []

    def path(self, root: str) -> str:
        return root + "".join(reversed(self.trail))


class _TooLarge(Exception):
    """The text would be over the limit."""


class _Walk:
    """What is left of the size limit, by a lower bound of the bytes seen so far.

    It stops early: 300 MB cost no time, and a list that holds one shared list many times, many
    levels deep, does not run for ever.
    """

    __slots__ = ("left", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = self.left = limit

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            self.check(self.limit - self.left, "at least ")

    def check(self, size: int, about: str = "") -> None:
        if size > self.limit:
            raise _TooLarge(
                f"is {about}{size:,} bytes of JSON; the limit is {self.limit:,} bytes. "
                "Store the data elsewhere and pass a reference"
            )


def _step(key: object) -> str:
    """One step of a path: `[2]`, `.name`, or `["other name"]`; always short and printable."""
    if type(key) is str:
        return f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{json.dumps(key[:80])}]"
    if type(key) is int and -_INT64_MAX < key < _INT64_MAX:
        return f"[{key}]"
    return f"[<{_type_name(key)}>]"


def _type_name(value: object) -> str:
    kind = type(value)
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _attempt(read: Callable[[], str], what: str) -> str:
    try:
        return read()
    except Exception as error:  # user code: anything may come out of it
        return f"<{what} raised {type(error).__qualname__}>"


# --- encoding: one walk to what orjson writes ----------------------------------------------------


def _plain(value: Any, depth: int, walk: _Walk) -> Any:
    return _PLAIN.get(type(value), _plain_other)(value, depth, walk)


def _plain_same(value: Any, depth: int, walk: _Walk) -> Any:
    return value


def _plain_str(value: str, depth: int, walk: _Walk) -> str:
    if len(value) >= _SHORT:
        walk.spend(len(value))
    reason = _unstorable(value)
    if reason:
        raise _Refused(f"has {reason}")
    return value


def _unstorable(text: str) -> str | None:
    """What in `text` Postgres or UTF-8 can't hold, if anything."""
    if "\0" in text:
        return "a NUL character, which Postgres can't store; remove it or pass bytes"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "a lone surrogate, which is not valid Unicode; fix its decoding or pass bytes"
    return None


def _plain_int(value: int, depth: int, walk: _Walk) -> Any:
    if _INT64_MIN <= value <= _INT64_MAX:
        return value
    if not -_INT_BOUND < value < _INT_BOUND:
        raise _Refused(f"is an int of more than {MAX_DIGITS:,} digits; pass it as bytes")
    try:
        text = str(value)
    except ValueError:  # the interpreter was started with a lower limit
        raise _Refused("has more digits than this interpreter converts; pass it as bytes") from None
    return {"$int": _plain_str(text, depth, walk)}


def _plain_float(value: float, depth: int, walk: _Walk) -> float:
    if not isfinite(value):
        raise _Refused(f"is {value}, which JSON can't hold; pass None, or Decimal('{value}')")
    return value


def _plain_dict(value: dict[Any, Any], depth: int, walk: _Walk) -> dict[str, Any]:
    _enter(depth, len(value), walk)
    plain: dict[str, Any] = {}
    key: Any = None
    try:
        for key, item in value.items():
            if type(key) is not str or "\0" in key or not key.isascii():
                _check_key(key)
            if type(item) is str and len(item) < _SHORT and item.isascii() and "\0" not in item:
                plain[key] = item  # the most common value by far; a call would double its cost
            else:
                plain[key] = _PLAIN.get(type(item), _plain_other)(item, depth + 1, walk)
    except _Refused as refused:
        refused.trail.append(_step(key))
        raise
    if len(plain) == 1 and key.startswith("$"):
        return {"$escaped": plain}
    return plain


def _check_key(key: Any) -> None:
    if type(key) is not str:
        raise _Refused(f"has a key of type {_type_name(key)}; JSON keys are str, so use str(key)")
    reason = _unstorable(key)
    if reason:
        raise _Refused(f"has a key with {reason}")


def _plain_list(value: list[Any] | tuple[Any, ...], depth: int, walk: _Walk) -> list[Any]:
    _enter(depth, len(value), walk)
    plain: list[Any] = []
    try:
        for item in value:
            plain.append(_PLAIN.get(type(item), _plain_other)(item, depth + 1, walk))
    except _Refused as refused:
        refused.trail.append(f"[{len(plain)}]")
        raise
    return plain


def _enter(depth: int, items: int, walk: _Walk) -> None:
    if depth >= MAX_DEPTH:
        raise _TooDeep(f"is nested deeper than {MAX_DEPTH} levels, or holds itself")
    walk.spend(items + 1)  # brackets and commas


class _TooDeep(_Refused):
    """Nested too deeply; the path is cut, as its full length tells nobody anything."""

    def path(self, root: str) -> str:
        return root + "".join(self.trail[:-6:-1]) + "…"


def _plain_tuple(value: tuple[Any, ...], depth: int, walk: _Walk) -> Any:
    return {"$tuple": _plain_list(value, depth, walk)}


def _plain_set(value: set[Any] | frozenset[Any], depth: int, walk: _Walk) -> Any:
    """Sorted by text: the order in which a set is read differs between processes."""
    _enter(depth, len(value), walk)
    try:
        items = [_plain(item, depth + 1, walk) for item in value]
    except _Refused as refused:
        refused.trail.append("{}")  # items of a set have no address
        raise
    items.sort(key=lambda item: orjson.dumps(item, option=orjson.OPT_SORT_KEYS))
    return {"$set" if type(value) is set else "$frozenset": items}


def _plain_datetime(value: datetime, depth: int, walk: _Walk) -> Any:
    if value.utcoffset() is None:
        raise _Refused(_NAIVE)
    return {"$datetime": value.isoformat()}


def _plain_time(value: time, depth: int, walk: _Walk) -> Any:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise _Refused("has a timezone whose offset depends on the date; pass a datetime")
    return {"$time": value.isoformat()}


def _plain_bytes(value: bytes, depth: int, walk: _Walk) -> Any:
    walk.spend(len(value))
    return {"$bytes": base64.b64encode(value).decode()}


def _plain_other(value: Any, depth: int, walk: _Walk) -> Any:
    """Enums, dataclasses and pydantic models as plain data; all else is refused."""
    if isinstance(value, Enum):
        return _plain(value.value, depth + 1, walk)
    if _is_model(value):
        return _plain_dict(_dump_model(value), depth, walk)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value) if field.init)
        return _plain_dict({name: getattr(value, name) for name in fields}, depth, walk)
    for base in type(value).__mro__[1:]:
        if base in _PLAIN:
            hint = f"it would come back as {base.__name__}, so write {base.__name__}(...)"
            raise _Refused(f"is a {_type_name(value)}; {hint}")
    raise _Refused(
        f"is a {_type_name(value)}, which can't be stored; convert it to str, int, list or dict, "
        "or to a dataclass, pydantic model or Enum"
    )


def _is_model(value: object) -> bool:
    pydantic = sys.modules.get("pydantic")  # not imported means that no model can exist
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def _dump_model(value: Any) -> dict[str, Any]:
    try:
        return dict(value.model_dump(mode="python", round_trip=True))
    except Exception as error:  # the model's own serializers run here
        why = storable_error(error)["message"][:200]
        raise _Refused(f"is a {_type_name(value)} whose model_dump raised: {why}") from None


_Plainer = Callable[[Any, int, _Walk], Any]
_PLAIN: Final[dict[type, _Plainer]] = {
    str: _plain_str,
    int: _plain_int,
    dict: _plain_dict,
    list: _plain_list,
    bool: _plain_same,
    type(None): _plain_same,
    float: _plain_float,
    tuple: _plain_tuple,
    set: _plain_set,
    frozenset: _plain_set,
    bytes: _plain_bytes,
    datetime: _plain_datetime,
    date: lambda value, depth, walk: {"$date": value.isoformat()},
    time: _plain_time,
    timedelta: lambda value, depth, walk: {"$timedelta": str(value // _MICROSECOND)},
    Decimal: lambda value, depth, walk: {"$decimal": _plain_str(str(value), depth, walk)},
    UUID: lambda value, depth, walk: {"$uuid": str(value)},
}
_NATIVE: Final = frozenset(_PLAIN) - {dict, list, tuple, set, frozenset}


# --- decoding ------------------------------------------------------------------------------------


def _parse(text: str) -> Any:
    value = orjson.loads(text)  # also the strict check: no NaN, no lone surrogates
    if not _LONG_NUMBER.search(text):
        return value
    return json.loads(text)  # keeps every digit of an integer beyond 64 bits


def _revive(value: Any, depth: int) -> Any:
    """Turn tagged objects back into values."""
    kind = type(value)
    if kind is not dict and kind is not list:
        return value
    if depth > MAX_DEPTH:
        raise _TooDeep(f"is nested deeper than {MAX_DEPTH} levels")
    if kind is list:
        return _revive_items(value, depth)
    if len(value) == 1:
        (tag,) = value
        if tag.startswith("$"):
            return _revive_tag(tag, value[tag], depth)
    return _revive_dict(value, depth)


def _revive_dict(value: dict[str, Any], depth: int) -> dict[str, Any]:
    key = ""
    revived: dict[str, Any] = {}
    try:
        for key, item in value.items():
            revived[key] = _revive(item, depth + 1)
    except _Refused as refused:
        refused.trail.append(_step(key))
        raise
    return revived


def _revive_items(value: list[Any], depth: int) -> list[Any]:
    revived: list[Any] = []
    try:
        for item in value:
            revived.append(_revive(item, depth + 1))
    except _Refused as refused:
        refused.trail.append(f"[{len(revived)}]")
        raise
    return revived


def _revive_tag(tag: str, body: Any, depth: int) -> Any:
    if tag == "$escaped" and type(body) is dict:
        return _revive_dict(body, depth)
    if tag in _COLLECT and type(body) is list:
        return _collect(tag, _revive_items(body, depth))
    if tag in _FROM_TEXT and type(body) is str:
        try:
            return _FROM_TEXT[tag](body)
        except (ValueError, ArithmeticError):
            raise _Refused(f"is not a valid {tag}") from None
    return _revive_dict({tag: body}, depth)


def _collect(tag: str, items: list[Any]) -> Any:
    try:
        return _COLLECT[tag](items)
    except TypeError:
        # A set of frozen dataclasses holds dicts until its declared type rebuilds both.
        return items


def _read_datetime(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.utcoffset() is None:
        raise ValueError("naive")
    return value


def _read_int(text: str) -> int:
    if not _INT_TEXT.fullmatch(text):
        raise ValueError("not an integer")
    return int(text)


_COLLECT: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
}
_FROM_TEXT: Final[dict[str, Callable[[str], Any]]] = {
    "$datetime": _read_datetime,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$timedelta": lambda text: timedelta(microseconds=_read_int(text)),
    "$decimal": Decimal,
    "$uuid": UUID,
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$int": _read_int,
}


def _rebuild(value: Any, type_: object) -> Any:
    from pydantic import ValidationError

    adapter = _adapter(type_)
    try:
        # Lax, as strict mode wants instances where the text has dicts (dataclasses) and values
        # (enums). By name as well as alias, as models are dumped by field name.
        return adapter.validate_python(value, by_alias=True, by_name=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = "$" + "".join(_step(step) for step in first["loc"])
        name = getattr(type_, "__qualname__", str(type_))
        raise BadValue(where, f"does not fit {name}: {storable_text(first['msg'], 500)}") from None


@lru_cache(maxsize=1024)
def _adapter(type_: Any) -> TypeAdapter[Any]:
    """Building one costs a millisecond; the types of a program are few."""
    from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(type_)
    except (PydanticUserError, PydanticUndefinedAnnotation, TypeError) as error:
        hint = "declare a dataclass, pydantic model, Enum or JSON type"
        raise BadDefinition(f"{type_!r} can't be rebuilt from JSON; {hint}: {error}") from error
