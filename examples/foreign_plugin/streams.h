/* The example plugin's streams: each a thread that runs its work in order. */
#ifndef EXAMPLE_PLUGIN_STREAMS_H
#define EXAMPLE_PLUGIN_STREAMS_H

#include <millpond/custom_runtime.h>

struct stream;
struct event;

/* Functions that return int answer 0 when memory or a thread could not be had, and then nothing is
 * queued. Those that create answer NULL. */
struct stream* stream_create(int device_id);
void stream_destroy(struct stream* stream); /* what is queued still runs; waits for it */
int stream_is_done(struct stream* stream);
void stream_wait(struct stream* stream);
void streams_wait(int device_id); /* all streams of the device */
void streams_end(void);           /* destroys what the host left */

/* A host source is read before this returns, as the host may free it at once. */
int stream_copy(struct stream* stream, void* dst, const void* src, size_t size_bytes,
                int src_is_host);
int stream_callback(struct stream* stream, C_Callback callback, void* user_data);
int stream_wait_for(struct stream* stream, struct event* event);

struct event* event_create(void);
void event_destroy(struct event* event);
int event_record(struct event* event, struct stream* stream); /* NULL stream: done at once */
int event_is_done(struct event* event);
void event_wait(struct event* event);

#endif
