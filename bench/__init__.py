"""Compare ways of training one model in parallel, and say how far each figure can be trusted."""

__version__ = "0.1.0"
