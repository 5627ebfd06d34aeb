"""The Python client and the `ghostwatt` command. No torch, no Ray, no SQL."""

from client.client import GhostwattClient

__all__ = ["GhostwattClient"]
