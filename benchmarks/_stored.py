"""Stored results: JSON files, each with a list of records or a dict of them by name."""

import json
import os
from pathlib import Path

STORED = Path(__file__).parent / "results"


def read(path, empty=list):
    """The content of a file; without a file `empty()`."""
    return json.loads(path.read_text()) if path.exists() else empty()


def write(path, content, by_line=False):
    """Replace a file as a whole, so that no interruption breaks it; `by_line` is for long lists."""
    text = json.dumps(content, indent=1)
    if by_line:
        text = "[\n" + ",\n".join(map(json.dumps, content)) + "\n]"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text + "\n")
    os.replace(temporary, path)


def add(path, record, by_line=False):
    """Append a record to those that are stored by now."""
    write(path, [*read(path), record], by_line)


def matches(record, key):
    """Whether a record has the values of a key."""
    return all(record.get(name) == value for name, value in key.items())
