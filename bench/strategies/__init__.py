"""Ways of training in parallel, each in one file that ends with ``STRATEGIES = (...)``."""
