"""The package on the device type `host`: what a program does with it, and what it says when that goes wrong."""
import gc
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import unittest.mock

import millpond
from support import needs, on_fake_driver, slow_or_failing


class OnHost(unittest.TestCase):
    def setUp(self):
        self.device = millpond.Device("host", 0)
        gc.collect()
        self.before = self.device.stats().requested_bytes.current

    def live(self):
        return self.device.stats().requested_bytes.current - self.before

    def tearDown(self):
        gc.collect()
        self.assertEqual(self.live(), 0, "a test left blocks behind")


class Memory(OnHost):
    def test_a_block_lives_as_long_as_its_object(self):
        block = self.device.alloc(1000)
        self.assertEqual((len(block), self.live(), block.ptr % 512), (1000, 1000, 0))
        del block
        self.assertEqual(self.live(), 0)

    def test_it_is_reused_at_once_on_its_own_stream(self):
        stream = self.device.stream()
        first = self.device.alloc(100_000, stream)
        address = first.ptr
        first.fill(3, stream)
        del first
        second = self.device.alloc(100_000, stream)
        self.assertEqual(second.ptr, address)
        second.fill(9, stream)
        stream.synchronize()
        self.assertEqual(bytes(second), b"\x09" * 100_000)

    def test_it_waits_for_streams_that_were_recorded(self):
        own, other = self.device.stream(), self.device.stream()
        gate = threading.Event()
        block = self.device.alloc(100_000, own)
        address = block.ptr
        hold(self.device, other, gate)
        try:
            block.record_stream(other)
            block.free()
            waiting = [b for b in self.device.blocks("waiting") if b.ptr == address]
            self.assertEqual([(b.requested, b.state) for b in waiting], [(100_000, "waiting")])
            self.assertNotEqual(self.device.alloc(100_000, own).ptr, address)
        finally:
            gate.set()
        other.synchronize()

    def test_free_on_another_stream(self):
        own, other = self.device.stream(), self.device.stream()
        block = self.device.alloc(5000, own)
        block.free(other)
        block.free()
        self.assertTrue(block.is_freed)
        self.assertRaises(ValueError, lambda: block.ptr)

    def test_bytes_go_in_and_out(self):
        block = self.device.alloc(16)
        block.fill(0)
        block.copy_from(b"millpond", 4)
        target = bytearray(8)
        block.copy_to(memoryview(target), 4)
        self.assertEqual((bytes(target), bytes(block)), (b"millpond", b"\0" * 4 + b"millpond" + b"\0" * 4))
        block.copy_from(bytearray(b"pond"))
        self.assertEqual(bytes(block)[:4], b"pond")
        self.assertRaises(ValueError, block.copy_from, b"x" * 17)
        self.assertRaises(ValueError, block.copy_to, bytearray(8), 9)

    def test_a_fill_takes_a_byte(self):
        stream = self.device.stream()
        block = self.device.alloc(16, stream)
        block.fill(255)
        for wrong in (-1, 256, 257, 1 << 64):
            with self.assertRaisesRegex(ValueError, "not from 0 to 255"):
                block.fill(wrong)
            self.assertRaises(ValueError, block.fill, wrong, stream)
        self.assertRaises(TypeError, block.fill, 1.5)
        self.assertEqual(bytes(block), b"\xff" * 16)

    def test_a_view_keeps_the_block(self):
        view = self.device.alloc(64).view()
        view[:5] = b"views"
        gc.collect()
        self.assertEqual(self.live(), 64)
        self.assertEqual(bytes(view[:5]), b"views")
        del view

    def test_a_view_that_survives_its_cycle_keeps_the_memory(self):
        saved = []

        class Saves:
            def __del__(self):
                saved.append(self.view)

        for make in (lambda: self.device.alloc(1 << 16, 0), lambda: self.device.alloc_host(1 << 16)):
            cycle = Saves()
            cycle.memory, cycle.itself = make(), cycle
            cycle.view, address = cycle.memory.view(), cycle.memory.ptr
            del cycle
            gc.collect()
            other = make()
            self.assertNotEqual(other.ptr, address)
            saved.pop()[0] = 77
            gc.collect()
            self.assertIn(address, [block.ptr for block in (make(), make())], "it is free again")

    def test_numbers_that_the_library_has_no_room_for_are_not_cut(self):
        device, pool = self.device, self.device.create_pool("numbers")
        for call in (device.alloc, device.alloc_host, pool.alloc):
            for size in (1 << 64, (1 << 64) + 100, 1 << 70):
                self.assertRaises(millpond.OutOfMemoryError, call, size)
            self.assertRaises(ValueError, call, -1)
            self.assertRaises(TypeError, call, 1.5)
        limits = (device.set_limit, device.set_budget, device.trim_to, pool.set_limit, pool.trim_to)
        for call in (*limits, lambda n: device.create_pool("limit", n)):
            self.assertRaises(ValueError, call, -1)
            self.assertRaises(ValueError, call, 1 << 64)
        for stream in (-1, 1 << 64, (1 << 64) + 1):
            self.assertRaises(ValueError, device.alloc, 10, stream)

    def test_no_view_outlives_its_memory(self):
        for memory in (self.device.alloc(64), self.device.alloc(64, 0), self.device.alloc_host(64)):
            view = memory.view()
            part = memory.view()[8:16]
            for end in (memory.free, memory.detach):
                self.assertRaises(BufferError, end)
            view.release()
            self.assertRaises(BufferError, memory.free)
            part[:] = b"a part!!"
            del part
            self.assertEqual(bytes(memory.view()[8:16]), b"a part!!")
            memory.free()
            self.assertRaises(ValueError, memory.view)
            self.assertRaises(ValueError, memory.detach)
        block = self.device.alloc(64, 0)
        view = block.view()
        self.assertRaises(BufferError, block.free, 0)
        view.release()
        block.free(0)

    def test_of_several_threads_one_frees(self):
        for name, ending in (("millpond_pool_free", lambda b: lambda: b.free(0)),
                             ("millpond_device_free", lambda b: b.free)):
            block = self.device.alloc(5000, 0)
            failures = []

            def work(end=ending(block)):
                try:
                    end()
                except Exception as e:
                    failures.append(e)

            with slow_or_failing(name, seconds=0.05) as library:
                threads = [threading.Thread(target=work) for _ in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            self.assertEqual((library.return_value.count, failures), (1, []))
            self.assertTrue(block.is_freed)

    def test_what_could_not_be_freed_is_still_there(self):
        block, other, pinned = self.device.alloc(600, 0), self.device.alloc(600, 0), self.device.alloc_host(600)
        stream = self.device.stream()
        for name, end in (("millpond_device_free", block.free), ("millpond_pool_free", lambda: other.free(0)),
                          ("millpond_host_free", pinned.free), ("millpond_stream_destroy", stream.close)):
            with slow_or_failing(name, failures=1) as library:
                self.assertRaises(millpond.MillpondError, end)
                end()
                end()
            self.assertEqual(library.return_value.count, 2, name)
        self.assertEqual(self.live(), 0)
        self.assertRaises(ValueError, lambda: stream.handle)
        # Somebody else has freed it: the address may be another block's by the time of a second try.
        block = self.device.alloc(600, 0)
        millpond.Block(self.device, block.ptr, 600, 0).free()
        self.assertRaises(millpond.MillpondError, block.free)
        self.assertTrue(block.is_freed)

    def test_zeroed(self):
        for stream in (None, 0, self.device.stream()):
            used = self.device.alloc(70_000, stream)
            used.fill(255)
            used.free()
            for size in (70_000, 0):
                self.assertEqual(bytes(self.device.alloc(size, stream, zeroed=True)), b"\0" * size)

    def test_nothing_at_all(self):
        for empty in (self.device.alloc(0), self.device.alloc(0, 0), self.device.alloc_host(0)):
            self.assertEqual((empty.ptr, len(empty), len(empty.view())), (0, 0, 0))
            empty.free()

    def test_a_stream_may_end_before_its_blocks(self):
        stream = self.device.stream()
        block = self.device.alloc(4096, stream)
        stream.close()
        self.assertRaises(ValueError, lambda: stream.handle)
        block.copy_from(b"still there")
        del block

    def test_streams_wait_for_each_other(self):
        first, second, gate = self.device.stream(), self.device.stream(), threading.Event()
        block = self.device.alloc(1 << 16, first)
        hold(self.device, first, gate)
        block.fill(5, first)
        second.wait(first)
        self.assertFalse(second.done())
        gate.set()
        second.synchronize()
        self.assertEqual(bytes(block)[:3], b"\5\5\5")

    def test_pinned_memory(self):
        before = self.device.host_memory_stats()["active_requests.current"]
        pinned = self.device.alloc_host(10_000)
        pinned.view()[:] = b"\1" * 10_000
        pinned.record_stream(0)
        self.assertEqual(self.device.host_memory_stats()["active_requests.current"], before + 1)
        pinned.free()
        self.device.synchronize()
        self.assertEqual(self.device.host_memory_stats()["active_requests.current"], before)
        self.device.empty_host_cache()

    def test_from_many_threads(self):
        failures = []

        def work(seed):
            try:
                stream = self.device.stream()
                for i in range(300):
                    block = self.device.alloc(1 + (i * 7919 + seed) % 70_000, stream)
                    block.fill(seed, stream)
                    if i % 50 == 0:
                        stream.synchronize()
                        assert bytes(block) == bytes([seed]) * len(block)
            except BaseException as e:
                failures.append(e)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


def hold(device, stream, gate):
    """The stream stands still until the gate opens."""
    from millpond._library import library

    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(lambda _, status: gate.wait(30))
    gate.keeps = call
    assert library().millpond_stream_add_callback(ctypes.c_void_p(device.handle), ctypes.c_void_p(stream.handle),
                                                  call, None) == 0


class Pools(OnHost):
    def test_a_pool_has_an_account_and_a_limit(self):
        pool = self.device.create_pool("weights", limit_bytes=8 << 20)
        kept = pool.alloc(6 << 20)
        self.assertEqual(pool.stats().requested_bytes.current, 6 << 20)
        self.assertEqual(pool.memory_stats()["requested_bytes.all.current"], 6 << 20)
        with self.assertRaises(millpond.OutOfMemoryError) as caught:
            pool.alloc(4 << 20)
        self.assertIn("weights", caught.exception.report)
        self.assertEqual(caught.exception.name, "OUT_OF_MEMORY")
        self.assertIsInstance(caught.exception, MemoryError)
        self.assertEqual(pool.stats().out_of_memory_count, 1)
        pool.set_limit(0)
        pool.alloc(4 << 20)
        # The pool's object may go first.
        del pool
        gc.collect()
        kept.fill(1)

    def test_a_scope_serves_this_thread(self):
        pool = self.device.create_pool("scoped")
        with pool.scope():
            block = self.device.alloc(3000)
            self.assertEqual(pool.stats().requested_bytes.current, 3000)
        other = self.device.alloc(3000)
        self.assertEqual(pool.stats().requested_bytes.current, 3000)
        del block, other

    def test_sleep(self):
        pool = self.device.create_pool("sleeper")
        block = pool.alloc(1 << 20)
        block.copy_from(b"kept")
        pool.sleep(keep=True)
        self.assertRaises(millpond.MillpondError, pool.alloc, 1)
        self.assertGreater(pool.stats().sleeping_bytes.current, 0)
        pool.wake()
        self.assertEqual(bytes(block)[:4], b"kept")

    def test_empty_cache(self):
        pool = self.device.create_pool("cache")
        pool.alloc(5 << 20).free()
        self.assertGreater(pool.stats().reserved_bytes.current, 0)
        pool.empty_cache()
        self.assertEqual(pool.stats().reserved_bytes.current, 0)
        self.assertGreater(pool.stats().reserved_bytes.peak, 0)
        pool.reset_peaks()
        self.assertEqual(pool.stats().reserved_bytes.peak, 0)

    def test_trim_and_budget(self):
        pool = self.device.create_pool("trimmed")
        kept = pool.alloc(5 << 20)
        pool.alloc(20 << 20).free()
        pool.trim_to(12 << 20)
        self.assertLessEqual(pool.stats().reserved_bytes.current, 12 << 20)
        self.device.trim_to(8 << 20)
        above = self.device.set_budget(1 << 20)  # only the live block's 6 MiB stay
        self.assertEqual(above, self.device.stats().reserved_bytes.current - (1 << 20))
        self.assertEqual(self.device.stats().limit_bytes, 1 << 20)
        self.assertEqual(self.device.set_budget(0), 0)
        kept.free()


    def test_a_group_gives_back_and_follows_budgets(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "group"
            with self.device.join_group(path, "a test", wait=0.5) as group:
                self.assertRaises(millpond.MillpondError, self.device.join_group, path)
                self.device.alloc(20 << 20).free()
                [member] = millpond.group_members(path)
                self.assertEqual((member.member_id, member.name, member.device), (group.member_id, "a test", "host:0"))
                self.assertEqual(member.process_id, os.getpid())
                millpond.set_group_budget(path, group.member_id, 2 << 20)
                until = time.monotonic() + 60
                while millpond.group_members(path)[0].budget_bytes == 0 and time.monotonic() < until:
                    time.sleep(0.005)
                self.assertEqual(self.device.stats().limit_bytes, 2 << 20)
                self.assertLessEqual(self.device.stats().reserved_bytes.current, 2 << 20)
            self.assertEqual(millpond.group_members(path), [])
            self.device.set_budget(0)
            with self.device.join_group(path, serves=False) as group:
                self.assertEqual(group.serve(), 0)
                self.assertRaises(ValueError, group.serve, -1)
                self.assertRaises(millpond.MillpondError, millpond.set_group_budget, path, group.member_id + 1, 5)
            group.leave()
            self.assertRaises(millpond.MillpondError, group.serve)


class OutOfMemory(OnHost):
    def test_the_report_has_fields(self):
        pool = self.device.create_pool("weights", limit_bytes=8 << 20)
        stream = self.device.stream()
        with millpond.tag("layers"):
            kept = [pool.alloc(3 << 20, stream), pool.alloc(2 << 20, stream)]
        with self.assertRaises(millpond.OutOfMemoryError) as caught:
            pool.alloc(4 << 20, stream)
        r = caught.exception.details
        self.assertEqual((r.reason, r.pool, r.stream), ("pool_limit", "pool 'weights'", stream.handle))
        self.assertEqual((r.requested_bytes, r.pool_limit_bytes), (4 << 20, 8 << 20))
        self.assertLessEqual({"maps", "pooled", "has_stream"}, r.flags)
        self.assertEqual(r.missing, frozenset())
        self.assertEqual([(h.label, h.live_bytes, h.block_count) for h in r.tags], [("tag 'layers'", 5 << 20, 2)])
        self.assertEqual(r.pools[0].label, "pool 'weights'")
        self.assertIn("device", [t.step for t in r.tried])
        self.assertEqual(r.text, caught.exception.report)
        self.assertIn("advice: raise the pool's limit", r.text)
        parts = r.live_bytes + r.waiting_bytes + r.free_here_bytes + r.free_other_streams_bytes
        self.assertEqual(parts + r.free_other_pools_bytes + r.moving_bytes, r.reserved_bytes)
        kept.clear()

    def test_a_handler_is_told_the_report(self):
        pool = self.device.create_pool("cache", limit_bytes=8 << 20)
        cache = [pool.alloc(2 << 20) for _ in range(4)]
        seen = []

        def drop(request):
            seen.append((request.details.reason, request.details.pool, request.details.live_bytes, request.size))
            cache.pop().free()
            return True

        with self.device.oom_handler(drop):
            block = pool.alloc(6 << 20)
            self.assertEqual([reason for reason, _, _, _ in seen], ["pool_limit"] * 3)
            self.assertEqual(seen[0][1:], ("pool 'cache'", 8 << 20, 6 << 20))
            with self.assertRaises(millpond.OutOfMemoryError):
                pool.alloc(9 << 20)  # above the limit: nobody can help
            self.assertEqual(len(seen), 3)
            block.free()
        cache.clear()


class Seeing(OnHost):
    def test_blocks_and_segments_have_their_pools(self):
        pool, stream = self.device.create_pool("own"), self.device.stream()
        block = pool.alloc(5 << 20, stream)
        (found,) = pool.blocks("live")
        self.assertEqual((found.ptr, found.pool, found.segment), (block.ptr, pool.handle, 0))
        (segment,) = pool.segments()
        self.assertEqual((segment.ptr, segment.size, segment.kind), (block.ptr, 6 << 20, "large"))
        self.assertEqual((segment.stream, segment.pool, segment.home), (stream.handle, pool.handle, segment.ptr))
        self.assertEqual(sum(s.size for s in self.device.segments()), self.device.stats().reserved_bytes.current)
        block.free()

    def test_what_was_counted_begins_again(self):
        pool = self.device.create_pool("counted")
        pool.alloc(3000).free()
        self.assertEqual(pool.memory_stats()["allocation.all.allocated"], 1)
        pool.reset_accumulated()
        self.assertEqual(pool.memory_stats()["allocation.all.allocated"], 0)
        self.device.alloc_host(5000).free()
        self.assertGreater(self.device.host_memory_stats()["active_requests.allocated"], 0)
        self.device.reset_host_accumulated()
        self.assertEqual(self.device.host_memory_stats()["active_requests.allocated"], 0)
        self.device.reset_host_peaks()
        self.assertEqual(self.device.host_memory_stats()["active_bytes.peak"], 0)

    def test_a_signal_begins_and_ends_a_history(self):
        """In a program of its own: a signal is chosen for as long as a process lives."""
        with tempfile.TemporaryDirectory() as folder:
            program = f"""
                import millpond, os, pathlib, signal, time
                device = millpond.Device("host")
                millpond.history_on_signal(signal.SIGUSR2, {folder!r} + "/run-%n.history")
                def until(done):
                    end = time.monotonic() + 30
                    while not done():
                        assert time.monotonic() < end
                        time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGUSR2)
                until(lambda: pathlib.Path({folder!r}, "run-1.history").exists())
                def kept():
                    device.alloc(12345).free()
                    try:
                        return any(e.kind == "alloc" and e.requested == 12345 for e in device.events())
                    except millpond.MillpondError:
                        return False  # not yet
                until(kept)
                os.kill(os.getpid(), signal.SIGUSR2)
                try:
                    millpond.history_on_signal(-3)
                except millpond.MillpondError as e:
                    print(e.name)
            """
            done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], text=True, timeout=120,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual((done.returncode, done.stdout.strip()), (0, "INVALID_ARGUMENT"), done.stdout)
            self.assertTrue(os.path.exists(folder + "/run-1.history"))

    def test_a_request_that_failed_is_in_the_history(self):
        with self.device.history():
            kept = self.device.alloc(1 << 20)
            with self.assertRaises(millpond.OutOfMemoryError):
                self.device.alloc(1 << 50)
        (event,) = [e for e in self.device.events() if e.kind == "oom"]
        self.assertEqual((event.ptr, event.requested), (0, 1 << 50))
        self.assertGreater(event.device_free, 1 << 20)
        kept.free()

    def test_statistics_agree(self):
        blocks = [self.device.alloc(n) for n in (100, 20_000, 3 << 20)]
        stats, names = self.device.stats(), self.device.memory_stats()
        self.assertEqual(stats.requested_bytes.current, names["requested_bytes.all.current"])
        self.assertEqual(stats.blocks.current, names["allocation.all.current"])
        listed = self.device.blocks("live")
        self.assertEqual(sum(b.requested for b in listed), stats.requested_bytes.current)
        self.assertTrue({b.ptr for b in blocks} <= {b.ptr for b in listed})
        self.assertIn("millpond_", self.device.prometheus(streams=True))
        self.assertIsInstance(self.device.report(), dict)

    def test_the_parser_of_prometheus_reads_the_page(self):
        parser = needs("prometheus_client.parser")
        self.device.set_options(latency_histograms=True)
        pool = self.device.create_pool('a "pool" \\ of mine')
        with millpond.tag("kv_cache"):
            blocks = [pool.alloc(n) for n in (100, 20_000, 3 << 20)]
        families = list(parser.text_string_to_metric_families(self.device.prometheus(streams=True)))
        self.assertEqual(len(families), len({f.name for f in families}), "a family is told twice")
        self.assertTrue(all(f.type != "unknown" and f.documentation for f in families))
        at = {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}
        self.assertEqual(len(at), sum(len(f.samples) for f in families), "a sample is told twice")
        named = {"device": f"host:{self.device.ordinal}"}
        told = self.device.memory_stats()
        self.assertEqual(at["millpond_requested_bytes", frozenset(named.items())], told["requested_bytes.all.current"])
        names = [dict(k[1]) for k in at if k[0] == "millpond_requested_bytes"]
        self.assertTrue(any(n.get("pool_name") == 'a "pool" \\ of mine' for n in names), names)
        kinds = {f.name: f.type for f in families}
        self.assertEqual(kinds["millpond_latency_seconds"], "histogram")
        self.assertTrue(any(dict(k[1]).get("tag") == "kv_cache" for k in at))
        self.device.set_options(latency_histograms=False)
        del blocks

    def test_a_tag_is_told(self):
        with millpond.tag("kv_cache"), millpond.tag("layer 3"):
            block = self.device.alloc(7000)
        self.assertEqual([b.tag for b in self.device.blocks("live") if b.ptr == block.ptr], ["layer 3"])
        self.assertEqual(self.device.tags()["layer 3"].requested_bytes.current, 7000)
        untagged = self.device.alloc(7000)
        self.assertEqual([b.tag for b in self.device.blocks("live") if b.ptr == untagged.ptr], [""])

    def test_callers_are_tags_where_that_is_wanted(self):
        def load_weights():
            return self.device.alloc(7000)

        plain = load_weights()
        millpond.tag_callers()
        try:
            kept = [load_weights(), self.device.default_pool.alloc(9000), plain]
            with millpond.tag("mine"):
                kept.append(load_weights())
            with self.assertRaises(millpond.OutOfMemoryError) as failed:
                self.device.alloc(1 << 50)
        finally:
            millpond.tag_callers(False)
        kept.append(load_weights())
        tags = {b.ptr: b.tag for b in self.device.blocks("live")}
        found = [tags[b.ptr] for b in kept]
        line = load_weights.__code__.co_firstlineno + 1
        self.assertEqual(found[0], f"load_weights:{line}", "the file's name does not fit into a tag")
        self.assertRegex(found[1], r"^test_callers_are_tags_where:\d+$")
        self.assertEqual(found[2:], ["", "mine", ""])
        self.assertNotIn("MILLPOND_HISTORY", str(failed.exception) + failed.exception.report)

    def test_a_program_that_runs_out_names_its_biggest_holder(self):
        program = (
            "import millpond\n"
            "device = millpond.Device('host')\n"
            "def load_weights(): return [device.alloc(4 << 20) for _ in range(10)]\n"
            "kept = load_weights()\n"
            "def step(): kept.append(device.alloc(3 << 20))\n"
            "while True: step()\n"
        )
        for variable, wants in [("", "run with MILLPOND_TAG_CALLERS=1"), ("1", "biggest holder: tag '")]:
            env = {**os.environ, "MILLPOND_HOST_CAPACITY": "64M", "MILLPOND_TAG_CALLERS": variable}
            done = subprocess.run([sys.executable, "-c", program], env=env, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(wants, done.stderr.splitlines()[-1])
        self.assertRegex(done.stderr, r"biggest holder: tag '(<listcomp>|load_weights) \(<string>:3\)', 40\.0 MiB")

    def test_latency(self):
        self.device.set_options(latency_histograms=True)
        try:
            self.device.reset_latencies()
            for _ in range(50):
                self.device.alloc(1000)
            times = self.device.latency("alloc")
            self.assertEqual(times.count, 50)
            self.assertEqual(sum(n for _, n in times.histogram()), 50)
            self.assertLessEqual(times.quantile(0.5), times.quantile(1.0))
            self.assertLessEqual(times.quantile(1.0), times.max_ns)
            self.assertEqual(self.device.latency("free").count, 50)
        finally:
            self.device.set_options(latency_histograms=False)
        self.assertRaises(ValueError, self.device.latency, "lunch")

    def test_a_snapshot(self):
        block = self.device.alloc(12_345)
        snapshot = self.device.snapshot()
        self.assertIn(str(block.ptr), json.dumps(snapshot))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "memory.json"
            self.device.write_snapshot(path)
            self.assertEqual(json.loads(path.read_text()).keys(), snapshot.keys())
            self.device.write_snapshot(pathlib.Path(folder) / "memory.pickle", "torch")
            self.assertRaises(ValueError, self.device.write_snapshot, path, "xml")

    def test_a_history(self):
        with self.device.history(events=1000, frames=4):
            with millpond.tag("told"):
                block = self.device.alloc(4321)
            millpond.annotate("half time")
            address = block.ptr
            block.free()
        events = self.device.events()
        mine = [e for e in events if e.ptr == address and not e.kind.startswith("segment")]
        self.assertEqual([e.kind for e in mine][:2], ["alloc", "free_requested"])
        self.assertEqual((mine[0].requested, mine[0].tag, mine[0].stream), (4321, "told", None))
        self.assertGreater(len(mine[0].frames), 0)
        self.assertIn("half time", [e.text for e in events])
        self.assertEqual(sorted(e.time_ns for e in events), [e.time_ns for e in events])

    def test_an_error_inside_is_the_one_that_is_told(self):
        from millpond._library import library

        handle = self.device.handle
        with tempfile.TemporaryDirectory() as folder:
            for begin, stop in (
                (lambda: self.device.history(), lambda: library().millpond_device_history_stop(handle, None)),
                (lambda: self.device.record(pathlib.Path(folder) / "a"),
                 lambda: library().millpond_device_record_stop(handle, ctypes.byref(ctypes.c_uint64()))),
                (lambda: millpond.tag("inside"), lambda: library().millpond_tag_pop()),
            ):
                # Stopped by somebody else, so that the end of the `with` fails, too.
                with self.assertRaises(KeyError):
                    with begin():
                        self.assertEqual(stop(), 0)
                        raise KeyError("the body's")
                with self.assertRaises(millpond.MillpondError):
                    with begin():
                        self.assertEqual(stop(), 0)

    def test_a_snapshot_that_cannot_be_taken_in_says_why(self):
        with unittest.mock.patch("ctypes.string_at", side_effect=MemoryError("no room")):
            self.assertRaises(MemoryError, self.device.snapshot)
        with self.device.history():
            self.device.alloc(100)
        with unittest.mock.patch("millpond._statistics.Event", side_effect=MemoryError("no room")):
            self.assertRaises(MemoryError, self.device.events)

    def test_a_recording_is_replayed_and_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "program.trace"
            with self.device.record(trace):
                for i in range(20):
                    self.device.alloc(1000 * (i + 1), 0)
            done = subprocess.run([millpond.command_path(), "replay", "--json", "-", trace], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            json.loads(done.stdout)
            page = millpond.view(trace, pathlib.Path(folder) / "page.html")
            self.assertIn("<html", pathlib.Path(page).read_text().lower())
            self.assertRaises(millpond.MillpondError, millpond.view, pathlib.Path(folder) / "none")


class OnCuda(unittest.TestCase):
    """Over the fake driver."""

    def test_blocking_work_waits_for_the_block_s_own_stream(self):
        on_fake_driver(f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import ctypes, millpond, os, threading
from test_device import hold

device = millpond.Device("cuda")
stream = device.stream(non_blocking=True)
block = device.alloc(5000, stream)

def held(value):
    stream.synchronize()
    gate = threading.Event()
    hold(device, stream, gate)
    block.fill(value, stream)
    threading.Timer(0.2, gate.set).start()
    return gate

gate = held(1)
assert bytes(block) == b"\\1" * 5000, "bytes"
gate = held(2)
target = bytearray(5000)
block.copy_to(target)
assert target == b"\\2" * 5000, "copy_to"
gate = held(3)
block.fill(4)
assert bytes(block) == b"\\4" * 5000, "fill"
gate = held(5)
block.copy_from(b"\\6" * 5000)
assert bytes(block) == b"\\6" * 5000, "copy_from"

# While another stream is captured the library cannot wait for the whole device.
driver = ctypes.CDLL(os.environ["MILLPOND_CUDA_LIBRARY"])
captured, graph = device.stream(non_blocking=True), ctypes.c_void_p()
context = ctypes.c_void_p()
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 == driver.cuCtxPushCurrent_v2(context)
assert driver.cuStreamBeginCapture_v2(ctypes.c_void_p(captured.handle), 2) == 0
gate = held(8)
assert bytes(block) == b"\\10" * 5000, "in a capture"
assert driver.cuStreamEndCapture(ctypes.c_void_p(captured.handle), ctypes.byref(graph)) == 0
gate = held(7)
stream.close()
assert bytes(block) == b"\\7" * 5000, "after the stream's end"
""")

    def test_what_a_card_says_of_itself(self):
        said = on_fake_driver("""
import millpond
device = millpond.Device("cuda", 1)
info = device.info()
print(bool(info.name), info.pci_bus_id.count(":"), len(info.uuid.bytes), info.uuid == device.info().uuid,
      info.uuid == millpond.Device("cuda", 0).info().uuid)
least, first = device.stream_priorities
print(first < 0 <= least)
device.stream(priority=first, non_blocking=True).synchronize()
print(sorted(set(info.capabilities) & {"export"}), device.reason("rdma") == "" or "rdma" not in info.capabilities)
""")
        self.assertEqual(said.splitlines(), ["True 2 16 True False", "True", "['export'] True"])


class Library(unittest.TestCase):
    def test_devices_are_the_same(self):
        self.assertEqual(millpond.Device("host"), millpond.Device("host", 0))
        self.assertNotEqual(millpond.Device("host"), millpond.Device("host", 1))
        info = millpond.Device("host", 1).info()
        self.assertEqual((info.type, info.ordinal), ("host", 1))
        self.assertIn("host_access", info.capabilities)
        self.assertEqual((info.pci_bus_id, info.uuid), ("", None))
        self.assertEqual(millpond.Device("host").stream_priorities, (0, 0))
        self.assertEqual(millpond.Device("host").reason("host_access"), "")

    def test_types(self):
        types = {t.name: t for t in millpond.device_types()}
        self.assertGreaterEqual(types["host"].device_count, 1)
        self.assertEqual(types["host"].reason, "")
        if types["cuda"].device_count == 0:
            self.assertNotEqual(types["cuda"].reason, "")

    def test_errors_have_names(self):
        with self.assertRaises(millpond.MillpondError) as caught:
            millpond.Device("no such type")
        self.assertEqual(caught.exception.name, "UNKNOWN_DEVICE")
        self.assertIn("no such type", str(caught.exception))
        with self.assertRaises(millpond.MillpondError):
            millpond.Device("host").set_options(max_split=5)

    def test_options(self):
        device = millpond.Device("host")
        self.assertEqual(device.options["latency_histograms"].lower() in ("false", "0", "off"), True)
        self.assertIn("max_split_size_mb", device.options)

    def test_foreign_streams_are_taken_by_their_handles(self):
        class Protocol:
            def __cuda_stream__(self):
                return (0, 7)

        class Torch:
            cuda_stream = 8

        class CuPy:
            ptr = 9

        class Numba:
            class handle:
                value = 10

        self.assertEqual([millpond.handle_of(s) for s in (Protocol(), Torch(), CuPy(), Numba(), 11)], [7, 8, 9, 10, 11])
        self.assertRaises(TypeError, millpond.handle_of, "stream")

    def test_the_library_is_this_package_s(self):
        self.assertEqual(pathlib.Path(millpond.library_path()).resolve(),
                         (millpond.prefix() / "lib/libmillpond.so.0").resolve())
        import importlib.metadata

        self.assertEqual(millpond.version(), importlib.metadata.version("millpond"))
        self.assertEqual(millpond.version(), millpond.__version__)

    def test_a_bad_file_is_named(self):
        run = "import millpond\ntry:\n  millpond.version()\nexcept millpond.MillpondError as e:\n  print(e)"
        env = dict(os.environ, MILLPOND_LIBRARY="/no/such/file")
        done = subprocess.run([sys.executable, "-c", run], env=env, stdout=subprocess.PIPE, text=True)
        self.assertIn("/no/such/file", done.stdout)

    def test_exit_with_everything_alive_is_clean(self):
        run = ("import millpond\nd = millpond.Device('host')\ns = d.stream()\nb = d.alloc(100, s)\nb.fill(1, s)\n"
               "h = d.alloc_host(5)\np = d.create_pool()\nc = p.alloc(7)\nprint('left')")
        done = subprocess.run([sys.executable, "-c", run], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "left\n"))

    def test_a_forked_child_leaves_the_parent_s_memory_alone(self):
        run = ("import gc, millpond, os\nd = millpond.Device('host')\ns = d.stream()\nb = d.alloc(100, s)\n"
               "h = d.alloc_host(50)\nchild = os.fork()\n"
               "if child == 0:\n  del b, h, s\n  gc.collect()\n  raise SystemExit(7)\n"
               "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\nb.copy_from(b'here')\n"
               "print(d.stats().blocks.current)")
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", run], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "1\n"))

    def test_the_command(self):
        done = subprocess.run([sys.executable, "-m", "millpond", "--version"], stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.stdout.split()[-1], millpond.version())


if __name__ == "__main__":
    unittest.main()
