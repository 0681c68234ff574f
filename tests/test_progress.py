"""Progress: where it is shown, and what it says."""

import logging
import threading
import time
from types import SimpleNamespace

import joblib
import pytest

from skuq._utils import _messages

Progress, choose_display = _messages.Progress, _messages._choose_display


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(_messages, "_is_watched", lambda: True)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told to go on."""

    class Clock:
        now = 1000.0

        def go_on(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(_messages, "time", SimpleNamespace(time=lambda: clock.now))
    return clock


def run(n, clock, seconds, **fields):
    fields = {"total": n, **fields}
    with Progress("search", "trial", **fields) as progress:
        for k in range(n):
            clock.go_on(seconds)
            progress.step(message=f"trial {k}: fine", **{"best NLL": 0.5 - k, "failed": 0})


def test_progress_writes_each_step_once_to_a_pipe(capsys, clock):
    run(3, clock, 10, verbose=1)
    assert capsys.readouterr().err.splitlines() == [
        "search: 1 of 3 trials, best NLL 0.5, failed 0, 00:20 left (trial 0: fine)",
        "search: 2 of 3 trials, best NLL -0.5, failed 0, 00:10 left (trial 1: fine)",
        "search: 3 of 3 trials, best NLL -1.5, failed 0 (trial 2: fine)",
    ]
    fields = {"verbose": 1, "total": 100, "seconds_left": lambda: 1060 - clock.now}
    run(2, clock, 10, **fields)
    assert "00:20 left" in capsys.readouterr().err.splitlines()[0]


def test_progress_goes_to_the_log_by_default(capsys, caplog, clock):
    with caplog.at_level(logging.INFO, logger="skuq"):
        run(2, clock, 10)
    assert capsys.readouterr().err == ""
    first, _ = caplog.messages
    assert first == "search: 1 of 2 trials, best NLL 0.5, failed 0, 00:10 left (trial 0: fine)"


def test_progress_of_verbose_zero_shows_nothing(capsys, caplog, clock, terminal):
    with caplog.at_level(logging.INFO, logger="skuq"):
        run(2, clock, 100, verbose=0)
    assert capsys.readouterr().err == ""
    assert caplog.messages == ["trial 0: fine", "trial 1: fine"]


def test_progress_refuses_words_for_verbose():
    with pytest.raises(TypeError, match="verbose.*Got 'a'"):
        Progress("search", "point", 3, verbose="a")


@pytest.mark.parametrize(("seconds", "is_shown"), [(1.0, False), (4.5, True)])
def test_progress_shows_a_bar_of_what_takes_long(capsys, clock, terminal, seconds, is_shown):
    run(5, clock, seconds)
    shown = capsys.readouterr().err
    assert ("search: 100%" in shown and "best NLL=-3.5, fa" in shown) == is_shown
    assert is_shown or shown == ""


def test_progress_shows_a_bar_before_a_first_step_that_takes_long(capsys, monkeypatch, terminal):
    monkeypatch.setattr(_messages, "_LONG", 0.05)
    n_threads = threading.active_count()
    with Progress("search", "trial", 3):
        time.sleep(0.2)
        assert "search:   0%" in capsys.readouterr().err
    with Progress("search", "trial", 3):
        pass
    time.sleep(0.1)
    assert capsys.readouterr().err.count("search") <= 1  # the end of the first bar
    assert threading.active_count() <= n_threads


def test_progress_shows_no_bar_for_a_short_limit_of_time(capsys, clock, terminal):
    run(3, clock, 3, total=1000, seconds_left=lambda: 1010 - clock.now)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_progress_of_workers_shows_nothing(terminal, backend):
    displays = [joblib.delayed(choose_display)(None)] * 2
    assert choose_display(None) == "bar"
    assert joblib.Parallel(2, backend=backend)(displays) == [None, None]
    assert joblib.Parallel(1)(displays) == ["bar", "bar"]


def test_progress_of_epochs_may_become_less(capsys):
    with Progress("training", "epoch", verbose=1, every_step=False) as progress:
        progress.epochs(10, 90)
        progress.epochs(30, 60)
        progress.epochs(10, 0)  # stopped early
    lines = capsys.readouterr().err.splitlines()
    expected = ["10 of 100 epochs", "40 of 100 epochs", "50 of 50 epochs"]
    assert [text.split(",")[0] for text in lines] == [f"training: {n}" for n in expected]


def test_progress_makes_few_lines_of_many_steps(capsys, clock):
    with Progress("training", "epoch", 1000, verbose=1, every_step=False) as progress:
        for _ in range(1000):
            clock.go_on(0.01)
            progress.step()
        assert len(capsys.readouterr().err.splitlines()) == 20
        progress.step()
        clock.go_on(100)
        progress.step()
    assert len(capsys.readouterr().err.splitlines()) == 1
