"""Decides each step: which requests run, on which pages."""
