"""The searches of benchmarks/bo.py: methods, settings, and the loop itself."""

import dataclasses
import warnings
from typing import NamedTuple

import numpy as np
from _bo_problems import FUNCTIONS, problem
from _nomu_methods import gaussian_process, nomu
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import NEONRegressor, NOMURegressor, OperatorEnsembleRegressor
from skuq.bayesopt import BayesianOptimizer, MultiStart, OutputwiseRegressor, UpperConfidenceBound
from skuq.networks import (
    ArtificialInputs,
    ConditionedPrior,
    EpiNet,
    NOMUNetwork,
    NOMUReadout,
    OperatorNetwork,
)

# NOMU in three small layers that meet their rows, not with the paper's settings: for smooth
# functions, and for functions whose waves are shorter than the distances between rows.
SMALL = {"nomu_smooth": {"activation": "gelu"}, "nomu_small": {"initial_range": 0.08}}
NOMU_METHODS = (
    *("nomu_smooth_0.005", "nomu_small_0.05", "nomu_refined_0.05", "nomu_0.5"),
    *("nomu_lbfgs_0.5", "gp_0.05", "pgp", "random"),
)
# sqrt(0.1): the paper's kappa is under the root
LCB = {"acquisition": UpperConfidenceBound(0.316, deviation="absolute")}
FIELD_DRAWS, FIELD_RESTARTS = 64, 100  # where outputs are fields


class Part(NamedTuple):
    """Settings of one part of the benchmark, as chosen by `--only`."""

    datasets: tuple  # all there are
    usual: tuple  # those run without --functions
    methods: tuple
    runs: int
    steps: int  # points after the initial ones


LOOPS = {
    "pollutants": Part(
        ("pollutants",),
        ("pollutants",),
        (
            "conditioned_lei",
            "conditioned_lcb",
            "neon_lei",
            "neon_lcb",
            "rpn_lei",
            "gp",
            "gp_composite",
            "random",
        ),
        5,
        35,
    ),
    "parallel": Part(("pollutants",), ("pollutants",), ("q1", "q2", "q3"), 3, 35),
    "brusselator": Part(
        ("brusselator", "brusselator_authors"),
        ("brusselator",),
        ("neon_lei", "neon_lcb", "random"),
        3,
        30,
    ),
    "nomu": Part(FUNCTIONS, FUNCTIONS[:3], NOMU_METHODS, 3, 64),
}


def settings_of(method, arguments):
    """What must be the same for two searches to be compared."""
    has_width = method.startswith("nomu") and not method.startswith(tuple(SMALL))
    return {"hidden": arguments.hidden} if has_width else {}


def matern(d):
    """A Gaussian process with a length scale for each input, all inputs scaled."""
    kernel = ConstantKernel() * Matern(np.ones(d), (1e-2, 1e2), nu=2.5)
    kernel += WhiteKernel(1e-6, (1e-9, 1e-3))
    process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2)
    return make_pipeline(StandardScaler(), process)


def estimator_and_settings(part, method, task, arguments):
    """A surrogate, and what of the search differs from the defaults."""
    # Simulations have no noise. Methods named "neon" train an EpiNet, as in the paper.
    given = {"query_points": task.query_points, "noise_std": 0.0}
    if part == "brusselator":  # the paper's network, trained as ours are by default
        network = OperatorNetwork(fourier_scale=5.0, latent=96, decoder_units=(64,) * 3)
        model = NEONRegressor(network=network, prior=EpiNet(scale=1.0)).set_params(**given)
        settings = LCB if method == "neon_lcb" else {}
        return model, settings | {
            "n_draws": FIELD_DRAWS,
            "maximizer": MultiStart(n_restarts=FIELD_RESTARTS),
        }
    if part == "nomu":
        return function_search(method, len(task.bounds), arguments)
    if method.startswith("neon_lcb"):
        return NEONRegressor(prior="epinet").set_params(**given), LCB
    if method.startswith("conditioned"):
        model = NEONRegressor(prior=ConditionedPrior(scale=0.75)).set_params(**given)
        return model, LCB if method.endswith("lcb") else {}
    if method.startswith("rpn"):  # narrow: 16 of NEON's width take four times as long, these 1.5
        small = OperatorNetwork(encoder_units=(24, 24), latent=24, decoder_units=(24, 24))
        return OperatorEnsembleRegressor(16, network=small).set_params(**given), {}
    if method == "gp":
        return matern(len(task.bounds)), {"acquisition": "ei"}
    if method == "gp_composite":
        return OutputwiseRegressor(matern(len(task.bounds))), {}
    return NEONRegressor(prior="epinet").set_params(**given), {}


def function_search(method, d, arguments):
    """NOMU's protocol (section 4.2); the plain Gaussian process has neither of its rules.

    The bound of the small NOMUs is climbed by gradients, not by DIRECT.
    """
    settings = {"acquisition": "ucb", "maximizer": "direct"}
    name, _, width = method.rpartition("_")
    if method != "pgp":
        bound = UpperConfidenceBound(mean_width=float(width), dynamic_c=True)
        settings["acquisition"] = bound
    if not name.startswith("nomu"):
        return gaussian_process(0), settings
    if name == "nomu_lbfgs" or name in SMALL:
        settings["maximizer"] = "lbfgs"
    if name in SMALL:
        return small_nomu(d, 250, **SMALL[name]), settings
    model = nomu("bayesopt", d, 0, hidden=arguments.hidden)
    if name == "nomu_refined":
        # noise_std=0.0 multiplies `pi_sqr` by 10, which is the paper's again.
        model.set_params(refine=True, noise_std=0.0, loss__pi_sqr=model.loss.pi_sqr / 10)
    return model, settings


def small_nomu(d, epochs, **changes):
    """NOMU with a mean that meets its rows: `epochs` only bring the refinement near."""
    return NOMURegressor(
        NOMUNetwork((64, 64, 64), **changes),
        artificial=ArtificialInputs(box=[(-1.0, 1.0)] * d),
        readout=NOMUReadout(l_min=1e-6, l_max=2.0, c=1.0),
        noise_std=0.0,
        refine=True,
        epochs=epochs,
    )


def batch_size(method):
    return int(method[1:]) if method in LOOPS["parallel"].methods else 1


def search(part, dataset, method, seed, n_steps, arguments, record=None):
    """Goes on with a search: what is to be kept of it after every step.

    Yields
    ------
    dict
        `x`, `values` (minimised), `seconds_evaluation`, and of every step the fields of
        `StepRecord`.
    """
    task = problem("pollutants" if part == "parallel" else part, dataset, seed, arguments)
    known = task.start if record is None else np.array(record["x"])
    found = [task.evaluate(x) for x in known]
    end = len(task.start) + n_steps
    if method == "random":
        rng = np.random.default_rng([seed, 1])
        points = rng.uniform(*task.bounds.T, (n_steps, len(task.bounds)))
        for k in range(len(found) - len(task.start), n_steps):
            known, found = np.vstack([known, points[k]]), [*found, task.evaluate(points[k])]
            if part == "brusselator" or len(found) == end:  # others take no time
                yield kept(known, found, [])
        return
    estimator, settings = estimator_and_settings(part, method, task, arguments)
    steps = [] if record is None else [dict(zip(record["steps"], s)) for s in by_step(record)]
    bound = settings.get("acquisition")
    if steps and getattr(bound, "mean_width", None) is not None:  # beta was chosen once
        beta = steps[0]["beta"] / 2 ** steps[0]["n_doublings"]
        settings["acquisition"] = UpperConfidenceBound(beta, dynamic_c=bound.dynamic_c)
    composite = task.objective is not None and method != "gp"
    loop = BayesianOptimizer(
        estimator,
        task.bounds,
        objective=task.objective if composite else None,
        n_initial=len(task.start),
        random_state=seed,
        **settings,
    )

    def tell(x, results):
        loop.tell(x, [r.outputs if composite else -r.value for r in results])

    tell(known, found)
    while len(found) < end:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            x = loop.ask(min(batch_size(method), end - len(found)))
        results = [task.evaluate(point) for point in x]
        tell(x, results)
        known, found = np.vstack([known, x]), found + results
        steps.append(dataclasses.asdict(loop.history_[-1]))
        yield kept(known, found, steps)


def by_step(record):
    return zip(*record["steps"].values())


def kept(known, found, steps):
    # Points exactly, so that a search goes on as if it had not stopped.
    record = {
        "x": known.tolist(),
        "values": [rounded(r.value) for r in found],
        "seconds_evaluation": [rounded(r.seconds, 3) for r in found],
        "steps": {},
    }
    if steps:
        record["steps"] = {name: [step[name] for step in steps] for name in steps[0]}
        for name in ("seconds_fit", "seconds_acquisition"):
            record["steps"][name] = [rounded(s, 4) for s in record["steps"][name]]
    return record


def rounded(value, digits=7):
    return float(f"{value:.{digits}g}")
