"""Models to train, each in one file that ends with ``WORKLOADS = (...)``."""
