"""Texts by their beginnings: a tree whose edges are runs of tokens.

Rule: what hangs together is stored once. A node without keys and values has at least
two children, the root excepted; so whatever is reached has an entry at or below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hotswap.engine.kv import KvCache

__all__ = ["Node", "PrefixTree", "common_length"]


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """The text that the edges from the root to here spell; an entry where it has ``kv``."""

    edge: tuple[int, ...] = ()
    parent: Node | None = None
    children: dict[int, Node] = field(default_factory=dict)
    kv: KvCache | None = None

    def __repr__(self) -> str:
        return f"<Node {len(self.edge)} tokens {len(self.children)} children>"

    def adopt(self, child: Node) -> None:
        """Hang ``child`` under this node."""
        child.parent = self
        self.children[child.edge[0]] = child


class PrefixTree:
    """Costs what a text is long, however many texts there are."""

    def __init__(self) -> None:
        self._root = Node()

    def __repr__(self) -> str:
        return f"<PrefixTree {len(self._root.children)} beginnings>"

    def longest(self, tokens: Sequence[int]) -> tuple[int, Node | None]:
        """How much of ``tokens`` is known, and an entry that begins with it."""
        at, node, _ = self._walk(tuple(tokens))
        if not at:
            return 0, None
        while node.kv is None:
            node = next(iter(node.children.values()))
        return at, node

    def add(self, tokens: Sequence[int], kv: KvCache) -> Node:
        """An entry for ``tokens``, which go on past everything that is known of them."""
        wanted = tuple(tokens)
        at, node, inside = self._walk(wanted)
        if inside < len(node.edge):
            node = self._split(node, inside)
        leaf = Node(edge=wanted[at:], kv=kv)
        node.adopt(leaf)
        return leaf

    def before(self, node: Node) -> list[Node]:
        """Entries that are beginnings of ``node``'s text."""
        entries, at = [], node.parent
        while at is not None:
            if at.kv is not None:
                entries.append(at)
            at = at.parent
        return entries

    def remove(self, node: Node) -> None:
        """Forget an entry."""
        node.kv = None
        parent = node.parent
        if parent is not None and not node.children:
            del parent.children[node.edge[0]]
            self._join(parent)
        else:
            self._join(node)

    def _walk(self, tokens: tuple[int, ...]) -> tuple[int, Node, int]:
        """Length of what is known, the last node reached, and how far into its edge."""
        at, node, inside = 0, self._root, 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                break
            inside = common_length(child.edge, tokens[at : at + len(child.edge)])
            at, node = at + inside, child
            if inside < len(child.edge):
                break
        return at, node, inside

    def _split(self, node: Node, inside: int) -> Node:
        """Cut the edge to ``node`` in two; the new node between them."""
        assert node.parent is not None, "the root has no edge"
        upper = Node(edge=node.edge[:inside])
        node.parent.adopt(upper)
        node.edge = node.edge[inside:]
        upper.adopt(node)
        return upper

    def _join(self, node: Node) -> None:
        """Make one edge of two where nothing begins or branches between them."""
        if node.parent is None or node.kv is not None or len(node.children) != 1:
            return
        (child,) = node.children.values()
        child.edge = node.edge + child.edge
        node.parent.adopt(child)


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many first items are the same; both are tuples, or both are lists.

    Slices compare in C: halve, do not walk.
    """
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
