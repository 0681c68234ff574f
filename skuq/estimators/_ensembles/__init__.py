"""Ensembles of one architecture: deep, tabular and hyper deep ensembles, and MC dropout."""
