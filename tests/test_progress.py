"""Progress: where a bar is shown, and what it says."""

import logging
import sys
import threading
from types import SimpleNamespace

import joblib
import pytest
from tiers import cases

from skuq import _messages


@pytest.fixture
def terminal(monkeypatch):
    stderr = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(_messages, "sys", SimpleNamespace(stderr=stderr, _getframe=sys._getframe))


def run(n, **fields):
    with _messages.Progress("search", "trial", n, **fields) as progress:
        for k in range(n):
            progress.step(message=f"trial {k}: fine", **{"best NLL": 0.5 - k, "failed": 0})


def test_progress_shows_a_bar_on_request_and_logs_messages(capsys, caplog):
    with caplog.at_level(logging.INFO, logger="skuq"):
        run(3, verbose=1, seconds_left=lambda: 20.0)
    shown = capsys.readouterr().err
    assert "search: 100%" in shown and "3/3" in shown
    assert "best NLL=-1.5, failed=0, time limit=00:20" in shown
    assert caplog.messages == [f"trial {k}: fine" for k in range(3)]


@pytest.mark.parametrize("verbose", [None, 0])
def test_progress_shows_a_bar_of_what_takes_long(capsys, terminal, monkeypatch, verbose):
    n_threads = threading.active_count()
    run(3, verbose=verbose)
    assert capsys.readouterr().err == ""
    assert threading.active_count() <= n_threads + 1  # that of tqdm
    monkeypatch.setattr(_messages, "_LONG", 1e-9)
    run(3, verbose=verbose)
    assert ("search: 100%" in capsys.readouterr().err) == (verbose is None)


@cases("backend", "threading", "loky", quick=1)
def test_progress_of_workers_shows_nothing(terminal, backend):
    watched = [joblib.delayed(_messages._is_watched)()] * 2
    assert joblib.Parallel(2, backend=backend)(watched) == [False, False]
    assert joblib.Parallel(1)(watched) == [True, True]


def test_progress_of_epochs_may_become_less(capsys):
    with _messages.Progress("training", "epoch", verbose=1) as progress:
        progress.epochs(10, 90)
        progress.epochs(30, 60)
        progress.epochs(10, 0)  # stopped early
    assert "50/50" in capsys.readouterr().err
