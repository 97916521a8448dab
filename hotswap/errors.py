"""Every error that hotswap raises on purpose.

Rule: the class says *what happened to the weights*, so that a caller who knows
only the class knows what to do next. A message says what was seen, what was
wanted, and what to do.

======================  ==========================================  ==================
class                   weights                                     caller's next step
======================  ==========================================  ==================
``CommandError``        untouched; the command never started        follow the message
``UpdateRejected``      untouched; the source or request is wrong   fix it, try again
``UpdateRolledBack``    touched, and put back to what they were     try again
``UpdateFailed``        not whole; generation is refused            send a full update
``PluginError``         untouched; raised at load only              fix the plug-in
======================  ==========================================  ==================
"""

from __future__ import annotations

__all__ = [
    "Busy",
    "CommandError",
    "HotswapError",
    "IllegalCommand",
    "InFlight",
    "Overtaken",
    "Paused",
    "PluginError",
    "QueueFull",
    "ShuttingDown",
    "UpdateFailed",
    "UpdateRejected",
    "UpdateRolledBack",
    "WeightsNotWhole",
]


class HotswapError(Exception):
    """Base of everything that hotswap raises on purpose.

    ``retryable`` is true when the same call may succeed later with nothing
    changed by the caller.
    """

    retryable = False


class CommandError(HotswapError):
    """A command was refused before it did anything."""


class IllegalCommand(CommandError):
    """The state table has no such command in this state, or a guard said no."""


class InFlight(CommandError):
    """Requests are in flight and the command may not run beside them."""

    retryable = True


class Busy(CommandError):
    """Another command ran for longer than this one was willing to wait."""

    retryable = True


class ShuttingDown(Busy):
    """The server is on its way down: it takes nothing new, and drops what can be dropped."""


class Overtaken(CommandError):
    """A pause that was still draining was overtaken by a resume."""

    retryable = True


class Paused(CommandError):
    """A generation request arrived while forward passes are stopped."""

    retryable = True


class QueueFull(CommandError):
    """A generation request arrived while as many wait as may wait."""

    retryable = True


class WeightsNotWhole(CommandError):
    """A generation request arrived while the weights are not whole."""

    retryable = True


class UpdateRejected(HotswapError):
    """The update was refused before the first write: weights are untouched."""


class UpdateRolledBack(HotswapError):
    """The commit failed and every touched weight was put back."""

    retryable = True


class UpdateFailed(HotswapError):
    """The commit failed half way: weights are not whole until a full update."""


class PluginError(HotswapError):
    """A plug-in was refused at load; the message gives the reason."""
