"""What the project promises of itself, in seconds and ratios: ``nox -s limits``.

Apart from the tests, because seconds on a shared machine are no matter of right or wrong.
"""
