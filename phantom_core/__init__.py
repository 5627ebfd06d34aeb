"""Layouts, meters and training for large feed-forward networks, each joule accounted for.

PyTorch only: no Ray, no SQL, no HTTP. Importing this package, or any of `spec`, `plan`, `checks`,
`protocol` and `cost`, loads no torch; `layouts`, `ffn`, `tasks` and `training` do.
"""

__version__ = "0.1.0"
