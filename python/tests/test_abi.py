"""_abi.py against the header of the package: struct layouts by a C compiler, numbers, and each function's parameters."""
import ctypes
import re
import shutil
import subprocess
import tempfile
import pathlib
import unittest

import millpond
from millpond import _abi

HEADER = millpond.prefix() / "include/millpond/millpond.h"
STRUCTS = {
    "millpond_device_info": _abi.DeviceInfo,
    "millpond_pool_options": _abi.PoolOptions,
    "millpond_counter": _abi.Counter,
    "millpond_stats": _abi.Stats,
    "millpond_block_record": _abi.BlockRecord,
    "millpond_segment_record": _abi.SegmentRecord,
    "millpond_group_member": _abi.GroupMember,
    "millpond_oom_holder": _abi.OomHolder,
    "millpond_oom_wait": _abi.OomWait,
    "millpond_oom_tried": _abi.OomTried,
    "millpond_oom_report": _abi.OomReport,
    "millpond_tag_stats": _abi.TagStats,
    "millpond_latency": _abi.Latency,
    "millpond_history_options": _abi.HistoryOptions,
    "millpond_history_event": _abi.HistoryEvent,
    "millpond_block_event": _abi.BlockEvent,
}
# The numbers of the header that _abi.py repeats, by its names for them.
NUMBERS = [
    "E_INVALID_ARGUMENT", "E_NOT_INITIALIZED", "E_NOT_PERMITTED", "E_UNKNOWN_POINTER", "E_DOUBLE_FREE",
    "E_UNKNOWN_STREAM", "CAP_EXPORT", "CAP_RDMA", "STREAM_NON_BLOCKING", "E_OUT_OF_MEMORY", "BLOCK_LIVE",
    "BLOCK_WAITING", "BLOCK_FREE", "BLOCK_ANY", "SNAPSHOT_JSON", "SNAPSHOT_TORCH_PICKLE", "STATS_JSON",
    "STATS_PROMETHEUS", "STATS_STREAMS", "COPY_H2D", "COPY_D2H", "COPY_D2D", "CAP_MAPPING", "CAP_HOST_ACCESS",
    "CAP_UNIFIED", "CAP_PINNED", "CAP_STREAMS", "CAP_CALLBACKS", "SLEEP_KEEP", "LATENCY_BUCKETS", "OPTION_BYTES",
    "OPTIONS_BYTES", "HISTORY_HOST", "HISTORY_AT_ONCE", "HISTORY_STREAM", "PLACE_DEVICE", "PLACE_HOST",
]
PLAIN = {
    "size_t": {ctypes.c_size_t}, "uint8_t": {ctypes.c_uint8}, "uint32_t": {ctypes.c_uint32},
    "int32_t": {ctypes.c_int32}, "uint64_t": {ctypes.c_uint64}, "double": {ctypes.c_double},
    "C_Stream": {ctypes.c_void_p}, "C_Event": {ctypes.c_void_p},
    "millpond_write_callback": {_abi.WriteCallback}, "millpond_history_callback": {_abi.HistoryCallback},
    "millpond_oom_handler": {_abi.OomHandler}, "int": {ctypes.c_int},
    "millpond_hook": {_abi.BlockHook}, "millpond_hook_destroy": {_abi.HookDestroy},
}


def compiled(program):
    """Whether a C program compiles against the header; skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise unittest.SkipTest("no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "abi.c"
        source.write_text("#include <millpond/millpond.h>\n#include <assert.h>\n" + program)
        done = subprocess.run([compiler, "-std=c11", "-fsyntax-only", f"-I{HEADER.parent.parent}", source],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode == 0, done.stdout


class Abi(unittest.TestCase):
    def test_structs_lie_as_in_c(self):
        lines = []
        for name, struct in STRUCTS.items():
            # Structs grow at their end, and the library writes as much as fits.
            lines.append(f'static_assert(sizeof({name}) >= {ctypes.sizeof(struct)}, "size of {name}");')
            for field, _ in struct._fields_:
                offset = getattr(struct, field).offset
                lines.append(f'static_assert(offsetof({name}, {field}) == {offset}, "{name}.{field}");')
        good, said = compiled("\n".join(lines))
        self.assertTrue(good, said)
        # The check can fail.
        self.assertFalse(compiled("\n".join(lines).replace("== 8,", "== 9,", 1))[0])

    def test_numbers_are_those_of_the_header(self):
        lines = [f'static_assert(MILLPOND_{name} == {getattr(_abi, name)}, "{name}");' for name in NUMBERS]
        lines += [f'static_assert(MILLPOND_LATENCY_{k.upper()} == {v}, "{k}");' for k, v in _abi.LATENCY.items()]
        lines += [f'static_assert(MILLPOND_HISTORY_{v.upper()} == {k}, "{v}");' for k, v in _abi.HISTORY.items()]
        lines += [f'static_assert(MILLPOND_HOOK_{v.upper()} == {k}, "{v}");' for k, v in _abi.HOOKS.items()]
        lines += [f'static_assert(MILLPOND_ADVICE_{k.upper()} == {v}, "{k}");' for k, v in _abi.ADVICE.items()]
        lines += [f'static_assert(MILLPOND_DEVICE_TYPE_NAME_BYTES == {_abi.TYPE_NAME_BYTES}, "");']
        lines += [f'static_assert(MILLPOND_OOM_{v.upper()} == {k}, "{v}");'
                  for names in (_abi.OOM_REASONS, _abi.OOM_FLAGS) for k, v in names.items()]
        lines += [f'static_assert(MILLPOND_OOM_MISSING_{v.upper()} == {k}, "{v}");' for k, v in _abi.OOM_MISSING.items()]
        lines += [f'static_assert(MILLPOND_OOM_WAITS_FOR_{v.upper()} == {k}, "{v}");' for k, v in _abi.OOM_WAITS.items()]
        lines += [f'static_assert(MILLPOND_OOM_STEP_{v.upper()} == {k}, "{v}");' for k, v in _abi.OOM_STEPS.items()]
        lines += [f'static_assert(MILLPOND_OOM_{name} == {number}, "{name}");' for name, number in
                  [("TOP", _abi.OOM_TOP), ("LABEL", _abi.OOM_LABEL), ("WORDS", _abi.OOM_WORDS),
                   ("STEPS", len(_abi.OOM_STEPS))]]
        lines += [f'static_assert(MILLPOND_GROUP_NAME == {_abi.GROUP_NAME}, "");']
        lines += [f'static_assert(MILLPOND_SEGMENT_KIND_{"WHOLE" if v == "segment" else v.upper()} == {k}, "{v}");'
                  for k, v in _abi.SEGMENTS.items()]
        for struct, room in [("millpond_memory_stats", _abi.MEMORY_STATS_BYTES),
                             ("millpond_host_memory_stats", _abi.HOST_MEMORY_STATS_BYTES)]:
            lines.append(f'static_assert(sizeof({struct}) <= {room}, "{struct}");')
        good, said = compiled("\n".join(lines))
        self.assertTrue(good, said)

    def test_parameters_are_those_of_the_header(self):
        text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
        found = dict(re.findall(r"\b(millpond_\w+)\(([^()]*)\);", text))
        for name, _, parameters in _abi.FUNCTIONS:
            self.assertIn(name, found)
            declared = [p.strip() for p in found[name].split(",")]
            declared = [] if declared == ["void"] else declared
            self.assertEqual(len(declared), len(parameters), name)
            for c, python in zip(declared, parameters):
                if "*" in c:
                    pointer = python in (ctypes.c_void_p, ctypes.c_char_p) or issubclass(python, ctypes._Pointer)
                    self.assertTrue(pointer, f"{name}: {c}")
                else:
                    kind = re.sub(r"\s*\w+$", "", c.replace("const ", ""))
                    self.assertIn(python, PLAIN[kind], f"{name}: {c}")


if __name__ == "__main__":
    unittest.main()
