"""The codec: equal with the same type, or refused with the path. Cases C20, C36, C37, C39, C53."""

from __future__ import annotations

import dataclasses
import enum
import os
import subprocess
import sys
import time as clock
from collections import OrderedDict, defaultdict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_serializer

from actum.codec import (
    aware,
    check_name,
    convert,
    decode,
    encode,
    parameter_types,
    plain,
    revive,
    storable_error,
    storable_text,
)
from actum.errors import BadDefinition, BadValue, Rejected

SHANGHAI = timezone(timedelta(hours=8))


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal
    color: Color = Color.RED


@dataclasses.dataclass
class Order:
    id: UUID
    lines: list[Line]
    due: datetime | None = None


class Customer(BaseModel):
    name: str = Field(alias="fullName")
    orders: tuple[Order, ...] = ()


class Point(NamedTuple):
    x: int


class Unknown:
    pass


ORDER = Order(UUID(int=7), [Line("a", Decimal("10.10"), Color.PAIR)], datetime(2026, 6, 1, tzinfo=UTC))

LOSSLESS = [
    datetime(2026, 6, 1, 12, 0, 0, 1, SHANGHAI),
    datetime(2026, 6, 1, 12, tzinfo=ZoneInfo("America/Los_Angeles")),
    date(2026, 6, 1),
    time(12, 30, 0, 5),
    time(12, 30, tzinfo=SHANGHAI),
    timedelta(0),
    timedelta.max,
    timedelta.min,
    timedelta(microseconds=-1),
    Decimal("10.10"),
    Decimal("-0"),
    Decimal("1E+400"),
    UUID("12345678-1234-5678-1234-567812345678"),
    b"",
    b"\x00\xff",
    set(),
    {1, 2, 3},
    frozenset({frozenset({"a"}), "b"}),
    (),
    (1, (2, [3])),
    2**53 + 1,
    3544790567247868102,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    10**400,
    10**4000 - 1,
    1e308,
    5e-324,
    1e16,
    1.0,
    "",
    0,
    False,
    None,
    [],
    {},
    "a\\u0000b",
    {"$datetime": "not a date"},
    {"$unknown": 1},
    {"$escaped": {"$uuid": "x"}},
    {"$": {"$": {}}},
    {"$int": 1, "b": 2},
    {"": "", "é\U0001f600": "\u2028"},
]


# Sets print in another order in every process: their ids are their type's name alone.
@pytest.mark.parametrize("value", LOSSLESS, ids=lambda v: type(v).__name__)
def test_a_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    """C37."""
    for wrapped in (value, [value], {"k": value}):
        back = decode(encode(wrapped))
        assert back == wrapped
        assert type(back) is type(wrapped)
    back = decode(encode(value))
    assert type(back) is type(value)
    assert encode(back) == encode(value)


@pytest.mark.parametrize("text", ["NaN", "-NaN", "sNaN", "Infinity", "-Infinity", "10.10", "1.1000"])
def test_a_decimal_keeps_its_exact_text(text: str) -> None:
    """C37: Decimal('NaN') is not equal to itself, so its text is compared."""
    for type_ in (None, Decimal):
        back = decode(encode(Decimal(text)), type_)
        assert type(back) is Decimal
        assert str(back) == text


def test_minus_zero_keeps_its_sign() -> None:
    """C37."""
    assert str(decode(encode(-0.0))) == "-0.0"


def test_a_64_bit_integer_is_written_digit_for_digit() -> None:
    """C37: no tag, as API and UI show this text."""
    assert encode(3544790567247868102) == "3544790567247868102"


def test_a_long_integer_from_a_foreign_client_keeps_its_digits() -> None:
    """C37: orjson alone would read it as a float."""
    assert decode("[18446744073709551616, 1e308]") == [18446744073709551616, 1e308]
    assert type(decode("-9223372036854775809")) is int


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def cyclic_list() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def cyclic_dict() -> Any:
    value: dict[str, Any] = {}
    value["me"] = {"a": value}
    return value


def cyclic_order() -> Any:
    order = Order(UUID(int=1), [])
    order.lines.append(order)  # type: ignore[arg-type]
    return order


def doubled(levels: int) -> Any:
    value: list[Any] = []
    for _ in range(levels):
        value = [value, value]
    return value


BAD = [
    # value, path, part of the reason
    ({"t": "a\0b"}, "$.t", "NUL"),
    ({"v": float("nan")}, "$.v", "nan"),
    ({"v": float("inf")}, "$.v", "inf"),
    ({"v": [1.0, float("-inf")]}, "$.v[1]", "-inf"),
    ("\ud800", "$", "surrogate"),
    ({"a b": ["x", {"é": "\udfff"}]}, '$["a b"][1]["\\u00e9"]', "surrogate"),
    ({"a\0": 1}, '$["a\\u0000"]', "key with a NUL"),
    ({"\ud800": 1}, '$["\\ud800"]', "key with a lone surrogate"),
    ({1: "a"}, "$[1]", "key of type int"),
    ({"x": {None: "a"}}, "$.x[<NoneType>]", "key of type NoneType"),
    ({(1, 2): "a"}, "$[<tuple>]", "key of type tuple"),
    ({Color.RED: "a"}, f"$[<{__name__}.Color>]", "key of type"),
    ({"at": datetime(2026, 6, 1, 12, 0)}, "$.at", "no timezone"),
    ([time(1, tzinfo=ZoneInfo("Asia/Shanghai"))], "$[0]", "pass a datetime"),
    ({"n": 10**5000}, "$.n", "more than 4,000 digits"),
    ({"n": -(10**4000)}, "$.n", "more than 4,000 digits"),
    ((1, "a\0"), "$[1]", "NUL"),
    ({"s": {"a\0"}}, "$.s{}", "NUL"),
    ({"o": OrderedDict(a=1)}, "$.o", "write dict(...)"),
    (defaultdict(int), "$", "write dict(...)"),
    (Point(1), "$", "write tuple(...)"),
    (bytearray(b"x"), "$", "bytearray"),
    (1j, "$", "complex"),
    ({"f": [Unknown()]}, "$.f[0]", "Unknown, which can't be stored; convert it"),
    (Unknown, "$", "type"),
    (iter([]), "$", "list_iterator"),
    (ORDER.__class__, "$", "type"),
    (dataclasses.replace(ORDER, due=datetime(2026, 1, 1)), "$.due", "no timezone"),
    (Customer.model_construct(name="a\0"), "$.name", "NUL"),
    (nested(5000), "$[0][0][0][0][0]…", "deeper than 100"),
    (nested(101), "$[0][0][0][0][0]…", "deeper than 100"),
    (cyclic_list(), "$[0][0][0][0][0]…", "holds itself"),
    (cyclic_dict(), "$.me.a.me.a.me…", "holds itself"),
    (cyclic_order(), "$.lines[0].lines[0].lines…", "holds itself"),
    (doubled(90), "$", "limit is 1,048,576 bytes"),
]


@pytest.mark.parametrize(
    ("value", "path", "reason"), BAD, ids=[f"{path[:30]!a} {reason}" for _, path, reason in BAD]
)
def test_a_value_that_would_be_lost_is_refused_with_its_path(value: Any, path: str, reason: str) -> None:
    """C20, C36, C37, C39."""
    with pytest.raises(BadValue) as caught:
        encode(value)
    assert caught.value.path == path
    assert reason in caught.value.reason
    assert storable_text(str(caught.value)) == str(caught.value), "the error itself is storable"


def test_a_path_starts_where_the_caller_says() -> None:
    """C36: an input and a signal body are told apart."""
    with pytest.raises(BadValue) as caught:
        encode({"t": "\0"}, path="signal.body")
    assert caught.value.path == "signal.body.t"


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"$a": v}])
def test_a_hundred_levels_pass_whatever_they_are_made_of(wrap: Any) -> None:
    """C39: tagged levels take two levels of JSON each."""
    value: Any = 1
    for _ in range(100):
        value = wrap(value)
    assert decode(encode(value)) == value
    with pytest.raises(BadValue, match="deeper than 100"):
        encode(wrap(value))


def test_a_call_near_the_end_of_the_stack_is_refused_cleanly() -> None:
    """C39: never a RecursionError from encode itself."""

    def dive(left: int) -> str:
        return dive(left - 1) if left else encode(nested(100))

    used = 0
    frame = sys._getframe()
    while frame.f_back:
        frame, used = frame.f_back, used + 1
    with pytest.raises(BadValue, match="deeply"):
        dive(sys.getrecursionlimit() - used - 60)


@pytest.mark.parametrize("size", [1 << 10, 256 << 10, (1 << 20) - 2])
def test_a_payload_within_the_limit_passes(size: int) -> None:
    """C39: the limit counts the quotes too."""
    assert len(encode("x" * size)) == size + 2


@pytest.mark.parametrize(
    "value",
    [
        "x" * ((1 << 20) - 1),
        "é" * (1 << 19),
        b"x" * (10 << 20),
        [1] * (1 << 20),
        ["\n" * 200] * 5000,
    ],
    ids=["text", "bytes not characters", "10 MB of bytes", "list", "escapes"],
)
def test_a_payload_over_the_limit_is_refused_with_both_sizes(value: Any) -> None:
    """C39."""
    with pytest.raises(BadValue, match=r"\$: is .*[\d,]+ bytes of JSON; the limit is 1,048,576 b"):
        encode(value)


def test_300_mb_are_refused_within_a_second() -> None:
    """C39."""
    value = {"a": ["x" * 1_000_000] * 300, "b": "y" * 300_000_000}
    begin = clock.perf_counter()
    with pytest.raises(BadValue, match="limit"):
        encode(value)
    assert clock.perf_counter() - begin < 1


def test_the_limit_can_be_set() -> None:
    """C39."""
    assert encode("abc", max_bytes=5) == '"abc"'
    with pytest.raises(BadValue, match="is 6 bytes of JSON; the limit is 5"):
        encode("abcd", max_bytes=5)


def test_declared_types_are_rebuilt() -> None:
    """C37: dataclasses, enums and models, nested, with types of their own inside."""
    customer = Customer(fullName="Ann", orders=(ORDER,))
    cases: list[tuple[Any, Any]] = [
        (ORDER, Order),
        ([ORDER], list[Order]),
        ({"a": ORDER, "b": None}, dict[str, Order | None]),
        ((ORDER, Color.RED), tuple[Order, Color]),
        ({Line("a", Decimal(1))}, set[Line]),
        (Color.PAIR, Color),
        (Level.HIGH, Level),
        (None, Order | None),
        (customer, Customer),
        ([customer], list[Customer]),
        (5, int | str),
        ("5", int | str),
    ]
    for value, type_ in cases:
        back = decode(encode(value), type_)
        assert back == value
        assert type(back) is type(value)


def test_without_a_declared_type_stored_objects_are_plain_data() -> None:
    """C53: stored text names no class, so it can choose none."""
    assert decode(encode(Line("a", Decimal("1.0")))) == {
        "sku": "a",
        "price": Decimal("1.0"),
        "color": "red",
    }


@pytest.mark.parametrize(
    "hostile",
    [
        {"$enum": ["os:system", "id"]},
        {"$call": "os.system"},
        {"py/object": "os.system"},
        {"exc_type": "system", "exc_module": "os", "exc_message": ["id"]},
        {"lc": 1, "type": "constructor", "id": ["os", "system"]},
        {"$set": 5},
        {"$escaped": [1]},
        {"$uuid": {"$uuid": 1}},
    ],
)
def test_unknown_tags_are_plain_data(hostile: Any) -> None:
    """C53: no import, no call, no error; and encoding it again keeps it plain."""
    text = orjson.dumps(hostile).decode()
    assert decode(text) == hostile
    assert decode(encode(decode(text))) == hostile


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "$"),
        ("{", "$"),
        ("NaN", "$"),
        ("1e400", "$"),
        ("1" * 5000, "$"),
        ('"\\ud800"', "$"),
        ("[" * 5000, "$"),
        ('{"a": [{"$uuid": "x"}]}', "$.a[0]"),
        ('{"$datetime": "2026-06-01T12:00:00"}', "$"),
        ('{"a": {"$int": "%s"}}' % ("1" * 4001), "$.a"),
        ('{"$int": "1_0"}', "$"),
        ('{"$decimal": "x"}', "$"),
        ('{"$timedelta": "%s"}' % ("9" * 99), "$"),
        ('{"$bytes": "%%%"}', "$"),
        ('["$",' + "[" * 200 + "]" * 201, "$[1][0][0][0][0]…"),
        ('["$",' + "[" * 1000 + "12345678901234567890" + "]" * 1001, "$"),
    ],
)
def test_text_that_is_not_ours_is_refused_with_its_path(text: str, path: str) -> None:
    """C37, C38."""
    with pytest.raises(BadValue) as caught:
        decode(text)
    assert caught.value.path == path


def test_text_that_does_not_fit_the_declared_type_is_refused_with_its_path() -> None:
    """C37: the value itself is not repeated, as it may be a secret."""
    with pytest.raises(BadValue) as caught:
        decode(encode({"id": UUID(int=1), "lines": [{"sku": "s3cret"}]}), Order)
    assert caught.value.path == "$.lines[0].price"
    assert "s3cret" not in str(caught.value)


def test_a_type_that_cannot_be_rebuilt_is_a_bad_definition() -> None:
    """R17."""
    with pytest.raises(BadDefinition, match="Unknown"):
        decode("{}", Unknown)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
HASHABLE = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXT,
        st.binary(),
        st.uuids(),
        st.dates(),
        st.times(),
        st.timedeltas(),
        st.datetimes(timezones=st.just(UTC) | st.just(SHANGHAI)),
        st.decimals(allow_nan=False),
    ),
    lambda inner: st.lists(inner).map(tuple) | st.frozensets(inner),
    max_leaves=6,
)
KEYS = TEXT | st.sampled_from(["$", "$escaped", "$uuid", "$set", "$int", "$datetime"])
VALUES = st.recursive(
    HASHABLE | st.sets(HASHABLE, max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal and of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float | Decimal):
        return str(a) == str(b)
    return bool(a == b)


@given(VALUES)
def test_any_value_comes_back_the_same_and_its_text_is_stable(value: Any) -> None:
    """C37."""
    text = encode(value)
    back = decode(text)
    assert same(back, value)
    assert encode(back) == text


def test_the_text_is_the_same_for_every_hash_seed_and_key_order() -> None:
    """C37: dedup compares digests of this text."""
    code = (
        "from actum.codec import encode, digest\n"
        "s = {f'k{i}' for i in range(50)}\n"
        "print(digest(encode({'s': s, 'f': frozenset(s), 'd': {k: 1 for k in s}})))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1
    assert encode({"b": 1, "a": 2}) == '{"a":2,"b":1}'


def test_50_mb_of_error_text_are_cut_with_a_marker() -> None:
    """C39."""
    text = storable_text("x" * 50_000_000)
    assert text == "x" * 8000 + "… [49,992,000 more characters cut]"
    assert len(storable_error(ValueError("y" * 50_000_000))["message"]) < 8100


@given(st.text(), st.integers(0, 50))
def test_any_error_text_becomes_storable(text: str, limit: int) -> None:
    """C36."""
    encode(storable_text(text, limit))


def test_unprintable_characters_are_shown_as_escapes() -> None:
    """C36."""
    assert storable_text("a\0b\ud800\x1b[31m\n\té\x85\\u0000") == ("a\\x00b\\ud800\\x1b[31m\n\té\\x85\\u0000")


def test_an_error_whose_text_raises_is_still_stored() -> None:
    """C36."""

    class Rude(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    try:
        raise Rude
    except Rude as error:
        stored = storable_error(error)
    assert stored["message"] == "<its __str__ raised ValueError>"
    assert stored["type"].endswith("Rude")
    assert "raise Rude" in stored["traceback"]
    assert decode(encode(stored)) == stored


def test_a_model_whose_serializer_raises_is_refused() -> None:
    """C36."""

    class Sick(BaseModel):
        x: int = 1

        @field_serializer("x")
        def _dump(self, x: int) -> int:
            raise ValueError("no\0")

    with pytest.raises(BadValue, match=r"model_dump raised: .*no") as caught:
        encode({"c": Sick()})
    assert caught.value.path == "$.c"
    assert "\0" not in str(caught.value)


def annotated(order: Order, color: Color, n: int, free: Any = None) -> None:
    pass


def test_parsed_json_is_revived_and_arguments_are_rebuilt_by_their_parameters() -> None:
    """C37: what the engine does with a row that holds `{"input": …}`."""
    parsed = plain(encode({"order": ORDER, "color": Color.RED, "n": 1}))
    types = parameter_types(annotated)
    assert types == {"order": Order, "color": Color}
    arguments = revive(parsed)
    assert {k: convert(arguments[k], types[k]) for k in types} == {
        "order": ORDER,
        "color": Color.RED,
    }
    assert revive({"$int": "5"}, int) == 5
    with pytest.raises(BadValue, match=r"\$\.a: is not a valid \$uuid"):
        revive({"a": {"$uuid": "x"}})
    with pytest.raises(BadValue, match="is not JSON"):
        plain("{")


@pytest.mark.parametrize("name", ["a", "order-1/é 注文", "x" * 200])
def test_a_usable_name_passes(name: str) -> None:
    """C36."""
    assert check_name(name, "key") == name


@pytest.mark.parametrize("name", ["", "  ", "a\0", "a\n", "\x7f", "\ud800", "x" * 201, 5, None])
def test_an_unusable_name_is_refused_by_its_field(name: Any) -> None:
    """C36."""
    with pytest.raises(Rejected, match=r"^dedup key: ") as caught:
        check_name(name, "dedup key")
    assert storable_text(str(caught.value)) == str(caught.value)


def test_a_naive_datetime_is_refused_by_its_field_with_what_to_write() -> None:
    """C20."""
    with pytest.raises(BadValue, match=r"^due: has no timezone; write .*timezone.utc"):
        aware(datetime(2026, 6, 1, 12, 0), "due")
    with pytest.raises(BadValue, match=r"must be a datetime, not datetime\.date"):
        aware(date(2026, 6, 1), "due")  # type: ignore[arg-type]


def test_an_aware_datetime_compares_equal_after_a_round_trip() -> None:
    """C20."""
    at = datetime(2026, 6, 1, 12, 0, tzinfo=SHANGHAI)
    assert aware(at, "due") is at
    assert decode(encode(at)) == at == datetime(2026, 6, 1, 4, 0, tzinfo=UTC)
