"""One rank of a process group that publishes: ``python -m`` with a JSON argument. Prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from hotswap.stream import Publisher, StreamError, TorchRanks
from tests.unit.stream.trained import State, after_step, first_state


def part_of(state: State, rank: int) -> State:
    """Each rank has every other tensor, and both have the embedding."""
    names = sorted(state)[rank::2]
    return {name: state[name] for name in {*names, "embed.weight"}}


def main(spec: dict[str, object]) -> None:
    """Publish two versions, one that the ranks disagree about between them."""
    torch.set_num_threads(1)
    rank, root = int(str(spec["rank"])), Path(str(spec["root"]))
    dist.init_process_group(
        "gloo", init_method=f"file://{root}/meeting", rank=rank, world_size=int(str(spec["world"]))
    )
    ranks = TorchRanks()
    seen = {"repr": repr(ranks)}
    states = [first_state()]
    for step in (1, 2):
        states.append(after_step(states[-1], step))
    with Publisher(
        root / "source", run="a", base_dir=root / "base", ranks=ranks, threads=1
    ) as publisher:
        publisher.publish(part_of(states[1], rank))
        mine = part_of(states[2], rank)
        try:
            publisher.publish(mine | {"embed.weight": mine["embed.weight"] + rank})
        except StreamError as error:
            seen["error"] = str(error)
        published = publisher.publish(mine)
    seen["published"] = str(published.version)
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
