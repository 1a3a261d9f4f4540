"""What devices would do that are not here: predicted from what can be computed or measured.

Nothing here is a measurement, and no figure of it goes into a record.
"""
