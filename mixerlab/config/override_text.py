"""Values as the text of an override that Hydra's grammar reads back as the same values."""

import json
import re
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

_PLAIN = re.compile(r"[A-Za-z_/][\w/.-]*", re.ASCII)  # strings that an override holds without quotes
_KEYWORDS = ("null", "true", "false", "nan", "inf")


def as_override(value: Any) -> str:
    """A number, string, bool, null or list of them, quoted where it must be."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(as_override, value))}]"
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _KEYWORDS:
            return value
        return QuotedString(text=value, quote=Quote.double).with_quotes()
    return json.dumps(value, ensure_ascii=False)
