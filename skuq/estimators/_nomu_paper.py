"""The NOMU paper's settings, by experiment."""

from __future__ import annotations

# Section 4.1.1 and appendix B.2.2; data lie in [-1, 1], so nothing is standardised.
_TOY = {
    "hidden_units": (1024, 1024, 1024),
    "pi_sqr": 0.1,
    "pi_exp": 0.01,
    "c_exp": 30.0,
    "stable_loss": False,
    "l2": 1e-8,
    "side_l2": 1e-8,
    "initial_range": 0.05,
    "learning_rate": 1e-3,
    "batch_size": None,
    "schedule": "constant",
    "epochs": 1024,
    "clip_norm": None,
    "l_min": 1e-3,
    "l_max": 2.0,
    "c": 1.0,
    "standardize": False,
}
# Appendix B.2.7.
_UCI = {
    "hidden_units": (50,),
    "pi_sqr": 0.1,
    "pi_exp": 0.01,
    "c_exp": 30.0,
    "stable_loss": True,
    "artificial_inputs": "uniform",
    "n_artificial": 100,
    "box_margin": 0.05,
    "l2": 1e-9,
    "side_l2": 1e-4,
    "initial_range": 0.05,
    "learning_rate": 0.01,
    "batch_size": 100,
    "schedule": "constant",
    "epochs": 400,
    "early_stopping": False,
    "cv": None,
    "clip_norm": 1.0,
    "l_min": "nll",
    "l_max": "nll",
    "c": "nll",
}


def paper_settings(name: str, n_features: int) -> dict:
    """Collect the parameters of one of the paper's experiments, for `n_features` features.

    Raises
    ------
    ValueError
        If there is no such experiment.
    """
    wide = [(-1.1, 1.1)] * n_features
    settings = {
        # One feature has a grid (footnote 21), two have uniform inputs.
        "toy": {
            **_TOY,
            "n_artificial": 128 if n_features == 1 else 256,
            "artificial_inputs": "grid" if n_features == 1 else "uniform",
            "box": wide,
        },
        # Appendix B.2.5.
        "testbed": {
            **_TOY,
            "l_min": 0.1,
            "l_max": 1.0,
            "n_artificial": 100 * n_features,
            "box": wide,
        },
        # Section 4.1.3 and appendix B.2.6.
        "solar": {
            **_TOY,
            "pi_exp": 0.05,
            "l_min": 0.01,
            "l2": 1e-19,
            "side_l2": 1e-19,
            "epochs": 2**14,
            "n_artificial": 128,
            "artificial_inputs": "grid",
            "box": wide,
        },
        "uci": _UCI,
        "uci_gap": {**_UCI, "pi_sqr": 0.01, "pi_exp": 0.1, "epochs": 40},
        # Appendix B.3.1.
        "bayesopt": {
            **_TOY,
            "pi_sqr": 1.0,
            "l_min": 1e-6,
            "n_artificial": 500,
            "box": [(-1.0, 1.0)] * n_features,
        },
    }
    if name not in settings:
        raise ValueError(f"`name` must be one of {list(settings)}. Got {name!r}.")
    return settings[name]
