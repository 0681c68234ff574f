"""Regressors of functions: NEON and ensembles of operator networks."""
