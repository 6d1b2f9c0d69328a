"""A real GPU: finding it, binding tensors to a kernel's arguments by role, launching, telling what went wrong."""

from . import codes as codes
from .binding import Argument, bind_arguments, dtype_name, sizes_of
from .driver import DeviceInfo, device_available
from .runner import Runner, open_runner, workspaces

__all__ = [
    "Argument",
    "DeviceInfo",
    "Runner",
    "bind_arguments",
    "codes",
    "device_available",
    "dtype_name",
    "open_runner",
    "sizes_of",
    "workspaces",
]
