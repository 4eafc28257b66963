/* The controls of the fake CUDA driver, for tests in C and C++. Rust tests look the functions up by
 * name, too.
 *
 * They are exported by the fake libcuda.so beside the driver API; find them with dlsym in the
 * library that you loaded. A real driver has none of them: a test that does not find
 * fakecuda_version must stop. They may be called at any time from any thread, also before cuInit,
 * and are neither counted nor refused. */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface: 1. */
int fakecuda_version(void);

/* Changes a setting; README.md lists them. FAKECUDA_CAPACITY=1G in the environment is ("capacity",
 * "1G") here. Devices and their capacities are read by cuInit; the others count at once. 0, or -1:
 * no such setting, or a bad value. */
int fakecuda_set(const char* name, const char* value);

/* A driver as new, with the environment's settings: everything is gone, and cuInit must be called
 * again. No thread may be in a driver call or a host callback. Contexts that are current in threads
 * mean nothing any more. */
void fakecuda_reset(void);

/* Lets the nth call of a function from now on (1: the next) fail with a code, and with `every` all
 * after it. A call that is made to fail has no effect. The name is the exported one, with its _v2;
 * "*" means every function. Any number is a code, also one that no header knows. 0, or -1: bad
 * input. */
int fakecuda_fail(const char* name, uint64_t nth, uint32_t code, int every);

/* Forgets all faults that have not happened. */
void fakecuda_fail_clear(void);

/* From now on, every call that touches a context fails with this code; 0 ends that. */
void fakecuda_sticky(uint32_t code);

/* Calls of a function since the last reset of the counters, those that failed too. NULL: of all
 * functions. */
uint64_t fakecuda_calls(const char* name);

/* Sets the counters to 0 and empties the log. */
void fakecuda_calls_reset(void);

/* The last 10000 calls, a line for each, if the setting "keep_log" is "1". Writes what fits into
 * `size` bytes, with a final zero, and returns the length of the whole text. */
size_t fakecuda_log(char* to, size_t size);

/* 1 if the function does not exist in this driver: too new for the version that it pretends, or
 * named in the setting "missing". The library cannot hide an export from dlsym; cuGetProcAddress
 * does not find it, and calling it gives CUDA_ERROR_NOT_FOUND. */
int fakecuda_symbol_missing(const char* name);

/* How many things nobody has given back: memory, handles, ranges, streams, events, graphs, retained
 * primary contexts. Writes a line for each, as fakecuda_log does. */
size_t fakecuda_leaks(char* to, size_t size);

/* With 1, no stream runs anything until it is called with 0: what is in flight stays in flight. Who
 * waits meanwhile, waits. */
void fakecuda_hold(int on);

/* With 1, a stream runs only what fakecuda_stream_run lets it run, and what a call waits for: just
 * that, with what it waits for itself. Events and waits take no time. */
void fakecuda_pace(int on);

/* Calls a function with the name of each driver call, and the name's length, before it begins,
 * without any lock: it may take its time. What it returns is the call's failure, unless 0. NULL
 * ends that. */
void fakecuda_observe(uint32_t (*observer)(const char* name, size_t length));

/* Queues a function in a stream as a kernel (any thread runs it, also one that waits) and returns
 * its number there. These and fakecuda_kernel know streams by what cuStreamGetId says. */
uint64_t fakecuda_launch(uint64_t stream, void (*kernel)(void*), void* data);

/* Queues a kernel that reads and writes these ranges (pairs of an address and bytes), or captures
 * it as a node. It needs memory there when it runs, with the access of the stream's device, or it
 * is an illegal address. `kernel`, unless NULL, is called when it runs, as fakecuda_launch does.
 * FAKECUDA_EARLY: begins while the kernel before it in its stream still runs (programmatic
 * dependent launch; in a capture a programmatic edge). FAKECUDA_STAYS: is on the device from its
 * turn in the stream until fakecuda_kernel_end, and reads and writes then, as a persistent kernel
 * may; it cannot be captured. `number`, unless NULL, gets its number in the stream, and 0 in a
 * capture. Returns CUDA's code. */
#define FAKECUDA_EARLY 1u
#define FAKECUDA_STAYS 2u
uint32_t fakecuda_kernel(uint64_t stream, const uint64_t (*reads)[2], size_t read_count,
                         const uint64_t (*writes)[2], size_t write_count, uint32_t flags,
                         void (*kernel)(void*), void* data, uint64_t* number);

/* 1: such a kernel is on the device. The other ends it: 0, or CUDA_ERROR_INVALID_HANDLE if it is
 * not there (yet). */
int fakecuda_kernel_stays(uint64_t stream, uint64_t number);
uint32_t fakecuda_kernel_end(uint64_t stream, uint64_t number);

/* How often memory was used at two addresses where CUDA's guide allows only one: in one operation
 * that writes there, and by a grid that was on the device before the operation that wrote through
 * the other address was over. The log has a line for each, which begins with "alias:". */
uint64_t fakecuda_aliases(void);

/* How many jobs a stream was given, and how many have run. 0: the stream is gone, and all has run;
 * 1: it was destroyed, and its work goes on; 2: it is open. */
int fakecuda_stream_state(uint64_t stream, uint64_t* submitted, uint64_t* completed);

/* What must have run before the next job of a stream: pairs of a stream and a number. Writes
 * `count` at the most, and returns how many there are. */
size_t fakecuda_stream_before(uint64_t stream, uint64_t (*to)[2], size_t count);

/* Runs a stream up to a job, and what that waits for. 0: its next job, if that need not wait. */
void fakecuda_stream_run(uint64_t stream, uint64_t number);

/* Where the bytes of device memory are, whatever addresses show them: pairs of a place and a
 * length. 0: nothing stands behind them. */
size_t fakecuda_behind(int device, uint64_t from, size_t size, uint64_t (*to)[2], size_t count);

/* Physical memory that is in use on a device, in bytes, and the most that was. */
uint64_t fakecuda_used(int device);
uint64_t fakecuda_used_peak(int device);

/* Modelled time: what the calls that take, map and give back memory would have cost on a card, in
 * nanoseconds since fakecuda_reset, by the setting "costs"; README.md says where its defaults come
 * from. Of one function, by its exported name, or with NULL of all. */
uint64_t fakecuda_modelled_ns(const char* name);

/* Takes physical memory of a device, as a lazily loaded module, the workspace of a library or
 * another process does, whoever else holds what: 0, or CUDA_ERROR_OUT_OF_MEMORY. The other gives
 * back what was taken so, as far as there is that much. */
uint32_t fakecuda_take(int device, uint64_t bytes);
void fakecuda_give(int device, uint64_t bytes);

/* Read or write device memory at once, as a kernel on `device` would: in whatever state the streams
 * are, with the access of that device. 0, or CUDA_ERROR_ILLEGAL_ADDRESS. */
uint32_t fakecuda_read(int device, uint64_t from, void* to, size_t size);
uint32_t fakecuda_write(int device, uint64_t to, const void* from, size_t size);

#ifdef __cplusplus
}
#endif

#endif
