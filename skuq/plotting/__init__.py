"""Pictures of predictions, searches and teams: one Display a subject, as in scikit-learn.

Importing this package loads no matplotlib; drawing does.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "_catalog": ["CatalogDisplay"],
        "_coverage_width": ["CoverageWidthDisplay"],
        "_error_std": ["ErrorStdDisplay"],
        "_member_diversity": ["MemberDiversityDisplay"],
        "_pit": ["PITDisplay"],
        "_prediction_band": ["PredictionBandDisplay"],
        "_quantile_calibration": ["QuantileCalibrationDisplay"],
        "_regret": ["RegretDisplay"],
        "_reliability": ["ReliabilityDisplay"],
        "_retention": ["RetentionDisplay"],
        "_search_history": ["SearchHistoryDisplay"],
        "_team": ["TeamDisplay"],
    },
)
