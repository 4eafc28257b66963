"""A process that has imported PaddlePaddle but for its start, and forks for each script that it is sent; run.py starts it.

PaddlePaddle takes some three seconds to import. In the midst of that it starts: it reads its flags, and finds and loads
plugins. At the end it looks which device is to be the default. This process notes down what would start it, and stops
before it looks. A forked child has the settings of its script by then, starts PaddlePaddle and goes on from there. It runs
the script as its main module, and leaves as Python does.
Some releases import other modules where there is a custom device. Until it has started, they are told that there is one,
and a child without one ends. In which place a process finds the plugin that imports all by itself, the scripts show that
do so (`ALONE` in run.py).

    served.py FD    a socket for requests, each of which brings the script's output. Two messages answer it: the child's
                    id, and how the child has ended (its exit status, or minus the signal)

A script whose request says so runs small programs, which are forked in the same way: MILLPOND_CHECK_PROGRAMS is the
descriptor of its own socket for requests, each of which brings the program's output and its errors, and is answered by how the
program has ended.
"""
import ctypes
import functools
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from warnings import simplefilter

STARTS = ["init_gflags", "init_glog", "init_memory_method", "init_devices", "init_tensor_operants",
          "init_default_kernel_signatures"]
PR_SET_PDEATHSIG = 1
PROMISED = {"get_all_custom_device_type": ["millpond"], "is_compiled_with_custom_device": True}


class Stop:
    """Is asked for each module that is imported. Once `paddle.base.core` is there, PaddlePaddle does not start by itself."""

    def __init__(self):
        self.noted = []
        self.started = False

    def find_spec(self, name, path, target=None):
        core = sys.modules.get("paddle.base.core")
        if not hasattr(core, "init_gflags"):
            return
        sys.meta_path.remove(self)
        self.real = {name: getattr(core, name) for name in STARTS + list(PROMISED)}
        for name in STARTS:
            setattr(core, name, functools.partial(self.note, name))
        for name in PROMISED:
            setattr(core, name, functools.partial(self.ask, name))

    def note(self, name, *arguments):
        if not self.noted:
            # What looks for the default device, at the end of the import.
            base = sys.modules["paddle.base.dygraph.base"]
            base.guard, self.guard = self.serve_first, base.guard
        self.noted.append((name, arguments))

    def ask(self, name, *arguments):
        return self.real[name](*arguments) if self.started else PROMISED[name]

    def serve_first(self, place=None):
        sys.modules["paddle.base.dygraph.base"].guard = self.guard
        serve()
        core = sys.modules["paddle.base.core"]
        for name, real in self.real.items():
            setattr(core, name, real)
        self.started = True
        for name, arguments in self.noted:
            self.real[name](*([sys.argv[0]] if name == "init_glog" else arguments))
        if not core.get_all_custom_device_type():
            sys.exit("PaddlePaddle has found no plugin")
        return self.guard(place)


def serve():
    """Returns in the children only."""
    # Each child would look through all that is there, and so copy it, and at its end take it apart.
    held = gc.get_objects()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    gc.freeze()
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1 << 17, 1)
        if not message:
            os._exit(0)  # the runner has ended
        request = json.loads(message)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) if request.pop("programs") else (None, None)
        child = forked()
        if child == 0:
            if theirs is not None:
                ours.close()
                request["environment"]["MILLPOND_CHECK_PROGRAMS"] = str(theirs.detach())
            return become(files[0], os.dup(files[0]), **request)
        os.close(files[0])
        requests.send(b"%d" % child)
        if theirs is not None:
            theirs.close()
            if serve_programs(ours):
                return
            ours.close()
        requests.send(b"%d" % ended(child))


def serve_programs(asked):
    """Forks for each program that a script asks for, until the script has ended. True in these children."""
    while True:
        message, files, _, _ = socket.recv_fds(asked, 1 << 17, 2)
        if not message:
            return False
        child = forked()
        if child == 0:
            asked.close()
            # Who ends a script that hangs, ends this process's parent, too.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            become(*files, **json.loads(message))
            return True
        for file in files:
            os.close(file)
        asked.send(b"%d" % ended(child))


def forked():
    while not others_sleep():
        time.sleep(0.001)
    return os.fork()


def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def others_sleep():
    """Whether no other thread is in the middle of something. Releases before 3.2 have one, which takes samples each second
    and which their library starts again in a child."""
    states = []
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            with open(f"/proc/self/task/{thread}/stat") as file:
                states.append(file.read().rsplit(") ", 1)[1][0])
    return set(states) <= {"S"}


def become(output, errors, script, environment, folder, warnings):
    """What differs between this process and one that was started for the script."""
    os.setsid()
    requests.close()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for opened, standard in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(opened, standard)
        os.close(opened)
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
    stop = Stop()
    sys.meta_path.insert(0, stop)
    importlib.import_module("paddle")  # here each child begins
    if not stop.started:
        sys.exit("PaddlePaddle has not looked for its default device")
    del stop
    __file__ = sys.argv[0]
    with open(__file__, encoding="utf-8") as opened:
        program = compile(opened.read(), __file__, "exec")
    exec(program)
