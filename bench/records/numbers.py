"""Types of the numbers in records, each with its limits."""

from __future__ import annotations

from typing import Annotated

import msgspec

MOST = 2**63 - 1
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Difference = Annotated[int, msgspec.Meta(ge=-MOST, le=MOST)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
Figure = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
"""What is counted or measured and cannot be negative. Limits are far beyond use: what exceeds them
was not measured, and would be nothing but digits in a table."""
Change = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
"""A difference, which may be negative, or a little less than nothing by rounding."""
Rate = Annotated[float, msgspec.Meta(ge=1e-9, le=1e15)]
"""Of work done: its logarithm is taken."""
Size = Annotated[float, msgspec.Meta(ge=0)]
"""Of an error, which has no limit."""
