"""`python -m millpond ...` is the command `millpond ...`."""
import os
import sys

from ._command import command_path

path = command_path()
os.execv(path, [path, *sys.argv[1:]])
