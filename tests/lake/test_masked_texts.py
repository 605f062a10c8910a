"""Texts that are masked: what of them is left, whatever stood beside it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ranklake.masking.values import redact_text

PIECES = (
    *("ada@x.org", "/home/ada", "~ada/", "10.0.0.7", "fe80::1", "::", "--token", "=", "password:", "'", '"', " ", "@"),
    *("%40", "[redacted]", "[", "]", ":", "/", "\\", "C:\\Users\\ada", "https://u:p@h/x?key=abc", "-p", "\n", "a", "~"),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=8))
def test_a_redacted_text_is_redacted_for_good(pieces):
    """Masked again it is the same; else a masked date would be due for ever."""
    once = redact_text("".join(pieces))
    assert redact_text(once) == once


def test_nothing_hides_beside_what_was_replaced():
    """A home folder right behind an address is one once the address is gone."""
    assert redact_text("10.0.0.7~ada/x") == "[redacted]~[redacted]/x"
