"""Finds what changes at the front of prompts from request to request, and so keeps their prefixes from being reused."""
