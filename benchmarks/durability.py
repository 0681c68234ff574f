"""Durable searches: survival of kills, resumption, and their cost in disk.

- kill: the process of a 40-trial search gets SIGKILL at a random moment, and another goes on;
  twenty times. Counts trials that had finished and are lost, and trials trained twice.
- workers: one search of 40 trials, ten of whose worker processes get SIGKILL.
- resume: a catalog of 500 trials of the paper's space: seconds until a new trial builds its
  network, in the caller and in processes of their own; bytes on disk beside those of the weights.
"""

import logging
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from runner import Benchmark, each

N_TRIALS = 40


class TinySpace:
    """Networks of a few units: searching, writing and starting are what takes time."""

    def __repr__(self):
        return "TinySpace()"

    def decisions(self, input_shape=None, n_outputs=None):
        from skuq.networks import Decisions, Integer, Real, Space

        return Decisions(
            Space((Integer("units", 2, 9),)),
            Space((Real("learning_rate", 1e-3, 1e-1, log=True),)),
        )

    def build(self, configuration, input_shape, n_outputs):
        from skuq.networks._dense import build_mlp

        return build_mlp(input_shape, n_outputs, [configuration["units"]], activation="tanh")

    def recipe(self, configuration):
        return {"learning_rate": configuration["learning_rate"], "batch_size": 32}


class Stamped:
    """The paper's space; where SKUQ_STAMPS names a file, building is noted there and fails."""

    def __init__(self):
        from skuq.networks import DenseSpace

        self.space = DenseSpace()

    def __repr__(self):
        return "Stamped()"

    def decisions(self, input_shape=None, n_outputs=None):
        return self.space.decisions(input_shape, n_outputs)

    def build(self, configuration, input_shape, n_outputs):
        if "SKUQ_STAMPS" in os.environ:  # which workers have, too
            with open(os.environ["SKUQ_STAMPS"], "a") as file:
                file.write(f"{time.time()}\n")
            raise RuntimeError("seen")
        return self.space.build(configuration, input_shape, n_outputs)

    def recipe(self, configuration):
        return self.space.recipe(configuration)


def wave(n=300):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(n, 2))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)


def tiny_search(folder, n_trials, **settings):
    from skuq import AutoDEUQRegressor

    settings |= {"space": TinySpace(), "epochs": 5, "search": "agebo", "random_state": 0}
    return AutoDEUQRegressor(n_trials, catalog_dir=folder, **settings)


def paper_search(folder, n_trials, **settings):
    from skuq import AutoDEUQRegressor
    from skuq.search import AgEBO

    settings |= {"space": Stamped(), "epochs": 3, "random_state": 0}
    settings["search"] = AgEBO(population_size=100, sample_size=10)
    return AutoDEUQRegressor(n_trials, catalog_dir=folder, **settings)


def start(*arguments):
    """A function of this file in a process of its own, whose classes have the same names."""
    call = "import durability, sys; getattr(durability, sys.argv[1])(*sys.argv[2:])"
    here = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", call, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": here},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    )


def child(folder):
    """A search that says on stdout what has finished, and what it ended with."""
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO, force=True)
    records = tiny_search(folder, N_TRIALS, n_jobs=2).fit(*wave()).catalog_.records
    print("end", len(records), sum(r.completed for r in records), flush=True)


def finished(lines):
    return [int(n) for n in re.findall(r"^trial (\d+)(?::| failed)", "\n".join(lines), re.M)]


def kill(seed):
    """Kill a search at a random moment, resume it, and compare the trials of both."""
    from skuq.search import Catalog

    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        first, lines = start("child", folder), []
        target = rng.randrange(N_TRIALS)  # a moment while this trial, or the first ones, run
        for line in first.stdout:
            lines.append(line.rstrip())
            if len(finished(lines)) >= target:
                break
        time.sleep(rng.uniform(0, 0.5))
        first.send_signal(signal.SIGKILL)
        lines += first.stdout.read().splitlines()  # what it had said before
        first.wait()
        before = finished(lines)
        try:
            on_disk = [record.trial_number for record in Catalog.load(folder)]
        except FileNotFoundError:  # killed before it had begun
            on_disk = []
        after = finished(start("child", folder).communicate()[0].splitlines())
        in_catalog = [r.trial_number for r in Catalog.load(folder)]
    return {
        "finished_before": len(before),
        "on_disk": len(on_disk),
        "lost": len(set(before) - set(on_disk)),
        "twice": len(set(after) & set(on_disk)) + len(after) - len(set(after)),
        "in_catalog": len(set(in_catalog)),
    }


def workers(seed):
    """Kill a random child of the search ten times."""
    with tempfile.TemporaryDirectory() as folder:
        search, lines, killed = start("child", folder), [], []

        def read():
            for line in search.stdout:
                lines.append(line.rstrip())

        reader = threading.Thread(target=read)
        reader.start()
        rng = random.Random(0)
        while len(killed) < 10 and search.poll() is None:
            if len(finished(lines)) >= 2 * (len(killed) + 1):
                children = workers_of(search.pid)
                if children:
                    killed.append(rng.choice(children))
                    os.kill(killed[-1], signal.SIGKILL)
                    time.sleep(rng.uniform(0, 1))
            time.sleep(0.05)
        search.wait()
        reader.join()
    _, n_records, n_completed = lines[-1].split()
    return {
        "killed": len(killed),
        "trials": int(n_records),
        "completed": int(n_completed),
        "failed_trials": sorted(line for line in lines if " failed: " in line),
    }


def workers_of(pid):
    """Process numbers of the loky workers that a process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    kept = []
    for other in map(int, children):
        try:
            if b"popen_loky_posix" in Path(f"/proc/{other}/cmdline").read_bytes():
                kept.append(other)
        except FileNotFoundError:
            pass
    return kept


def resume(seed):
    """Measure the disk space of 500 trials, copies of 20, and the time until a search goes on."""
    from skuq.files import _archive
    from skuq.search import CatalogFolder

    with tempfile.TemporaryDirectory() as folder:
        model = paper_search(folder, 20).fit(*wave(600))
        path = model.catalog_path_
        originals = [r for r in model.catalog_ if r.completed]
        parts = _archive.read(path / "search.skuq", kind="search")["parts"]
        with CatalogFolder(path, parts) as store:
            for number in range(20, 500):
                store.add(replace(originals[number % len(originals)], trial_number=number))
            completed = [record.result for record in store.records if record.completed]
        weights = sum(m.weights.nbytes + sum(s.nbytes for s in m.state) for m in completed)
        on_disk = sum(file.stat().st_size for file in path.iterdir())
        row = {"bytes_of_weights": weights, "bytes_on_disk": on_disk, "ratio": on_disk / weights}
        for name, n_trials, n_jobs in (("in_caller", 501, 1), ("in_two_processes", 540, 2)):
            row[name] = [resume_in_a_process(path, n_trials, n_jobs) for _ in range(3)]
    return row


def resume_in_a_process(path, n_trials, n_jobs):
    """Seconds from `fit` until a new trial builds its network."""
    out = start("resume_once", path, n_trials, n_jobs).communicate()[0]
    fit, first = map(float, out.split())
    for file in path.glob("trial-0005*.skuq"):  # those that were seen to start
        file.unlink()
    return first - fit


def resume_once(folder, n_trials, n_jobs):
    """Resume a search, and print when `fit` began and when the first network was built."""
    model = paper_search(folder, int(n_trials), n_jobs=int(n_jobs))
    stamps, data = Path(folder) / "stamps", wave(600)
    os.environ["SKUQ_STAMPS"] = str(stamps)
    started = time.time()
    model.fit(*data)  # every further trial fails
    print(started, stamps.read_text().splitlines()[0])
    stamps.unlink()


PARTS = {part.__name__: part for part in (kill, workers, resume)}
BENCHMARKS = {
    "durability": Benchmark(
        {name: lambda seed, part=part: part for name, part in PARTS.items()},
        {"skuq": None},
        each(lambda part, method, seed: part(seed)),
        {"kill": 20, "workers": 1, "resume": 1},
    )
}
