"""From records to rows with intervals, speedups and flags. Never imports torch."""
