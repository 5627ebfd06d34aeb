"""Which file a user's path may mean: one below a data root, after every symbolic link is followed."""

from collections.abc import Sequence
from pathlib import Path

from phantom_core.tasks.dataset import TaskError


def resolve_under_roots(path: str, roots: Sequence[Path]) -> Path:
    """Finds a relative path below the first data root that has it.

    The errors are shown to whoever submitted the path, so they name roots by position only, and say nothing
    of what lies outside them: a link that leaves its root is refused before anyone looks whether its target
    exists.

    Args:
        path: Relative, `/` between its parts.
        roots: Folders, in the order they are searched.

    Returns:
        The resolved path of a regular file.

    Raises:
        TaskError: There is no data root, no root has such a file, or the path leads out of every root.
    """
    if not roots:
        raise TaskError(
            f"path {path!r} can't be read: the service has no data roots; set one, or use another task kind"
        )
    left: list[int] = []
    for position, root in enumerate(roots, start=1):
        try:
            inside = root.resolve()
            candidate = (inside / path).resolve()
            if not candidate.is_relative_to(inside):
                left.append(position)
            elif candidate.is_file():
                return candidate
        except (OSError, RuntimeError, ValueError):
            # A loop of links, a name too long or with a null byte, a folder that may not be entered: no
            # such file.
            continue
    if left:
        raise TaskError(
            f"path {path!r} leads out of data root {', '.join(map(str, left))}, through a symbolic link "
            "or '..'; only files that lie below a data root are read"
        )
    searched = "the data root" if len(roots) == 1 else f"any of the {len(roots)} data roots"
    raise TaskError(f"path {path!r} is no readable file below {searched}; give its path relative to one")
