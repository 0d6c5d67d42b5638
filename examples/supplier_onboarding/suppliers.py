"""Read `suppliers.csv`: rows that can be worked on, and rows that are refused with a reason."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = ("supplier_id", "name", "email", "country", "address", "terms")
REQUIRED = ("supplier_id", "name", "email", "country")

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


@dataclass(frozen=True)
class Supplier:
    """One row, cleaned. `address` and `terms` may be empty; an address may have several lines."""

    supplier_id: str
    name: str
    email: str
    country: str
    address: str
    terms: str


@dataclass(frozen=True)
class RefusedRow:
    """A row nobody can work on. `reason` says what to change, `line` is where the row begins."""

    line: int
    supplier_id: str
    reason: str


def read_suppliers(path: Path) -> tuple[list[Supplier], list[RefusedRow]]:
    """Return the good rows and the refused ones, both in file order.

    Duplicates are kept on purpose: dropping them is the engine's work, by dedup key.
    """
    good: list[Supplier] = []
    refused: list[RefusedRow] = []
    for line, row in _rows(path):
        fields = {column: _clean(row.get(column)) for column in COLUMNS}
        reason = _problem(row, fields)
        if reason is None:
            good.append(Supplier(**fields))
        else:
            refused.append(RefusedRow(line, fields["supplier_id"], reason))
    return good, refused


def _rows(path: Path) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Yield each row with the number of its first line; a quoted field may span several lines."""
    # utf-8-sig: spreadsheets put a byte order mark in front, which is no part of the first column.
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        missing = set(COLUMNS) - set(reader.fieldnames or ())
        if missing:
            raise ValueError(f"{path}: the first line lacks the columns {sorted(missing)}")
        line = reader.line_num + 1
        for row in reader:
            yield line, row
            line = reader.line_num + 1


def _clean(value: str | None) -> str:
    """Trim, and compose accents: `e` + U+0301 and `é` look the same, so they must compare equal."""
    text = unicodedata.normalize("NFC", value or "").strip()
    return "\n".join(part.strip() for part in text.splitlines())


def _problem(row: dict[Any, Any], fields: dict[str, str]) -> str | None:
    """Return why the row is refused, or None."""
    if None in row:  # where DictReader puts what is beyond the last column
        return f"more than {len(COLUMNS)} fields: put quotes round a value that contains a comma"
    for column in REQUIRED:
        if not fields[column]:
            return f"{column} is empty: fill in this column"
    if not _EMAIL.fullmatch(fields["email"]):
        return f"email {fields['email']!r} is no address: write it as name@domain"
    return None
