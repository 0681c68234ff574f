"""Every Python snippet of README and docs runs, page by page, with warnings as errors.

The snippets of a page run one after the other, as a reader would type them, in an empty folder.
What a page takes for granted (data, a fitted model) is in SETUP. Long runs are cut short by
SHORTER: what is replaced there must stand on the page.
"""

import re
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import skuq
from skuq.exceptions import SmallValidationWarning
from skuq.networks import MLP

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Snippet(NamedTuple):
    page: str
    line: int
    code: str


def snippets(path):
    text = path.read_text()
    page = path.relative_to(ROOT).as_posix()
    return [
        Snippet(page, text[: found.start()].count("\n") + 2, found.group(1))
        for found in SNIPPET.finditer(text)
    ]


SNIPPETS = {path.relative_to(ROOT).as_posix(): snippets(path) for path in PAGES}

# What would take long, by page: tried as it stands elsewhere, or in the benchmarks.
SHORTER = {
    "docs/bayesopt.md": {
        "n_calls=40": "n_calls=7",
        "n_calls=72": "n_calls=9",
        'NOMURegressor.from_paper("bayesopt", n_features=5)': "NOMURegressor(epochs=5)",
        "NEONRegressor(noise_std=0.0, prior=ConditionedPrior(scale=0.75))": (
            "NEONRegressor(noise_std=0.0, prior=ConditionedPrior(scale=0.75), epochs=5)"
        ),
        "NOMUReadout(l_min=1e-3, l_max=2, c=1)": "NOMUReadout(l_min=1e-3, l_max=2, c=1), epochs=5",
        "(64, 64, 64)": "(8,)",
        "epochs=250": "epochs=5",
    },
    "docs/clusters.md": {"n_trials=50": "n_trials=2"},
    "docs/durable.md": {
        "n_trials=500, n_jobs=-1": "n_trials=2",
        "n_trials=20": "n_trials=2",
        "n_trials=30": "n_trials=3",
    },
    "docs/methods/neon.md": {"random_state=0).fit": "steps=50, random_state=0).fit"}
    | {"(pretrained=model_that_exists)": "(pretrained=model_that_exists, steps=50)"}
    | {"query_points=problem.query_points": "query_points=problem.query_points, steps=50"}
    | {"n_calls=40": "n_calls=10"},
    "docs/methods/nes.md": {"n_trials=50, n_members=5": "n_trials=3, n_members=2"}
    | {"NESClassifier(n_trials=50)": "NESClassifier(n_trials=2, epochs=5)"},
    "docs/methods/nomu.md": {
        "NOMURegressor(random_state=0)": "NOMURegressor(epochs=5, random_state=0)"
    },
    "docs/methods/tabular.md": {"max_time=300, n_jobs=2": "n_trials=2"},
    "docs/start.md": {"n_jobs=2, random_state=0": "n_trials=2, random_state=0"},
}
# What cannot run here, by a piece of it.
ELSEWHERE = {
    "LaplaceHead": "would register a class for all tests of the process",
    "SLURMCluster": "needs a SLURM cluster",
    '"space": build': "in tests of persistence, with a space of one's own",
    "NATStopology": "needs the files of NAS-Bench-201",
    "conformalize": "in test_calibrated and test_interoperability, with MAPIE",
}


def rows(n=60):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, 3))
    return X, X @ [1.0, 2.0, 0.0] + 0.3 * rng.normal(size=n)


def numbers():
    X, y = rows()
    return {
        "X": X,
        "y": y,
        "X_train": X,
        "y_train": y,
        "X_test": X[:10],
        "y_test": y[:10],
        "X_new": X[:40],
        "y_new": y[:40],
        "skuq": skuq,
        "np": np,
        "pd": pd,
    }


def classes():
    X, y = rows(90)
    codes = np.digitize(y, [-1, 1])
    pool = [("bayes", GaussianNB()), ("line", LogisticRegression())]
    recent = {
        "X_recent": X[:30],
        "y_recent": codes[:30],
        "X_newest": X[30:],
        "y_newest": codes[30:],
    }
    return {**numbers(), "X": X, "y": codes, "X_new": X[:5], "pool": pool, **recent}


def functions():
    grid = np.linspace(0, 1, 8)
    U = np.linspace(0.5, 2, 12)[:, None]
    model = RandomForestRegressor(5, random_state=0).fit(*rows())
    return {
        **numbers(),
        "grid": grid,
        "finer_grid": np.linspace(0, 1, 20),
        "U": U,
        "S": np.sin(U * grid),
        "U_new": U[:3],
        "model_that_exists": model,
        "forest": model,
    }


def searches():
    X, y = rows(12)
    return {
        **numbers(),
        "x": X[:3, :2],
        "y": y[:3],
        "y2": np.zeros(12),  # twelve outputs at one point
        "t": np.full(3, 75.0),
        "temperature": lambda x: 70 + float(x[0]),
        "GaussianProcessRegressor": GaussianProcessRegressor,
        "bounds": [(-1, 1), (0, 50)],
        "cost": lambda x: float(x @ x),
        "function": lambda x: float(x @ x),
        "model": skuq.NOMURegressor(epochs=5),
        "measured": np.ones(12),
        "simulate": lambda x: np.outer(np.linspace(0, 1, 12), x).sum(axis=1),
        "NEONRegressor": skuq.NEONRegressor,
    }


def trainings():
    import dataclasses

    import keras

    from skuq import training
    from skuq.networks import GaussianHead
    from skuq.tables import TrainingData

    X, y = rows()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8), keras.layers.Dense(2)])
    return {
        "model": model,
        "head": GaussianHead(1),
        "data": TrainingData.without_validation(X, y[:, None], np.ones(len(y))),
        "dataclasses": dataclasses,
        "TrainingJob": training.TrainingJob,
        "TrainingRun": training.TrainingRun,
        "train": training.train,
    }


def files():
    X, y = rows()
    model = skuq.DeepEnsembleRegressor(2, network=MLP((8,)), epochs=3, random_state=0).fit(X, y)
    return {**numbers(), "model": model, "build": None}


def scores():
    X, y = rows(200)
    return {**files(), "X_test": X, "y_test": y, "X_held_out": X[:50], "y_held_out": y[:50]}


def calibrations():
    X, y = rows(300)
    days = [slice(start, start + 10) for start in range(200, 300, 10)]
    names = {"X": X, "y": y, "days": days, "X_target": X[150:]}
    return {**numbers(), **names, "X_2011": X[:200], "y_2011": y[:200]}


def tables():
    X, y = rows()
    frame = pd.DataFrame(X, columns=list("abc")).assign(site=["north", "south", "west"] * 20)
    return {
        **numbers(),
        "frame": frame,
        "new_frame": frame[:5],
        "AutoDEUQRegressor": skuq.AutoDEUQRegressor,
    }


SETUP = {
    "docs/bayesopt.md": searches,
    "docs/engine.md": trainings,
    "docs/methods/calibration.md": calibrations,
    "docs/methods/hq.md": classes,
    "docs/methods/neon.md": functions,
    "docs/methods/nes.md": classes,
    "docs/methods/nomu.md": functions,
    "docs/methods/tabular.md": tables,
    "docs/metrics.md": scores,
    "docs/saving.md": files,
}


def shortened(snippet):
    code = snippet.code
    for long, short in SHORTER.get(snippet.page, {}).items():
        code = code.replace(long, short)
    return code


@pytest.mark.parametrize("page", SHORTER)
def test_what_is_cut_short_stands_on_the_page(page):
    text = "\n".join(snippet.code for snippet in SNIPPETS.get(page, []))
    assert [long for long in SHORTER[page] if long not in text] == []


def test_there_are_snippets():
    assert sum(map(len, SNIPPETS.values())) > 30
    assert set(SETUP) | set(SHORTER) <= {page for page, found in SNIPPETS.items() if found}


def test_snippets_are_python():
    for found in SNIPPETS.values():
        for snippet in found:
            compile(snippet.code, f"{snippet.page}:{snippet.line}", "exec")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, found in SNIPPETS.items() if found])
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "snippet", **SETUP.get(page, numbers)()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SmallValidationWarning)  # the data are small here
        for module in ("tensorflow", "tf_keras", "keras_tuner", "flatbuffers"):
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=module)
        for snippet in SNIPPETS[page]:
            if "sklearn.callback" in snippet.code:
                pytest.importorskip("sklearn.callback")
            if any(piece in snippet.code for piece in ELSEWHERE):
                continue
            # Errors and tracebacks name the page and the line.
            code = "\n" * (snippet.line - 1) + shortened(snippet)
            exec(compile(code, snippet.page, "exec"), namespace)
