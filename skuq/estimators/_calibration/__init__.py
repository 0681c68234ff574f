"""Calibration of any estimator, HQ selection of classifiers, and pipelines with uncertainty."""
