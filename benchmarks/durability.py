"""Durable searches: survival of kills, resumption, and their cost in disk, time and memory.

    python benchmarks/durability.py [--only kill workers resume overhead memory]

- kill: the process of a 40-trial search gets SIGKILL at a random moment, and another goes on;
  twenty times. Counts trials that had finished and are lost, and trials trained twice.
- workers: one search of 40 trials, ten of whose worker processes get SIGKILL.
- resume: a catalog of 500 trials of the paper's space: seconds until a new trial builds its
  network, in the caller and in a process of its own; bytes on disk beside those of the weights.
- overhead: searches of one-second trials with and without a folder, side by side.
- memory: 5 000 tiny trials; resident memory of the searching process.

Writes ``benchmarks/results/durability.json``; what is there is not run again.
"""

import argparse
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
from _stored import STORED, read, write

RESULTS = STORED / "durability.json"
N_TRIALS, N_KILLS = 40, 20


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


def wave(n=300):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(n, 2))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)


def tiny_search(folder, n_trials, **settings):
    from skuq import AutoDEUQRegressor

    return AutoDEUQRegressor(
        n_trials,
        space=TinySpace(),
        epochs=5,
        search="agebo",
        catalog_dir=folder,
        random_state=0,
        **settings,
    )


def child(folder, n_trials, n_jobs):
    """A search that says on stdout what has finished, and what it ended with."""
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO, force=True)
    print(f"pid {os.getpid()}", flush=True)
    model = tiny_search(folder, n_trials, n_jobs=n_jobs).fit(*wave())
    records = model.catalog_.records
    print("end", len(records), sum(r.completed for r in records), flush=True)


def start(folder, n_trials=N_TRIALS, n_jobs=2):
    command = [sys.executable, __file__, "--child", folder, str(n_trials), str(n_jobs)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    )


def finished(lines):
    return [int(n) for n in re.findall(r"^trial (\d+)(?::| failed)", "\n".join(lines), re.M)]


def kill(_):
    """Kill searches at random moments, resume each, and count trials that were lost or repeated."""
    whole = []
    for number in range(N_KILLS):
        with tempfile.TemporaryDirectory() as folder:
            whole.append(killed_once(folder, random.Random(number)))
            print("kill", number, whole[-1], flush=True)
    return {
        "runs": whole,
        "lost": sum(run["lost"] for run in whole),
        "trained_twice": sum(run["twice"] for run in whole),
        "complete": sum(run["in_catalog"] == N_TRIALS for run in whole),
    }


def killed_once(folder, rng):
    """Kill a search at a random moment, resume it, and compare the trials of both."""
    first, lines = start(folder), []
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
    from skuq.search import Catalog

    try:
        on_disk = [record.trial_number for record in Catalog.load(folder)]
    except FileNotFoundError:  # killed before it had begun
        on_disk = []
    second = start(folder)
    lines = second.communicate()[0].splitlines()
    after, in_catalog = finished(lines), [r.trial_number for r in Catalog.load(folder)]
    return {
        "finished_before": len(before),
        "on_disk": len(on_disk),
        "lost": len(set(before) - set(on_disk)),
        "twice": len(set(after) & set(on_disk)) + len(after) - len(set(after)),
        "in_catalog": len(set(in_catalog)),
    }


def workers(_):
    """Kill a random child of the search ten times."""
    with tempfile.TemporaryDirectory() as folder:
        search, lines, killed = start(folder), [], []

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
        "failed": sorted(line for line in lines if " failed: " in line),
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


class Stamped:
    """The paper's space; once a file is named, each network's building is noted there and fails."""

    def __repr__(self):
        return "Stamped()"

    def __init__(self):
        from skuq.networks import DenseSpace

        self.space, self.file = DenseSpace(), None

    def decisions(self, input_shape=None, n_outputs=None):
        return self.space.decisions(input_shape, n_outputs)

    def build(self, configuration, input_shape, n_outputs):
        if self.file is not None:
            with open(self.file, "a") as file:
                file.write(f"{time.time()}\n")
            raise RuntimeError("seen")
        return self.space.build(configuration, input_shape, n_outputs)

    def recipe(self, configuration):
        return self.space.recipe(configuration)


def paper_search(folder, n_trials, **settings):
    from skuq import AutoDEUQRegressor
    from skuq.search import AgEBO

    return AutoDEUQRegressor(
        n_trials,
        epochs=3,
        space=Stamped(),
        search=AgEBO(population_size=100, sample_size=10),
        catalog_dir=folder,
        random_state=0,
        **settings,
    )


def resume(_):
    """Measure the disk space of 500 trials, and the time until a resumed search goes on."""
    from skuq.search import CatalogFolder

    with tempfile.TemporaryDirectory() as folder:
        model = paper_search(folder, 20).fit(*wave(600))
        path = model.catalog_path_
        originals = [r for r in model.catalog_ if r.completed]
        with CatalogFolder(path, read_parts(path)) as store:
            for number in range(20, 500):
                store.add(replace(originals[number % len(originals)], trial_number=number))
            completed = [record.result for record in store.records if record.completed]
        weights = sum(m.weights.nbytes + sum(s.nbytes for s in m.state) for m in completed)
        on_disk = sum(file.stat().st_size for file in path.iterdir())
        results = {
            "bytes_of_weights": weights,
            "bytes_on_disk": on_disk,
            "ratio": on_disk / weights,
        }
        for name, n_trials, n_jobs in (("in the caller", 501, 1), ("in two processes", 540, 2)):
            results[name] = [resume_in_a_process(path, n_trials, n_jobs) for _ in range(3)]
    return results


def resume_in_a_process(path, n_trials, n_jobs):
    """Seconds until a new trial builds its network, from the process' start and from `fit`."""
    command = [sys.executable, __file__, "--resume", str(path), str(n_trials), str(n_jobs)]
    start = time.time()
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    fit, first = map(float, out.split())
    for file in path.glob("trial-0005*.skuq"):  # those that were seen to start
        file.unlink()
    return {"from_start": first - start, "from_fit": first - fit}


def resume_once(folder, n_trials, n_jobs):
    """Resume a search, and print when `fit` began and when the first network was built."""
    model = paper_search(folder, n_trials, n_jobs=n_jobs)
    model.space.file = Path(folder) / "stamps"
    data = wave(600)
    start = time.time()
    model.fit(*data)  # every further trial fails
    print(start, model.space.file.read_text().splitlines()[0])
    model.space.file.unlink()


def read_parts(path):
    from skuq.files import _archive

    return _archive.read(path / "search.skuq", kind="search")["parts"]


def build_network():
    from skuq.networks._dense import build_mlp

    return build_mlp((10,), 1, [100, 100]).to_json()


def overhead(_):
    """Compare pairs of searches with and without a folder, whose trials take a second each."""
    from skuq.networks import Member
    from skuq.search import CatalogFolder, Search
    from skuq.search._proposers import RandomProposer
    from skuq.search._records import HeldOut

    space = TinySpace().decisions()
    rng = np.random.default_rng(0)
    member = Member(
        network=build_network(),
        weights=rng.normal(size=10 * 100 + 100 + 100 * 100 + 100 + 101).astype("float32"),
        state=(),
        history={name: rng.normal(size=100) for name in ("loss", "val_loss", "learning_rate")},
        best_epoch=3,
        held_out=rng.normal(size=(250, 2)).astype("float32"),
        seed=1,
        seconds=1.0,
        tier="xla",
    )

    def evaluate(configuration, seed):
        time.sleep(1.0)
        return member

    held_out = HeldOut(np.arange(3), np.ones((3, 1)), np.ones(3))
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(5):
            pair = {}
            for durable in (False, True) if number % 2 else (True, False):
                start = time.perf_counter()
                proposer = RandomProposer(space.architecture + space.hyperparameters)
                with CatalogFolder(folder, {"run": number, "durable": durable}) as store:
                    store.begin(1, {}, held_out, b"")
                    kept = store if durable else None
                    Search(evaluate, proposer, 20, 1, store=kept).run()
                pair["durable" if durable else "plain"] = time.perf_counter() - start
            pairs.append(pair)
    ratios = [pair["durable"] / pair["plain"] for pair in pairs]
    return {"pairs": pairs, "median_overhead_percent": 100 * (float(np.median(ratios)) - 1)}


def memory(arguments):
    """Resident megabytes of the searching process after each 500 trials."""
    resident = []

    class Watch(logging.Handler):
        def emit(self, record):
            number = re.match(r"trial (\d+)", record.getMessage())
            self.seen += number is not None
            if number and self.seen % 500 == 1:
                resident.append(resident_mb())
                print(self.seen, f"{resident[-1]:.0f} MB", flush=True)

        seen = 0

    log = logging.getLogger("skuq")
    log.setLevel(logging.INFO)
    log.addHandler(Watch())
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_search(folder, arguments.n_trials, search="random", n_jobs=2).fit(*wave())
    return {
        "trials": len(model.catalog_),
        "completed": len(model.catalog_.completed),
        "resident_mb": resident,
        "seconds": time.perf_counter() - started,
    }


def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


PARTS = {p.__name__: p for p in (kill, workers, resume, overhead, memory)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), default=list(PARTS))
    parser.add_argument("--again", action="store_true", help="run what has a result, too")
    parser.add_argument("--n-trials", type=int, default=5000, help="of the part memory")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--resume", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.resume:
        folder, n_trials, n_jobs = arguments.resume
        resume_once(folder, int(n_trials), int(n_jobs))
        return
    if arguments.child:
        folder, n_trials, n_jobs = arguments.child
        child(folder, int(n_trials), int(n_jobs))
        return
    results = read(RESULTS, dict)
    for name in arguments.only:
        if arguments.again or name not in results:
            results[name] = PARTS[name](arguments)
            write(RESULTS, results)


if __name__ == "__main__":
    main()
