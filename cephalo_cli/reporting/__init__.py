"""Artifacts to eyes: tables, plots and traces."""
