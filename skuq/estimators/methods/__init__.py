"""Estimators of the five papers and their baselines; nothing here knows the recommended recipes."""
