collect_ignore = ["sanitized_calls.py"]  # a program that a test runs, not a module
