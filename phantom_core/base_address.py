"""Whether a text is an address that paths can be put behind. Torch-free."""

from urllib.parse import urlsplit


def problem_of(url: str) -> str | None:
    """What keeps a text from being the base address of a service, such as `http://host:8411`; None if it is one."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme not in ("http", "https"):
        return "it begins with neither http:// nor https://"
    if not parts.hostname or any(letter.isspace() for letter in url):
        return "it names no host"
    if port == 0:
        return "nothing is reached at port 0"
    if parts.username is not None or parts.password is not None:
        return "it holds a user's name or password, which nobody asks for"
    if parts.query or parts.fragment:
        return "something stands behind its path"
    return None
