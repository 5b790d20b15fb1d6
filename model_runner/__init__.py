"""Executes plans: weights, KV pool, attention, sampling; the only home of torch."""
