"""What pulls have changed, so that the update after them writes no more than that.

No torch in here but for ``live``, ``scatter`` and ``commit``: pulls run where there is none.
"""

from hotswap.sparse.cache import PATCHES, PatchCache
from hotswap.sparse.origin import Base, Origin
from hotswap.sparse.patch import Patch, TensorPatch
from hotswap.sparse.recorder import Recorder

__all__ = ["PATCHES", "Base", "Origin", "Patch", "PatchCache", "Recorder", "TensorPatch"]
