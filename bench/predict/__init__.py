"""What was not measured: computed from what was, with its error known where it can be checked."""
