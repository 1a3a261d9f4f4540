"""The laboratory: hosts emulated on one Linux machine, with links of a chosen speed."""
