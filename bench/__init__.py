"""Measurements, one script per question: run one as `python -m bench.serve` from the checkout. Never packaged."""
