"""Devices, clocks, memory, machines, and the proof that the same model was trained."""
