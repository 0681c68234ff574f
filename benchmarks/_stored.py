"""Stored results: JSON files, each with a list of records or a dict of them by name."""

import fcntl
import json
import os
from pathlib import Path

STORED = Path(__file__).parent / "results"


def read(path, empty=list):
    """The content of a file; without a file `empty()`."""
    return json.loads(path.read_text()) if path.exists() else empty()


def write(path, content):
    """Replace a file as a whole, so that no interruption breaks it; a list has a line a record."""
    if isinstance(content, list):
        text = "[\n" + ",\n".join(map(json.dumps, content)) + "\n]"
    else:
        text = json.dumps(content, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text + "\n")
    os.replace(temporary, path)


def add(path, record, key=()):
    """Add a record beside what other processes add; one with equal values of `key` is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        own = {name: record[name] for name in key}
        write(path, [*(r for r in read(path) if not own or not matches(r, own)), record])
    finally:
        os.close(folder)  # and with it the lock


def matches(record, key):
    """Whether a record has the values of a key."""
    return all(record.get(name) == value for name, value in key.items())


def rounded(found, digits=6):
    """Round all numbers in dictionaries and lists."""
    if isinstance(found, dict):
        return {key: rounded(value, digits) for key, value in found.items()}
    if isinstance(found, list):
        return [rounded(value, digits) for value in found]
    return round(found, digits) if isinstance(found, float) else found
