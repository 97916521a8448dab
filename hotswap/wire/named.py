"""The shared memory that a refused payload names, so that its references can be given back."""

from __future__ import annotations

from contextlib import suppress

from hotswap.wire.names import Known
from hotswap.wire.records import Call, Fields, Items, Value
from hotswap.wire.refused import PayloadRefused
from hotswap.wire.sent import SharedStorage
from hotswap.wire.tensors import storage_of

__all__ = ["named_segments"]


def named_segments(value: Value) -> frozenset[SharedStorage]:
    """Every segment that ``value`` names in the shape of a handle, whatever stands around it.

    Each record is looked at once, however often the payload names it. Raises nothing.
    """
    found = set[SharedStorage]()
    seen = set[Items | Fields | Call]()
    waiting = [value]
    while waiting:
        record = waiting.pop()
        if not isinstance(record, Items | Fields | Call) or record in seen:
            continue
        seen.add(record)
        if isinstance(record, Items):
            waiting.extend(record.values)
        elif isinstance(record, Fields):
            waiting.extend(record.values.values())
        else:
            waiting.append(record.arguments)
            if record.fields is not None:
                waiting.append(record.fields)
            if record.name is Known.REBUILD_STORAGE_FILENAME:
                with suppress(PayloadRefused):
                    storage = storage_of(record, "a handle")
                    if isinstance(storage, SharedStorage):
                        found.add(storage)
    return frozenset(found)
