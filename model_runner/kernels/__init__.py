"""Kernels in C++ for the CPU: built by the machine's own compiler, called through a plain C interface."""
