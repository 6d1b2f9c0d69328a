"""CuBridge's engine: lift expert attention kernels, transfer them to a spec, lower, verify.

Editor-free: nothing here imports the language server. See ARCHITECTURE.md for the map.
"""

__version__ = "0.1.0"
