"""Proves of a chat template that turn n is a prefix of turn n+1, or finds the smallest chat where it is not."""
