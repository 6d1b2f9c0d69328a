"""The CuBridge language server: thin, one module per LSP feature, everything it knows comes from ``cubridge_engine``.

In a checkout this package is ``server`` (``python -m server``); installed it is ``cubridge_server`` (``cubridge-lsp``).
"""
