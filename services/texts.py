"""Text from anywhere, such as every database takes."""


def storable(text: str) -> str:
    """The text without what a database refuses: a log may hold anything, NUL and half characters too."""
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()
