"""Redaction: credentials never reach a table; what only sounds like one does."""

import pytest

from ranklake.lake.contracts.redact import REDACTED, redact


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "db_password",
        "AWS_SECRET_ACCESS_KEY",
        "api_key",
        "apiKey-x",
        "hf.token",
        "auth",
        "TOKEN",
        "clientSecret",
    ],
)
def test_texts_under_telling_names_go(name):
    """A text under such a name is replaced, at any depth."""
    assert redact({"a": [{name: "hunter2"}]}) == {"a": [{name: REDACTED}]}
    assert redact({name: ["hunter2", {"now": "hunter3", "n": 1}]}) == {name: [REDACTED, {"now": REDACTED, "n": 1}]}


@pytest.mark.parametrize(
    "harmless",
    [
        {"tokens": "5e9"},
        {"maxTokens": "5e9"},
        {"max_tokens": 5},
        {"token_count": 7},
        {"tokenizer": "gpt2"},
        {"author": "x"},
        {"key": "v"},
        {"password": ""},
        {"secret": True},
        {"url": "https://host/a:b@c"},
        "task-sk-short",
        "the bearer of news",
    ],
)
def test_what_only_sounds_like_one_stays(harmless):
    """Numbers, empty texts, and names that merely contain such a word are kept."""
    assert redact(harmless) == harmless


@pytest.mark.parametrize(
    "text",
    [
        "AKIAABCDEFGHIJKLMNOP",
        "ghp_" + "a" * 36,
        "hf_" + "b" * 34,
        "sk-" + "c" * 40,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc",
        "https://user:pass@host/path",
        "x-amz-security-token:FwoGZXIvYXdzEJr//////////wEaDA",
        "Authorization: Bearer abcdefghijklmnopqrst",
        "-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END",
    ],
)
def test_texts_of_telling_shapes_go_anywhere(text):
    """Such a text is replaced under any name, also within a longer one."""
    assert REDACTED in redact({"x": f"before {text}"})["x"]
    assert "pass@" not in redact(text)
