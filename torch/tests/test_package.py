"""The Python package without PyTorch and without a GPU: what it finds, what it says, and the numbers that it gives, over
the real library on the host device. A stub plays PyTorch and calls the library as PyTorch's C++ does.

Needs MILLPOND_TORCH_LIBRARY, the built libmillpond-torch.so. Each case is a process of its own: the library is loaded
once in a process, and PyTorch's allocator set once.
"""
import ctypes
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import types
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent / "python"

# Only what millpond_torch touches; records what it is given, and calls through the very pointers.
STUB = '''
import ctypes, types
__version__ = "2.stub"
version = types.SimpleNamespace(cuda="12.8")
class _Inner:
    def __init__(self):
        self.hooks = {}
def _setter(name):
    def set(self, pointer):
        assert isinstance(pointer, int) and pointer != 0
        self.hooks[name] = pointer
    return set
for _name in ["set_init_fn", "set_reset_fn", "set_memory_fraction_fn", "set_base_alloc_fn", "set_record_stream_fn",
              "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool"]:
    setattr(_Inner, _name, _setter(_name))
class CUDAPluggableAllocator:
    def __init__(self, path, alloc, free):
        lib = ctypes.CDLL(path)
        self.alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)((alloc, lib))
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)((free, lib))
        self.inner = _Inner()
    def allocator(self):
        return self.inner
changed = []
def change_current_allocator(allocator):
    if IN_USE:
        raise RuntimeError("Can't swap an already initialized allocator")
    changed.append(allocator)
IN_USE = False
class MemPool:
    def __init__(self, allocator):
        self.allocator = allocator
memory = types.SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator,
                               change_current_allocator=change_current_allocator)
cuda = types.SimpleNamespace(memory=memory, MemPool=MemPool, is_initialized=lambda: False, current_device=lambda: 0,
                             graph_pool_handle=lambda: (0, 7), device_count=lambda: 1, memory_allocated=lambda i: 1000)
_C = types.SimpleNamespace()
'''


def run(program, stub=STUB, **settings):
    """Runs it with the package on the path; gives (status, stdout, stderr)."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(PACKAGE)
        if stub is not None:
            (pathlib.Path(folder) / "torch.py").write_text(stub)
            path = folder + os.pathsep + path
        env = dict(os.environ, PYTHONPATH=path, MILLPOND_TORCH_DEVICE=os.environ.get("TORCH_TEST_DEVICE", "host"),
                   PYTHONDONTWRITEBYTECODE="1")
        env.update(settings)
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=env, cwd=folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    return done.returncode, done.stdout, done.stderr


class Package(unittest.TestCase):
    def good(self, program, **more):
        status, out, err = run(program, **more)
        self.assertEqual((status, err), (0, ""), err)
        return out

    def error(self, program, **more):
        """The text of the MillpondError that the program ends with."""
        out = self.good("import millpond_torch as m\ntry:\n    " + program +
                        "\nexcept m.MillpondError as e:\n    print(e)\nelse:\n    print('no error')", **more)
        self.assertNotIn("no error", out)
        return out

    def test_importing_loads_nothing(self):
        self.good("""
            import sys, millpond_torch
            assert "torch" not in sys.modules
            assert not millpond_torch.is_enabled()
            assert "millpond" not in open("/proc/self/maps").read().replace("millpond_torch/", "")
        """, MILLPOND_TORCH_LIBRARY="/nowhere")

    def test_one_line_switches_pytorch_over(self):
        self.good("""
            import millpond_torch, torch
            millpond_torch.enable()
            millpond_torch.enable()
            assert millpond_torch.is_enabled() and len(torch.changed) == 1
            hooks = torch.changed[0].allocator().hooks
            assert len(hooks) == 8 and len(set(hooks.values())) == 8, hooks
        """)

    def test_hooks_go_to_the_functions_of_their_name(self):
        self.good("""
            import ctypes, millpond_torch, torch
            millpond_torch.enable()
            a = torch.changed[0]
            hooks = a.allocator().hooks
            init = ctypes.CFUNCTYPE(None, ctypes.c_int)(hooks["set_init_fn"])
            reset = ctypes.CFUNCTYPE(None)(hooks["set_reset_fn"])
            base = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(hooks["set_base_alloc_fn"])
            fraction = ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int)(hooks["set_memory_fraction_fn"])
            init(2)
            p = a.alloc(100 << 20, 0, None)
            size = ctypes.c_size_t()
            assert base(p + 5, ctypes.byref(size)) == p and size.value >= 100 << 20
            a.free(p, 100 << 20, 0, None)
            assert millpond_torch.memory_reserved() >= 100 << 20
            reset()
            assert millpond_torch.memory_reserved() == 0
            fraction(0.5, 0)
            assert millpond_torch.memory_stats()["millpond.limit_bytes"] == millpond_torch.mem_get_info()[1] // 2
        """, MILLPOND_ALLOC_CONF="empty_cache_floor_mb:0")

    def test_an_emptied_cache_keeps_its_floor(self):
        self.good("""
            import ctypes, millpond_torch, torch
            millpond_torch.enable()
            a = torch.changed[0]
            reset = ctypes.CFUNCTYPE(None)(a.allocator().hooks["set_reset_fn"])
            a.free(a.alloc(8 << 20, 0, None), 8 << 20, 0, None)
            reset()
            assert millpond_torch.memory_reserved() >= 8 << 20
        """)

    def test_statistics_have_pytorchs_keys_and_exact_values(self):
        self.good("""
            import millpond_torch, torch
            millpond_torch.enable()
            a = torch.changed[0]
            p, q = a.alloc(1000, 0, None), a.alloc(3 << 20, 0, None)
            s = millpond_torch.memory_stats()
            for stat in ["allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "allocation", "segment"]:
                for value in ["current", "peak", "allocated", "freed"]:
                    assert isinstance(s[f"{stat}.all.{value}"], int), stat
            assert list(s) == sorted(s)
            assert s["requested_bytes.all.current"] == 1000 + (3 << 20)
            assert s["allocation.all.current"] == 2 and s["num_ooms"] == 0
            assert millpond_torch.memory_allocated() == 1024 + (3 << 20)
            a.free(q, 3 << 20, 0, None)
            s = millpond_torch.memory_stats("cuda:0")
            assert s["allocation.all.current"] == 1 and s["allocation.all.freed"] == 1
            assert millpond_torch.max_memory_allocated(0) == 1024 + (3 << 20)
            millpond_torch.reset_peak_memory_stats()
            assert millpond_torch.max_memory_allocated() == 1024
            assert millpond_torch.memory_allocated(1) == 0 == millpond_torch.max_memory_reserved(1)
            a.free(p, 1000, 0, None)
        """)

    def test_the_keys_are_those_of_pytorch(self):
        """As torch/cuda/memory.py lists them; with a real PyTorch beside it, against what that documents."""
        self.good("""
            import millpond_torch
            metrics = ["current", "peak", "allocated", "freed"]
            bytes_ = ["allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"]
            keys = {f"{s}.{p}.{m}" for s in bytes_ + ["allocation", "segment", "active", "inactive_split"]
                    for p in ["all", "large_pool", "small_pool"] for m in metrics}
            keys |= {f"{s}.{m}" for s in ["oversize_allocations", "oversize_segments"] for m in metrics}
            keys |= {"num_alloc_retries", "num_ooms", "num_oom_rejections", "num_sync_all_streams", "num_device_alloc",
                     "num_device_free", "max_split_size"}
            s = millpond_torch.memory_stats()
            assert {k for k in s if not k.startswith("millpond.")} == keys, set(s) ^ keys
            assert s["max_split_size"] == -1 and s["millpond.limit_bytes"] == 0
            host = {f"{s}.{m}" for s in ["allocations", "allocated_bytes", "active_requests", "active_bytes"] for m in metrics}
            host |= {f"{s}.{m}" for s in ["host_alloc_time", "host_free_time"] for m in ["total", "max", "min", "count", "avg"]}
            host |= {"num_host_alloc", "num_host_free"}
            h = millpond_torch.host_memory_stats()
            assert {k for k in h if not k.startswith("millpond.")} == host, set(h) ^ host
        """)

    def test_what_is_accumulated_starts_again(self):
        self.good("""
            import millpond_torch, torch
            millpond_torch.enable()
            a = torch.changed[0]
            a.free(a.alloc(1000, 0, None), 1000, 0, None)
            p = a.alloc(3 << 20, 0, None)
            s = millpond_torch.memory_stats()
            assert (s["allocation.small_pool.allocated"], s["allocation.large_pool.current"]) == (1, 1)
            millpond_torch.reset_accumulated_memory_stats()
            s = millpond_torch.memory_stats()
            assert (s["allocation.all.allocated"], s["allocation.all.freed"], s["allocation.all.current"]) == (0, 0, 1)
            a.free(p, 3 << 20, 0, None)
        """)

    def test_snapshots_have_pytorchs_form(self):
        self.good("""
            import millpond_torch, torch
            millpond_torch.enable()
            a = torch.changed[0]
            assert millpond_torch.snapshot() == []
            held = [a.alloc(n, d, None) for n, d in [(1000, 0), (5 << 20, 0), (700, 1)]] + [
                a.alloc(512, 0, None) for _ in range(3000)]
            segments = millpond_torch.snapshot()
            blocks = [b for s in segments for b in s["blocks"]]
            live = [b for b in blocks if b["state"] == "active_allocated"]
            assert sorted(b["address"] for b in live) == sorted(held)
            assert {s["device"] for s in segments} == {0, 1}
            for s in segments:
                assert s["total_size"] == sum(b["size"] for b in s["blocks"])
                assert s["allocated_size"] == s["active_size"] == sum(
                    b["size"] for b in s["blocks"] if b["state"] == "active_allocated")
                assert s["requested_size"] == sum(b["requested_size"] for b in s["blocks"])
                at = s["address"]
                for b in s["blocks"]:
                    assert b["address"] == at and b["state"] in ("active_allocated", "inactive")
                    at += b["size"]
                assert {"stream", "segment_type", "segment_pool_id", "is_expandable", "frames"} <= set(s)
            stats = [millpond_torch.memory_stats(d) for d in (0, 1)]
            assert sum(b["requested_size"] for b in live) == sum(s["requested_bytes.all.current"] for s in stats)
            assert sum(s["total_size"] for s in segments) == sum(s["reserved_bytes.all.current"] for s in stats)
            small = [s for s in segments if s["segment_type"] == "small"]
            assert sum(s["total_size"] for s in small) == sum(s["reserved_bytes.small_pool.current"] for s in stats)
            assert any(b["state"] == "inactive" for b in blocks), "free memory is there, too"
        """)

    def test_a_pool_of_pytorchs_own(self):
        self.good("""
            import millpond_torch, torch
            pool = millpond_torch.mem_pool()
            assert pool.allocator is millpond_torch.mem_pool().allocator
            assert not torch.changed and not millpond_torch.is_enabled()
        """)

    def test_a_pool_under_millpond(self):
        self.good("""
            import millpond_torch, torch
            millpond_torch.enable()
            pool = millpond_torch.mem_pool()
            assert tuple(pool) == pool.id == (0, 7)
            del pool
        """)

    def test_a_device_that_is_not_in_use_has_no_memory(self):
        """And is not started by the question: a context takes memory of the GPU."""
        self.good("""
            import ctypes, os, millpond_torch, torch
            millpond_torch.enable()
            a = torch.changed[0]
            p = a.alloc(1000, 0, None)
            assert millpond_torch.memory_allocated(1) == 0 == millpond_torch.max_memory_reserved(1)
            assert millpond_torch.memory_stats(1)["allocation.all.current"] == 0
            millpond_torch.reset_peak_memory_stats(1)
            millpond_torch.reset_accumulated_memory_stats(1)
            assert {s["device"] for s in millpond_torch.snapshot()} == {0}
            if os.environ["MILLPOND_TORCH_DEVICE"] == "cuda":
                driver = ctypes.CDLL(os.environ["MILLPOND_CUDA_LIBRARY"])
                flags, active = ctypes.c_uint(), ctypes.c_int()
                for device in 0, 1:
                    assert driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
                    assert active.value == (device == 0)
            a.free(p, 1000, 0, None)
        """)

    def test_tags_say_what_memory_is_for(self):
        self.good("""
            import millpond_torch, torch
            millpond_torch.enable()
            a = torch.changed[0]
            with millpond_torch.tag("weights"):
                p = a.alloc(5 << 20, 0, None)
                try:
                    with millpond_torch.tag("kv_cache"):
                        q = a.alloc(3 << 20, 0, None)
                        raise KeyError
                except KeyError:
                    pass
                r = a.alloc(1 << 20, 0, None)
            s = a.alloc(1 << 20, 0, None)
            assert millpond_torch.tag_bytes("weights") == 6 << 20
            assert millpond_torch.tag_bytes("kv_cache", 0) == 3 << 20
            for block, size in [(p, 5 << 20), (q, 3 << 20), (r, 1 << 20), (s, 1 << 20)]:
                a.free(block, size, 0, None)
            assert millpond_torch.tag_bytes("weights") == 0 == millpond_torch.tag_bytes("nobody's")
        """)
        self.assertIn("1 to 31 bytes", self.error("m.tag('').__enter__()"))

    def test_a_program_is_recorded(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "my.trace"
            self.good("""
                import millpond_torch, torch
                millpond_torch.enable()
                a = torch.changed[0]
                p, q = a.alloc(1000, 0, None), a.alloc(3 << 20, 0, None)
                a.free(p, 1000, 0, None)
            """, MILLPOND_RECORD=str(file))
            lines = file.read_text().splitlines()
        self.assertEqual([l for l in lines if l[0] != "#"], ["a 1 1000 0", f"a 2 {3 << 20} 0", "f 1"])
        self.assertEqual(lines[-1], "# exit: 3 events")

    def test_a_missing_library_says_what_to_do(self):
        text = self.error("m.enable()", MILLPOND_TORCH_LIBRARY="/nowhere/libmillpond-torch.so")
        self.assertIn("MILLPOND_TORCH_LIBRARY", text)
        self.assertIn("/nowhere", text)
        text = self.error("m.enable()", MILLPOND_TORCH_LIBRARY="")
        self.assertIn("cmake --install", text)

    def test_a_wrong_library_says_what_to_do(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as other:
            other.write(b"no library")
            other.flush()
            self.assertIn("cannot be used", self.error("m.version()", MILLPOND_TORCH_LIBRARY=other.name))

    def test_an_allocator_that_was_not_built_says_what_to_do(self):
        text = self.error("m.enable(native=True)", MILLPOND_TORCH_NATIVE="/nowhere/libmillpond-native.so")
        self.assertIn("millpond_torch.build_native()", text)

    def test_the_headers_of_cuda_may_lie_apart(self):
        # PyTorch's wheel brings the runtime's headers; the compiler's, which they include, are a package of their own.
        sys.path.insert(0, str(PACKAGE))
        from millpond_torch import MillpondError, _native
        with tempfile.TemporaryDirectory() as folder:
            runtime, compiler, toolkit = (pathlib.Path(folder) / name for name in ("runtime", "compiler", "toolkit"))
            for place, header in ((runtime, "cuda_runtime_api.h"), (compiler, "crt/host_defines.h"),
                                  (toolkit, "cuda_runtime_api.h"), (toolkit, "crt/host_defines.h")):
                (place / header).parent.mkdir(parents=True, exist_ok=True)
                (place / header).touch()
            self.assertEqual(_native._cuda_headers([runtime, compiler]), [runtime, compiler])
            self.assertEqual(_native._cuda_headers([toolkit, compiler]), [toolkit])
            with self.assertRaisesRegex(MillpondError, "nvidia-cuda-crt"):
                _native._cuda_headers([runtime])
            with self.assertRaisesRegex(MillpondError, "nvidia-cuda-runtime"):
                _native._cuda_headers([compiler])

    def test_the_process_has_one_library_of_cpp(self):
        # Some compilers link theirs as an archive, which would be a second one beside PyTorch's.
        sys.path.insert(0, str(PACKAGE))
        from millpond_torch import _native
        ctypes.CDLL("libstdc++.so.6")
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            compiler, source = folder / "c++", folder / "numbers.cpp"
            compiler.write_text('#!/bin/sh\nexec g++ -static-libstdc++ "$@"\n')
            compiler.chmod(0o755)
            source.write_text('#include <sstream>\nextern "C" __attribute__((visibility("default"))) int digits(long n) {\n'
                              '  std::ostringstream text;\n  text << n;\n  return static_cast<int>(text.str().size());\n}\n')
            part = types.SimpleNamespace(place=lambda torch: folder / "libnumbers.so", sources=[source], libraries=[], cuda=False)
            torch = types.SimpleNamespace(__file__=str(folder / "__init__.py"), __version__="2.15.0", compiled_with_cxx11_abi=lambda: True)
            made = _native.build(torch, part, str(compiler))
            self.assertEqual(ctypes.CDLL(made).digits(12345), 5)
            symbols = subprocess.run(["nm", "-D", made], stdout=subprocess.PIPE, text=True, check=True).stdout
            self.assertIn(" U _ZNSo9_M_insertIlEERSoT_", symbols)  # std::ostream's, for a number

    def test_without_pytorch(self):
        text = self.error("m.enable()", stub="raise ImportError('no module named torch, says the test')")
        self.assertIn("install it with CUDA support", text)

    def test_with_a_pytorch_without_cuda(self):
        self.assertIn("without CUDA", self.error("m.enable()", stub=STUB.replace('cuda="12.8"', "cuda=None")))

    def test_with_an_old_pytorch(self):
        self.assertIn("2.1 or newer", self.error("m.enable()", stub="__version__ = '1.13'"))
        self.assertIn("2.5 or newer", self.error("m.mem_pool()", stub=STUB.replace(" MemPool=MemPool,", "")))

    def test_when_cuda_is_already_in_use(self):
        text = self.error("m.enable()", stub=STUB.replace("IN_USE = False", "IN_USE = True"))
        self.assertIn("at the top of the program", text)

    def test_when_a_graph_or_a_pool_is_alive(self):
        """Nothing is allocated, but PyTorch's own allocator has memory that it cannot give back."""
        stub = STUB.replace("IN_USE = False", "IN_USE = True").replace(
            "memory_allocated=lambda i: 1000",
            "memory_allocated=lambda i: 0, memory_reserved=lambda i: 2 << 20, empty_cache=lambda: None")
        text = self.error("m.enable()", stub=stub)
        self.assertIn("2097152 bytes belong to a CUDA graph", text)
        self.assertIn("at the top of the program", text)
        # With none, the next step is reached, which needs a real PyTorch.
        text = self.error("m.enable()", stub=stub.replace("2 << 20", "0") + "\n__file__ = '/nowhere/torch.py'\n")
        self.assertIn("does not show where it is", text)

    def test_without_a_gpu(self):
        for program in ["m.enable()", "m.memory_stats()", "m.snapshot()", "m.mem_pool()"]:
            text = self.error(program, MILLPOND_TORCH_DEVICE="no_such_type")
            self.assertIn("no device of type 'no_such_type'", text)

    def test_a_device_that_is_not_there(self):
        self.assertIn("device", self.error("m.memory_stats(17)"))
        self.assertIn("names no CUDA device", self.error("m.memory_stats('cpu')"))

    def test_pytorchs_own_variables_count(self):
        for name in "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF":
            text = self.error("m.mem_get_info(0)", MILLPOND_ALLOC_CONF="", **{name: "max_split_size_mb:x"})
            self.assertIn(name + ", column", text)

    def test_the_versions_agree(self):
        out = self.good("import millpond_torch as m\nprint(m.version(), m.__version__)")
        library, package = out.split()
        self.assertEqual(library, package)
        self.assertIn(f'version = "{package}"', (HERE.parent / "pyproject.toml").read_text())

    def test_a_wheel_can_be_built(self):
        """From the tree, without network: with the setuptools that are there, in a copy of the tree."""
        if not (importlib.util.find_spec("setuptools") and importlib.util.find_spec("wheel")):
            self.skipTest("setuptools and wheel are not here (Debian: python3-setuptools, python3-wheel)")
        import shutil
        import zipfile

        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder) / "torch"
            shutil.copytree(HERE.parent, tree)
            program = ("import setuptools.build_meta as b, sys\n"
                       f"print(b.build_wheel({folder!r}))")
            done = subprocess.run([sys.executable, "-c", program], cwd=tree, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=200)
            self.assertEqual(done.returncode, 0, done.stdout)
            name = done.stdout.strip().splitlines()[-1]
            self.assertRegex(name, r"^millpond_torch-[0-9.]+-py3-none-any\.whl$")
            names = zipfile.ZipFile(pathlib.Path(folder) / name).namelist()
            for module in (PACKAGE / "millpond_torch").glob("*.py"):
                self.assertIn(f"millpond_torch/{module.name}", names)
            for source in ("native.cpp", "compat.hpp", "holdings.hpp", "library.hpp", "numbers.hpp", "oom.hpp", "others.hpp", "pluggable.hpp", "sharing.hpp", "trace.hpp"):
                self.assertIn(f"millpond_torch/{source}", names)


if __name__ == "__main__":
    if not os.path.isfile(os.environ.get("MILLPOND_TORCH_LIBRARY", "")):
        sys.exit("MILLPOND_TORCH_LIBRARY must name the built libmillpond-torch.so")
    unittest.main()
