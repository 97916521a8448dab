"""URLs of object stores: what they may be, and what is never said of them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotswap.object_url import ObjectUrl, is_url
from hotswap.weights.roots import Roots, roots_of


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("s3://bucket/run", "bucket/run"),
        ("S3://bucket/run/", "bucket/run"),
        ("gs://b/a b/c=1,v.2", "b/a b/c=1,v.2"),
        ("memory:///x", "x"),
    ],
)
def test_a_url_is_a_bucket_and_a_prefix(text: str, path: str) -> None:
    url = ObjectUrl.parse(text)
    assert url.path == path
    assert ObjectUrl.parse(str(url)) == url
    assert (url / "name").parent == url
    assert (url / "name").name == "name"
    assert url.bucket == path.split("/")[0]
    assert is_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://key:pass/word@bucket/run",
        "s3://key@bucket/run",
        "s3://bucket/run?X-Amz-Signature=pass",
        "s3://bucket/run#pass",
        "s3://bucket/../pass",
        "s3://bucket/./pass",
        "s3://bucket//pass",
        "s3://bucket/pass\n",
        "s3://bucket/%2e%2e/pass",
        "s3://",
        "file:///etc/pass",
        "simplecache::s3://bucket/pass",
        "http://key:pass@host/x",
    ],
)
def test_what_could_hide_a_password_or_a_way_out_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="wanted") as caught:
        ObjectUrl.parse(text)
    assert "::" in text or "pass" not in str(caught.value)
    assert "key" not in str(caught.value)


def test_roots_are_whole_parts() -> None:
    root = ObjectUrl.parse("s3://bucket/run")
    inside = ["s3://bucket/run", "s3://bucket/run/a/b"]
    outside = ["s3://bucket/run2", "s3://bucket", "s3://other/run", "gs://bucket/run"]
    assert [ObjectUrl.parse(text).is_in(root) for text in inside] == [True, True]
    assert [ObjectUrl.parse(text).is_in(root) for text in outside] == [False] * 4
    bucket = ObjectUrl.parse("s3://bucket")
    assert bucket.parent == bucket


def test_only_sources_have_urls_for_roots(tmp_path: Path) -> None:
    values = {"source-root": (str(tmp_path), "s3://bucket/run"), "local-root": ("s3://bucket/x",)}
    roots = roots_of(values, "source-root", urls=True)
    assert roots is not None
    assert str(roots) == f"{tmp_path}, s3://bucket/run"
    assert roots.allow_url(ObjectUrl.parse("s3://bucket/run/7"))
    assert not roots.allow_url(ObjectUrl.parse("s3://bucket/runs"))
    assert roots(tmp_path / "x")
    only = roots_of({"source-root": ("gs://b",)}, "source-root", urls=True)
    assert only == Roots((), (ObjectUrl.parse("gs://b"),))
    assert not only(tmp_path)
    with pytest.raises(ValueError, match="is no directory"):
        roots_of(values, "local-root")
    with pytest.raises(ValueError, match=r"s3://\*\*\* is no plain URL"):
        roots_of({"source-root": ("s3://a:b@c",)}, "source-root", urls=True)
