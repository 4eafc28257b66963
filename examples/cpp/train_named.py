"""Goes the way of docs/oom.md from a program's failure to the name of who holds the memory, as its test does:

    train_named.py <the program train> [<the command millpond>]

Without the command it goes as far as the history's file, and says so.
"""
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile


def run(program, folder, **more):
    """The message with which the program ends, which must be no success."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MILLPOND_")}
    done = subprocess.run([program], cwd=folder, env={**env, "MILLPOND_HOST_CAPACITY": "64M", **more},
                          capture_output=True, text=True)
    if done.returncode == 0:
        sys.exit("the program has not run out of memory")
    return done.stderr


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="millpond-train-") as folder:
        message = run(program, folder)
        print(message.strip())
        if "biggest holder: the default pool" not in message:
            sys.exit("the message does not say who holds the most")
        # As the message says, word for word.
        said = re.search(r"run with (\S+)=(\S+) (\S+)=(\d+), then: millpond view --symbols (\S+)", message)
        if said is None:
            sys.exit("the message does not say what to do next")
        run(program, folder, **{said[1]: said[2], said[3]: said[4]})
        history = pathlib.Path(folder, said[5])
        if not history.stat().st_size:
            sys.exit("the history is empty")
        if len(sys.argv) < 3 or not pathlib.Path(sys.argv[2]).exists():
            print("no command `millpond`: the names were not looked up")
            return
        command = pathlib.Path(sys.argv[2]).resolve()
        events = subprocess.run([command, "history", "--symbols", history], check=True, capture_output=True, text=True)
        for name in ("load_weights", "step"):
            if not re.search(rf"\b{name}\b.* at train\.cpp:\d+", events.stdout):
                sys.exit(f"{name} is not named:\n{events.stdout[-2000:]}")
        subprocess.run([command, "view", "--symbols", history], check=True, cwd=folder, capture_output=True)
        page = pathlib.Path(folder, f"{said[5]}.html")
        print(f"who holds the memory has a name; the page has {page.stat().st_size} bytes")


main()
