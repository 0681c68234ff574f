"""An optimiser of another library, asked and told over a pipe, in an environment of its own.

    python benchmarks/_bo_field.py METHOD

Each line of the input is a request in JSON: ``{"start": {"bounds", "integer", "categories",
"seed"}}``, answered by ``{"versions": {..}}``, ``{"tell": {"x", "y"}}`` (y is minimised) or
``{"ask": q}``, answered by ``{"x": [..]}``. This file imports nothing of skuq.
"""

import json
import sys
import warnings
from importlib.metadata import version

import numpy as np

#: What each method needs.
REQUIREMENTS = {"botorch": ["botorch"], "optuna": ["optuna", "torch", "scipy"]}


class BoTorch:
    """qLogEI on BoTorch's default Gaussian process, as its documentation shows.

    Whole numbers are rounded; categories are one-hot encoded, and the largest column counts.
    """

    def __init__(self, bounds, integer, categories, seed):
        import torch

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.torch, self.x, self.y = torch, [], []
        self.bounds, self.integer = np.array(bounds), integer
        self.sizes = [
            int(high) + 1 if column in categories else 1 for column, (_, high) in enumerate(bounds)
        ]

    def tell(self, x, y):
        self.x += x
        self.y += y

    def encoded(self, X):
        low, high = self.bounds.T
        unit = (X - low) / (high - low)
        parts = [
            np.eye(size)[X[:, j].astype(int)] if size > 1 else unit[:, [j]]
            for j, size in enumerate(self.sizes)
        ]
        return np.hstack(parts)

    def decoded(self, U):
        columns, start = [], 0
        for j, size in enumerate(self.sizes):
            columns_of_input = U[:, start : start + size]
            low, high = self.bounds[j]
            column = (
                columns_of_input.argmax(axis=1)
                if size > 1
                else low + (high - low) * columns_of_input[:, 0]
            )
            columns.append(np.round(column) if j in self.integer else column)
            start += size
        return np.stack(columns, axis=1)

    def ask(self, q):
        from botorch.acquisition.logei import qLogExpectedImprovement
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from botorch.models.transforms import Standardize
        from botorch.optim import optimize_acqf
        from gpytorch.mlls import ExactMarginalLogLikelihood

        torch = self.torch
        X = torch.tensor(self.encoded(np.array(self.x, dtype=float)), dtype=torch.double)
        Y = -torch.tensor(self.y, dtype=torch.double)[:, None]
        model = SingleTaskGP(X, Y, outcome_transform=Standardize(m=1))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        acquisition = qLogExpectedImprovement(model, best_f=Y.max())
        box = torch.stack([torch.zeros(X.shape[1]), torch.ones(X.shape[1])]).double()
        x, _ = optimize_acqf(acquisition, box, q=q, num_restarts=10, raw_samples=512)
        return self.decoded(x.numpy())


class Optuna:
    """Optuna's GPSampler; results come as trials that were run elsewhere."""

    def __init__(self, bounds, integer, categories, seed):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna, self.asked = optuna, {}
        self.space = {}
        for j, (low, high) in enumerate(bounds):
            if j in categories:
                space = optuna.distributions.CategoricalDistribution(list(range(int(high) + 1)))
            elif j in integer:
                space = optuna.distributions.IntDistribution(int(low), int(high))
            else:
                space = optuna.distributions.FloatDistribution(low, high)
            self.space[f"x{j}"] = space
        sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=1)
        self.study = optuna.create_study(sampler=sampler)

    def tell(self, x, y):
        for point, value in zip(x, y):
            trial = self.asked.pop(tuple(point), None)
            if trial is not None:
                self.study.tell(trial, value)
                continue
            values = {
                name: type(space.high)(v) if hasattr(space, "high") else int(v)
                for (name, space), v in zip(self.space.items(), point)
            }
            self.study.add_trial(
                self.optuna.trial.create_trial(params=values, distributions=self.space, value=value)
            )

    def ask(self, q):
        points = []
        for _ in range(q):
            trial = self.study.ask(self.space)
            point = tuple(float(trial.params[name]) for name in self.space)
            self.asked[point] = trial
            points.append(point)
        return np.array(points)


METHODS = {"botorch": BoTorch, "optuna": Optuna}


def main():
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    optimiser = None
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            optimiser = METHODS[sys.argv[1]](**request["start"])
            found = {name: version(name) for name in ("torch", sys.argv[1])}
            print(json.dumps({"versions": found}), file=answers, flush=True)
        elif "tell" in request:
            optimiser.tell(**request["tell"])
        else:
            x = optimiser.ask(request["ask"])
            print(json.dumps({"x": x.tolist()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
