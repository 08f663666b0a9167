"""Faults in content from outside, in words."""

from pydantic import ValidationError


def first_complaint(invalid: ValidationError, whole: str) -> str:
    """Return `field: message` for the first error, with `whole` in place of a field if it is about none."""
    first = invalid.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"
