"""What can be wrong with how a server is started. Errors of requests are in `wire/errors.py`."""


class BadModel(ValueError):
    """The model can't be served as it was given; the message says what is wrong and what to do."""
