"""Suites and results of odd shape, by the thousand: each ends in a plan, a report, or one line.

``python -m tests.fuzz [COUNT]``, or ``nox -s fuzz``; a small part belongs to the tests.
"""
