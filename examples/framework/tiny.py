"""The framework's shared library from Python, through ctypes; see tiny.h for what each call does."""
import ctypes


class TinyError(RuntimeError):
    """A call of the library failed; the text is the library's own."""


class Stats(ctypes.Structure):
    """The account of a device."""
    _fields_ = [("allocated_bytes", ctypes.c_uint64), ("reserved_bytes", ctypes.c_uint64), ("blocks", ctypes.c_uint64)]


class Tiny:
    """One loaded library."""

    _SIGNATURES = {
        "tiny_last_error": (ctypes.c_char_p, []),
        "tiny_configure_host": (ctypes.c_int, [ctypes.c_uint32, ctypes.c_uint64]),
        "tiny_load_plugin": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]),
        "tiny_device_count": (ctypes.c_int, [ctypes.c_char_p]),
        "tiny_device_stats": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(Stats)]),
        "tiny_alloc": (ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t]),
        "tiny_free": (ctypes.c_int, [ctypes.c_void_p]),
        "tiny_session_create": (ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]),
        "tiny_session_train": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_float)]),
        "tiny_session_weights": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
        "tiny_session_destroy": (None, [ctypes.c_void_p]),
    }

    def __init__(self, path):
        self.calls = ctypes.CDLL(str(path))  # RTLD_LOCAL: nothing of it is given to other libraries
        for name, (result, arguments) in self._SIGNATURES.items():
            call = getattr(self.calls, name)
            call.restype, call.argtypes = result, arguments

    def check(self, status):
        """Raises TinyError for the -1 and the None of a failed call; gives back what it got."""
        if status is None or status == -1:
            raise TinyError(self.calls.tiny_last_error().decode())
        return status

    def configure_host(self, devices=0, capacity_bytes=0):
        self.check(self.calls.tiny_configure_host(devices, capacity_bytes))

    def load_plugin(self, path):
        name = ctypes.create_string_buffer(32)
        self.check(self.calls.tiny_load_plugin(str(path).encode(), name, len(name)))
        return name.value.decode()

    def device_count(self, kind):
        return self.check(self.calls.tiny_device_count(kind.encode()))

    def stats(self, kind, ordinal=0):
        out = Stats()
        self.check(self.calls.tiny_device_stats(kind.encode(), ordinal, ctypes.byref(out)))
        return out

    def alloc(self, kind, ordinal, size_bytes):
        return self.check(self.calls.tiny_alloc(kind.encode(), ordinal, size_bytes))

    def free(self, memory):
        self.check(self.calls.tiny_free(memory))

    def session(self, kind="host", ordinal=0):
        return Session(self, kind, ordinal)


class Session:
    """A network on a device. A context manager."""

    def __init__(self, tiny, kind, ordinal):
        self._tiny = tiny
        self._handle = tiny.check(tiny.calls.tiny_session_create(kind.encode(), ordinal))

    def train(self, steps):
        """Trains and returns the losses."""
        losses = (ctypes.c_float * steps)()
        self._tiny.check(self._tiny.calls.tiny_session_train(self._handle, steps, losses))
        return list(losses)

    def weights(self):
        """The first layer's weights, for numpy.from_dlpack() and its like."""
        return Weights(self._tiny, self)

    def close(self):
        if self._handle is not None:
            self._tiny.calls.tiny_session_destroy(self._handle)
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Weights:
    """Python's side of DLPack: an object that can be asked for a capsule."""

    def __init__(self, tiny, session):
        self._tiny, self._session = tiny, session

    def __dlpack_device__(self):
        # type and id stand behind the data pointer; the layout before 1.0 starts with the tensor
        tensor = self._export(legacy=True)
        device = ctypes.cast(tensor + 8, ctypes.POINTER(ctypes.c_int32))
        out = device[0], device[1]
        deleter = ctypes.cast(tensor + 56, ctypes.POINTER(ctypes.c_void_p))[0]
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(tensor)
        return out

    def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
        # The library has waited for its own work, so no stream of the consumer has to.
        legacy = max_version is None or max_version[0] < 1
        name = b"dltensor" if legacy else b"dltensor_versioned"
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(self._export(legacy), name, None)  # the consumer takes it at once, and calls its deleter

    def _export(self, legacy):
        return self._tiny.check(self._tiny.calls.tiny_session_weights(self._session._handle, int(legacy)))
