"""Runs the tests beside this file with the package that is installed; run.py says in which environment.

The last line is `python: N passed, N failed, N skipped`; a test that could not run here is a line `SKIPPED: ...`.
"""
import pathlib
import sys
import unittest

suite = unittest.defaultTestLoader.discover(str(pathlib.Path(__file__).parent))
result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout).run(suite)
for test, why in result.skipped:
    print(f"SKIPPED: {test}: {why}")
failed = len(result.failures) + len(result.errors)
print(f"python: {result.testsRun - failed - len(result.skipped)} passed, {failed} failed, {len(result.skipped)} skipped")
sys.exit(1 if failed else 0)
