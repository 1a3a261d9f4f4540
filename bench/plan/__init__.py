"""From a suite file to an ordered list of cases."""
