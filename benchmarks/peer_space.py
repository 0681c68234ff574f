"""Trials a minute in the space, and on the data, that DeepHyper was measured with.

    python benchmarks/peer_space.py --data-dir DIR

Forty trials on yacht, split 0, one process on one thread: one to four layers of 16 to 256
units, four activations, dropout, weight decay, three optimisers, batches of 16 to 256, at
most 300 epochs with a patience of 20. DeepHyper 0.13 with PyTorch made 23 trials a minute
there on one core of another machine (104 s for 40). Both sides' searches propose what
they like, so the trials are not the same. Writes ``benchmarks/results/peer_space.json``.
"""

import argparse
import os
import time
from pathlib import Path

for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
    os.environ[name] = "1"

from _data import uci  # noqa: E402
from _stored import STORED, write  # noqa: E402
from uci_regression import scores  # noqa: E402

from skuq import AutoDEUQRegressor  # noqa: E402

RESULTS = STORED / "peer_space.json"
DEEPHYPER_TRIALS_A_MINUTE = 23.0


def build(hp, input_shape, n_outputs):
    from skuq.backend import keras

    units = hp.Int("units", 16, 256, sampling="log")
    activation = hp.Choice("activation", ["relu", "tanh", "silu", "gelu"])
    dropout = hp.Float("dropout", 0.0, 0.3)
    model = keras.Sequential([keras.Input(input_shape)])
    for _ in range(hp.Int("layers", 1, 4)):
        model.add(keras.layers.Dense(units, activation=activation))
        model.add(keras.layers.Dropout(dropout))
    model.add(keras.layers.Dense(n_outputs))
    return model


def training(hp):
    return {
        "learning_rate": hp.Float("learning_rate", 1e-4, 1e-1, sampling="log"),
        "weight_decay": hp.Float("weight_decay", 1e-6, 1e-2, sampling="log"),
        "batch_size": hp.Int("batch_size", 16, 256, sampling="log"),
        "optimizer": hp.Choice("optimizer", ["sgd", "adam", "rmsprop"]),
        "early_stopping_patience": 20,
        "reduce_lr_patience": None,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--n-trials", type=int, default=40)
    arguments = parser.parse_args()
    X, y, X_test, y_test = uci(arguments.data_dir, "yacht", 0)
    results = {}
    for search in ("random", "agebo"):
        model = AutoDEUQRegressor(
            arguments.n_trials,
            search=search,
            space=(build, training),
            calibrate=False,
            epochs=300,
            validation=0.2,
            random_state=0,
        )
        started = time.perf_counter()
        model.fit(X, y)
        rate = 60 * arguments.n_trials / (time.perf_counter() - started)
        outcome = scores(model.predict_distribution(X_test), y_test)
        results[search] = {"trials_a_minute": rate, **outcome}
        print(
            f"{search}: {rate:.0f} trials a minute, {rate / DEEPHYPER_TRIALS_A_MINUTE:.1f} times "
            f"DeepHyper's; NLL {outcome['nll']:.2f}, RMSE {outcome['rmse']:.2f}"
        )
    write(RESULTS, results)


if __name__ == "__main__":
    main()
