"""Optimisers of other libraries: `tell` points and values, which are minimised, and `ask` for more.

They need ``pip install botorch`` and ``pip install optuna torch``.
"""

import numpy as np


class BoTorch:
    """qLogEI on BoTorch's default Gaussian process, as its documentation shows.

    Categories are one-hot encoded, and the largest column counts.
    """

    def __init__(self, bounds, categories, seed):
        import torch

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.torch, self.x, self.y = torch, [], []
        self.bounds = np.array(bounds)
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
            columns.append(column)
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

    def __init__(self, bounds, categories, seed):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna, self.asked = optuna, {}
        self.space = {}
        for j, (low, high) in enumerate(bounds):
            if j in categories:
                space = optuna.distributions.CategoricalDistribution(list(range(int(high) + 1)))
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


PEERS = {"botorch": BoTorch, "optuna": Optuna}
