"""Text as markdown: none of it becomes markup that was not meant."""

from __future__ import annotations

import re

from bench.errors import one_line

SPECIAL = re.compile(r"([\\|`*_~<>\[\]#&])")
"""What markdown or HTML gives a meaning anywhere in a line."""
LINKS = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)
"""Where GitHub would make a link of a bare address."""
NAMES = re.compile(r"@(?=\w)|\$")
"""Where GitHub would see an address of mail, the name of a user, or a formula: a backslash does not
help there."""
BLOCKS = re.compile(r"^[-+](?=\s|-|$)|^=(?==*$)")
NUMBERED = re.compile(r"^(\d{1,9})([.)])(?=\s|$)")
"""What would make a list, a heading or a rule of a line that begins with it."""
MOST_CHARACTERS = 5000


def escape(text: str) -> str:
    r"""Text that markdown shows as it is, on one line: no link, picture, tag, name or list in it.

    >>> escape("<b> | http://a.example @me")
    '\\\\<b\\\\> \\\\| http\\\\://a.example <span>@</span>me'
    """
    flat = one_line(text, limit=MOST_CHARACTERS)
    flat = LINKS.sub(r"\\\g<0>", SPECIAL.sub(r"\\\1", flat))
    flat = NAMES.sub(r"<span>\g<0></span>", flat)
    return NUMBERED.sub(r"\1\\\2", BLOCKS.sub(r"\\\g<0>", flat))


def code(text: str) -> str:
    """Text as markdown shows code, in which only the quote itself has a meaning."""
    return f"`{one_line(text, limit=200).replace('`', '') or ' '}`"


def picture(title: str, place: str) -> str:
    """A chart as markdown shows it."""
    return f"![{escape(title)}]({place})"
