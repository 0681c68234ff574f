"""Scores of predictions and of their uncertainty, from plain arrays.

A ``.._loss`` is better when smaller, a ``.._score`` when larger.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_calibration": [
            "calibration_error",
            "miscalibration_area",
            "mixture_pit_values",
            "pit_values",
            "quantile_calibration_curve",
            "sharpness",
        ],
        "_classification": [
            "brier_loss",
            "classwise_ece_loss",
            "ece_loss",
            "predictive_entropy",
            "reliability_curve",
        ],
        "_intervals": ["coverage_score", "interval_loss", "mean_width", "quantile_loss"],
        "_members": [
            "average_member_nll_loss",
            "disagreement_score",
            "ensemble_nll_loss",
            "mutual_information",
            "oracle_nll_loss",
        ],
        "_regression": [
            "crps_loss",
            "crps_mixture_loss",
            "crps_sample_loss",
            "gaussian_nll_loss",
            "mixture_nll_loss",
        ],
        "_rescaled": ["coverage_width_auc", "coverage_width_curve", "nll_min_loss"],
        "_retention": ["aurc_loss", "error_retention_curve", "ood_auroc_score", "retention_auc"],
        "_scorers": ["get_scorer", "get_scorer_names", "make_scorers"],
    },
)
