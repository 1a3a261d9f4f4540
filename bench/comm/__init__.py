"""Collectives alone: what each backend makes of each size, on this machine."""
