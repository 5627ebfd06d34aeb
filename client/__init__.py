"""Python client and the `ghostwatt` command."""
