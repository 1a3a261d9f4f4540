"""From a case to records: processes, the training loop, and the order of it all."""
