"""Where the batches of a timed step come from: each file here is a kind of source."""
