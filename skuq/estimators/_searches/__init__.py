"""Estimators that search: AutoDEUQ and neural ensemble search."""
