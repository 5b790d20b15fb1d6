"""Tells other processes which pages are cached, as vLLM tells of its blocks: over ZMQ, with replay and a snapshot."""
