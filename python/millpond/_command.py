"""The `millpond` command that comes with this package."""
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sysconfig
from typing import Optional

from ._library import MillpondError, PathLike


def command_path() -> str:
    """Where the command is; MillpondError where it was not installed."""
    for scheme in (None, f"{os.name}_user"):
        folder = sysconfig.get_path("scripts") if scheme is None else sysconfig.get_path("scripts", scheme)
        file = pathlib.Path(folder) / "millpond"
        if os.access(file, os.X_OK):
            return str(file)
    found = shutil.which("millpond")
    if found is None:
        raise MillpondError("the command `millpond` is not installed beside this package; install the package anew")
    return found


def view(file: PathLike, output: Optional[PathLike] = None) -> str:
    """Draws a snapshot, a history or a recording into one page (`millpond view`), and gives its path: `output`, or the
    file's own name with .html."""
    page = os.fspath(output) if output is not None else os.fspath(file) + ".html"
    done = subprocess.run(
        [command_path(), "view", os.fspath(file), "-o", page],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )
    if done.returncode != 0:
        raise MillpondError(f"millpond view: {done.stdout.strip()}")
    return page
