"""Optimisers beside skuq's: `tell` points and what evaluating them gave, and `ask` for more.

They need ``pip install botorch`` and ``pip install optuna torch``.
"""

import numpy as np
from bo_problems import scaled


class Peer:
    """Base class of the optimisers of other libraries."""

    def __init__(self, task, seed, steps):
        self.task, self.seed = task, seed

    def step(self):
        """Return the numbers stored for the last step."""
        return {}


class Uniform(Peer):
    """Uniform random points; a resumed search draws the same ones."""

    rng = None

    def tell(self, x, found):
        if self.rng is None:
            self.rng = np.random.default_rng([self.seed, 1])
            self.rng.random((len(x) - len(self.task.start), len(self.task.bounds)))

    def ask(self, q):
        u = self.rng.random((q, len(self.task.bounds)))
        return scaled(u, self.task.bounds, self.task.categories)


class BoTorch(Peer):
    """qLogEI on BoTorch's default Gaussian process, as its documentation shows.

    Categories are one-hot encoded, and the largest column counts.
    """

    def __init__(self, task, seed, steps):
        super().__init__(task, seed, steps)
        self.x, self.y = np.empty((0, len(task.bounds))), []
        highs = task.bounds[:, 1].astype(int)
        self.sizes = [highs[j] + 1 if j in task.categories else 1 for j in range(len(highs))]

    def tell(self, x, found):
        self.x = np.vstack([self.x, x])
        self.y += [value for _, value in found]

    def encoded(self, X):
        low, high = self.task.bounds.T
        unit = (X - low) / (high - low)
        parts = [
            np.eye(size)[X[:, j].astype(int)] if size > 1 else unit[:, [j]]
            for j, size in enumerate(self.sizes)
        ]
        return np.hstack(parts)

    def decoded(self, U):
        parts = np.split(U, np.cumsum(self.sizes)[:-1], axis=1)
        columns = [
            part.argmax(axis=1) if size > 1 else low + (high - low) * part[:, 0]
            for part, size, (low, high) in zip(parts, self.sizes, self.task.bounds)
        ]
        return np.stack(columns, axis=1)

    def ask(self, q):
        import torch
        from botorch.acquisition.logei import qLogExpectedImprovement
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from botorch.models.transforms import Standardize
        from botorch.optim import optimize_acqf
        from gpytorch.mlls import ExactMarginalLogLikelihood

        torch.manual_seed(self.seed + len(self.y))
        torch.set_num_threads(1)
        X = torch.tensor(self.encoded(self.x), dtype=torch.double)
        Y = -torch.tensor(self.y, dtype=torch.double)[:, None]
        model = SingleTaskGP(X, Y, outcome_transform=Standardize(m=1))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        acquisition = qLogExpectedImprovement(model, best_f=Y.max())
        box = torch.stack([torch.zeros(X.shape[1]), torch.ones(X.shape[1])]).double()
        x, _ = optimize_acqf(acquisition, box, q=q, num_restarts=10, raw_samples=512)
        return self.decoded(x.numpy())


class Optuna(Peer):
    """Optuna's GPSampler; results come as trials that were run elsewhere."""

    def __init__(self, task, seed, steps):
        import optuna
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.create, self.asked = optuna.trial.create_trial, {}
        self.space = {
            f"x{j}": CategoricalDistribution(list(range(int(high) + 1)))
            if j in task.categories
            else FloatDistribution(low, high)
            for j, (low, high) in enumerate(task.bounds.tolist())
        }
        sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=1)
        self.study = optuna.create_study(sampler=sampler)

    def tell(self, x, found):
        for point, (_, value) in zip(np.asarray(x).tolist(), found):
            trial = self.asked.pop(tuple(point), None)
            if trial is not None:
                self.study.tell(trial, value)
                continue
            values = {
                name: v if hasattr(space, "high") else int(v)
                for (name, space), v in zip(self.space.items(), point)
            }
            told = self.create(params=values, distributions=self.space, value=value)
            self.study.add_trial(told)

    def ask(self, q):
        points = []
        for _ in range(q):
            trial = self.study.ask(self.space)
            points.append(tuple(float(trial.params[name]) for name in self.space))
            self.asked[points[-1]] = trial
        return np.array(points)


PEERS = {"random": Uniform, "botorch": BoTorch, "optuna": Optuna}
