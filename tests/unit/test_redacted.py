"""What a source brings along is repeated nowhere."""

from __future__ import annotations

import pytest

from hotswap.redacted import hide_in_error, secrets_of, without_passwords, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("from s3://b/k?X-Amz-Signature=abc&x=1 now", "from s3://b/k?*** now"),
        ("'s3://me:hunter2@b/k'", "'s3://***@b/k'"),
        ("https://token@host/a", "https://***@host/a"),
        ("s3://me:p@ss@b/k", "s3://***@b/k"),
        ("s3://me:se/cr+et@b/k?s=1", "s3://***@b/k?***"),
        ("s3://me:se?cret@b/k", "s3://***@b/k"),
        ('{"source": "gs://b/k?sig=1", "x": "y"}', '{"source": "gs://b/k?***", "x": "y"}'),
        ("two: a://u:p@h and b://h/p?q=r.", "two: a://***@h and b://h/p?***"),
        ("s3://bucket/prefix/weight_v000001", "s3://bucket/prefix/weight_v000001"),
        ("http://127.0.0.1:9000/a", "http://127.0.0.1:9000/a"),
        ("/data/a?b=c", "/data/a?b=c"),
        ("who? me@example.org", "who? me@example.org"),
    ],
)
def test_what_urls_bring_is_hidden(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
    assert without_passwords(shown) == shown


@pytest.mark.parametrize(
    ("source", "secrets"),
    [
        ("s3://me:hunter2@b/k?sig=abcdef&x=1", ("hunter2", "abcdef")),
        ("s3://token@b/k", ("token",)),
        ("s3://me:a%2Fbcd@b", ("a%2Fbcd", "a/bcd")),
        ("s3://b/k?longsecret", ("longsecret",)),
        ("/data/me:hunter2@b", ()),
        ("s3://b/k", ()),
        ("s3://me:abc@b", ()),
    ],
)
def test_what_may_be_a_secret_of_a_source(source: str, secrets: tuple[str, ...]) -> None:
    assert secrets_of(source) == secrets


def test_the_whole_of_a_failure_is_cleaned() -> None:
    source = "s3://me:hunter2@b/k?sig=abcdef"
    cause = PermissionError("login of me with hunter2")
    group = ExceptionGroup("abcdef", [ValueError(f"no {source}", 7)])
    group.__cause__ = cause
    cause.__context__ = group  # errors may go round in circles
    hide_in_error(group, source)
    assert cause.args == ("login of me with ***",)
    assert group.exceptions[0].args == ("no s3://***@b/k?***", 7)
    assert without_secrets("abcdef", secrets_of(source)) == "***"
    plain = ValueError("a s3://me:hunter2@b/k")
    hide_in_error(plain, "/a/path")
    assert plain.args == ("a s3://me:hunter2@b/k",)
