"""``hotswap publish`` and ``hotswap prune``: the writing side of a stream, without a trainer."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hotswap.cli.bars import bars
from hotswap.cli.codes import ExitCode
from hotswap.cli.output import fail, print_json, print_text
from hotswap.cli.places import refuse_no_source
from hotswap.counted import counted

if TYPE_CHECKING:
    from hotswap.stream.publisher_tensors import HostTensor
    from hotswap.stream.stored import StoredTensors

__all__ = ["run_prune", "run_publish"]


def run_publish(options: argparse.Namespace) -> ExitCode:
    """Publish a checkpoint directory as the next version, and print what it cost."""
    from hotswap.cli.plugins import load_installed
    from hotswap.errors import HotswapError
    from hotswap.stream import Publisher
    from hotswap.stream.lock import reading
    from hotswap.stream.place import absolute_place
    from hotswap.stream.stored import StoredTensors

    try:
        _check_places(options)
        with (
            reading(Path(options.directory)),  # a pull must not change it meanwhile
            StoredTensors.at(Path(os.path.abspath(options.directory))) as stored,
            bars(shown=not options.json) as progress,
            Publisher(
                absolute_place(options.to),
                run=options.run,
                base_dir=None if options.base is None else Path(os.path.abspath(options.base)),
                encoding=options.encoding,
                anchor_every=options.anchor_every,
                aggregate_every=options.aggregate_every,
                keep=options.keep,
                threads=options.threads,
                post_write=load_installed().post_write,
                progress=progress,
            ) as publisher,
        ):
            published = publisher.publish(_tensors(stored))
    except (HotswapError, OSError, ValueError, KeyboardInterrupt) as error:
        return fail("publish", error, as_json=options.json)
    if options.json:
        print_json(asdict(published))
    else:
        print_text(f"{options.to}: {published}")
    return ExitCode.DONE


def _check_places(options: argparse.Namespace) -> None:
    """Raises: ValueError for a checkpoint, or a file, that versions would be published into."""
    if os.path.isfile(options.to):
        raise ValueError(f"--to {options.to} is a file, wanted a directory for what is published")
    for name, given in (("the checkpoint", options.directory), ("--base", options.base)):
        if given is not None and os.path.realpath(given) == os.path.realpath(options.to):
            raise ValueError(
                f"--to {options.to} is {name} itself, wanted a directory of its own for what is "
                "published"
            )


def run_prune(options: argparse.Namespace) -> ExitCode:
    """Remove versions that are not needed any more, and print which."""
    from hotswap.errors import HotswapError
    from hotswap.stream import prune
    from hotswap.stream.place import absolute_place

    try:
        refuse_no_source(options.source)
        pruned = prune(absolute_place(options.source), keep=options.keep, dry_run=options.dry_run)
    except (HotswapError, OSError, KeyboardInterrupt) as error:
        return fail("prune", error, as_json=options.json)
    if options.json:
        print_json({**asdict(pruned), "dry_run": options.dry_run})
    else:
        done = "would remove" if options.dry_run else "removed"
        print_text(
            f"{options.source}: {done} {_numbers(pruned.removed)}; {_numbers(pruned.kept)}"
            f" {_stays(options.dry_run, len(pruned.kept))}"
        )
    return ExitCode.DONE


def _stays(dry_run: bool, count: int) -> str:
    return "would stay" if dry_run else "stays" if count < 2 else "stay"


def _numbers(versions: tuple[int, ...]) -> str:
    if not versions:
        return "no version"
    return f"{counted(len(versions), 'version')} ({versions[0]} to {versions[-1]})"


def _tensors(stored: StoredTensors) -> Iterator[tuple[str, HostTensor]]:
    from hotswap.stream.apply import bytes_of
    from hotswap.stream.publisher_tensors import HostTensor

    for name, tensor in stored.tensors.items():
        buffer = bytearray(tensor.span.length)
        tensor.read_into(memoryview(buffer))
        yield (
            name,
            HostTensor(
                name=name,
                dtype=tensor.span.dtype,
                shape=tensor.span.shape,
                content=bytes_of(buffer),
            ),
        )
