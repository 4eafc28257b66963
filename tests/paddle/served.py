"""A process that has done most of `import paddle`, and forks for each script that it is sent; run.py starts it.

PaddlePaddle takes two seconds to import, one of them until its own library is loaded. This process stops there, within
the import, before PaddlePaddle reads its flags and looks for plugins. A forked child has the settings of its script by
then, and goes on from there: it finds and loads the plugin in the place where a process does that has imported all by
itself. It runs the script as its main module, and leaves as Python does.

    served.py FD    a socket for requests, each of which brings the script's output. Two messages answer it: the child's
                    id, and how the child has ended (its exit status, or minus the signal)
"""
import gc
import importlib
import json
import os
import socket
import sys
import time
from warnings import simplefilter


class Stop:
    """Is asked for each module that is imported. Once `paddle.base.core` is there, its first call will be to serve."""

    def find_spec(self, name, path, target=None):
        core = sys.modules.get("paddle.base.core")
        if hasattr(core, "init_gflags"):
            sys.meta_path.remove(self)
            init_gflags = core.init_gflags

            def serve_first(arguments):
                core.init_gflags = init_gflags
                serve()
                init_gflags(arguments)

            core.init_gflags = serve_first


def serve():
    """Returns in the children only."""
    gc.freeze()  # or else each child looks through, and so copies, all that is there
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1 << 17, 1)
        if not message:
            os._exit(0)  # the runner has ended
        while not others_sleep():
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            return become(files[0], **json.loads(message))
        os.close(files[0])
        requests.send(b"%d" % child)
        requests.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def others_sleep():
    """Whether no other thread is in the middle of something. Releases before 3.2 have one, which takes samples each second
    and which their library starts again in a child."""
    states = []
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            with open(f"/proc/self/task/{thread}/stat") as file:
                states.append(file.read().rsplit(") ", 1)[1][0])
    return set(states) <= {"S"}


def become(output, script, environment, folder, warnings):
    """What differs between this process and one that was started for the script."""
    os.setsid()
    requests.close()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for opened, standard in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(opened, standard)
    os.close(nothing)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for action in warnings:
        simplefilter(action)
    sys.argv = script
    sys.path[0] = os.path.dirname(script[0])


if __name__ == "__main__":
    us = sys.argv
    requests = socket.socket(fileno=int(us[1]))
    sys.meta_path.insert(0, Stop())
    importlib.import_module("paddle")  # here each child begins
    if sys.argv is us:
        sys.exit("PaddlePaddle did not call init_gflags")
    __file__ = sys.argv[0]
    with open(__file__, encoding="utf-8") as opened:
        program = compile(opened.read(), __file__, "exec")
    exec(program)
