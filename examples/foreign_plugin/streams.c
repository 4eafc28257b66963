/* One lock and one condition for all streams: an example wants to be short. Work runs without the
 * lock. An event points to a mark; recording queues a new mark, which is done when the stream gets
 * there, so that waits which are queued keep the mark they were given. */
#include "streams.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct mark {
  int owners; /* the event, and each task that has it */
  int done;
};

struct task {
  enum { COPY, CALLBACK, SIGNAL, WAIT } kind;
  struct task* next;
  void* dst;
  const void* src;
  size_t size_bytes;
  void* owned; /* a host source's bytes */
  C_Callback callback;
  void* user_data;
  struct mark* mark;
};

struct stream {
  struct stream* next;
  int device_id;
  int stop;
  pthread_t thread;
  struct task *first, *last;
  size_t queued, finished; /* tasks so far */
};

struct event {
  struct mark* mark; /* NULL: never recorded */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct stream* streams;

/* With the lock held. */
static void mark_release(struct mark* mark) {
  if (mark != NULL && --mark->owners == 0) free(mark);
}

static void run(struct stream* stream, struct task* task) {
  if (task->kind == COPY) {
    memmove(task->dst, task->src, task->size_bytes);
  } else if (task->kind == CALLBACK) {
    struct C_Device_st device = {stream->device_id};
    C_Status status = C_SUCCESS;
    task->callback(&device, (C_Stream)(void*)stream, task->user_data, &status);
  }
}

static void* work(void* argument) {
  struct stream* stream = argument;
  pthread_mutex_lock(&lock);
  for (;;) {
    struct task* task = stream->first;
    if (task == NULL) {
      if (stream->stop) break;
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    if (task->kind == WAIT && !task->mark->done) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    stream->first = task->next;
    pthread_mutex_unlock(&lock);
    run(stream, task);
    pthread_mutex_lock(&lock);
    if (task->kind == SIGNAL) task->mark->done = 1;
    mark_release(task->mark);
    free(task->owned);
    free(task);
    stream->finished++;
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* With the lock held. */
static void push(struct stream* stream, struct task* task) {
  task->next = NULL;
  if (stream->first == NULL) {
    stream->first = task;
  } else {
    stream->last->next = task;
  }
  stream->last = task;
  stream->queued++;
  pthread_cond_broadcast(&changed);
}

struct stream* stream_create(int device_id) {
  struct stream* stream = calloc(1, sizeof *stream);
  if (stream == NULL) return NULL;
  stream->device_id = device_id;
  if (pthread_create(&stream->thread, NULL, work, stream) != 0) {
    free(stream);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&lock);
  return stream;
}

void stream_destroy(struct stream* stream) {
  pthread_mutex_lock(&lock);
  struct stream** at = &streams;
  while (*at != NULL && *at != stream) at = &(*at)->next;
  if (*at != NULL) *at = stream->next;
  stream->stop = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  pthread_join(stream->thread, NULL);
  free(stream);
}

void streams_end(void) {
  while (streams != NULL) stream_destroy(streams);
}

int stream_is_done(struct stream* stream) {
  pthread_mutex_lock(&lock);
  int done = stream->finished == stream->queued;
  pthread_mutex_unlock(&lock);
  return done;
}

void stream_wait(struct stream* stream) {
  pthread_mutex_lock(&lock);
  size_t until = stream->queued;
  while (stream->finished < until) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

void streams_wait(int device_id) {
  pthread_mutex_lock(&lock);
again:
  for (struct stream* s = streams; s != NULL; s = s->next) {
    if (s->device_id == device_id && s->finished < s->queued) {
      pthread_cond_wait(&changed, &lock);
      goto again; /* the list may have changed meanwhile */
    }
  }
  pthread_mutex_unlock(&lock);
}

static int submit(struct stream* stream, const struct task* what) {
  struct task* task = malloc(sizeof *task);
  if (task == NULL) return 0;
  *task = *what;
  pthread_mutex_lock(&lock);
  push(stream, task);
  pthread_mutex_unlock(&lock);
  return 1;
}

int stream_copy(struct stream* stream, void* dst, const void* src, size_t size_bytes,
                int src_is_host) {
  struct task task = {.kind = COPY, .dst = dst, .src = src, .size_bytes = size_bytes};
  if (src_is_host) {
    task.owned = malloc(size_bytes);
    if (task.owned == NULL) return 0;
    memcpy(task.owned, src, size_bytes);
    task.src = task.owned;
  }
  if (submit(stream, &task)) return 1;
  free(task.owned);
  return 0;
}

int stream_callback(struct stream* stream, C_Callback callback, void* user_data) {
  struct task task = {.kind = CALLBACK, .callback = callback, .user_data = user_data};
  return submit(stream, &task);
}

int stream_wait_for(struct stream* stream, struct event* event) {
  struct task* task = calloc(1, sizeof *task);
  if (task == NULL) return 0;
  task->kind = WAIT;
  pthread_mutex_lock(&lock);
  if (event->mark == NULL) {
    free(task);
  } else {
    task->mark = event->mark;
    task->mark->owners++;
    push(stream, task);
  }
  pthread_mutex_unlock(&lock);
  return 1;
}

struct event* event_create(void) {
  return calloc(1, sizeof(struct event));
}

void event_destroy(struct event* event) {
  pthread_mutex_lock(&lock);
  mark_release(event->mark);
  pthread_mutex_unlock(&lock);
  free(event);
}

int event_record(struct event* event, struct stream* stream) {
  struct mark* mark = NULL;
  struct task* task = NULL;
  if (stream != NULL) {
    mark = calloc(1, sizeof *mark);
    task = calloc(1, sizeof *task);
    if (mark == NULL || task == NULL) {
      free(mark);
      free(task);
      return 0;
    }
    mark->owners = 2;
    task->kind = SIGNAL;
    task->mark = mark;
  }
  pthread_mutex_lock(&lock);
  mark_release(event->mark);
  event->mark = mark;
  if (task != NULL) push(stream, task);
  pthread_mutex_unlock(&lock);
  return 1;
}

int event_is_done(struct event* event) {
  pthread_mutex_lock(&lock);
  int done = event->mark == NULL || event->mark->done;
  pthread_mutex_unlock(&lock);
  return done;
}

void event_wait(struct event* event) {
  pthread_mutex_lock(&lock);
  struct mark* mark = event->mark;
  if (mark != NULL) {
    mark->owners++;
    while (!mark->done) pthread_cond_wait(&changed, &lock);
    mark_release(mark);
  }
  pthread_mutex_unlock(&lock);
}
