"""Runs the functions `check_<what>` of a script, in their order; each outcome is a line that run.py counts."""
import sys
import traceback


def run_checks(names):
    failed = False
    for name, check in [(n, f) for n, f in names.items() if n.startswith("check_")]:
        try:
            check()
            print(f"ok {name}", flush=True)
        except Exception:
            failed = True
            print(f"failed {name}\n{traceback.format_exc()}", flush=True)
    sys.stdout.flush()
    if failed:
        sys.exit(1)
