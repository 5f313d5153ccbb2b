// Round trips: one message there and back at a time, each timed and compared.
#include "load.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WARM_UP = 200, MOST_ROUNDS = 1 << 20 };

static void *echo(void *argument) {
  int fd = *(int *)argument;
  char bytes[4096];
  for (;;) {
    ssize_t length = read(fd, bytes, sizeof bytes);
    // An end here is visible at the client too, which reports it.
    if (length <= 0 || write(fd, bytes, (size_t)length) != length) return NULL;
  }
}

/// One message there and back; nanoseconds. The read blocks: main's alarm bounds it.
static uint64_t round_trip(struct client *client, size_t size, uint64_t position) {
  unsigned char bytes[4096];
  uint64_t begin = now_ns();
  if (client_write(client, pattern_at(0, position), size) != (ssize_t)size || client_is_sending(client))
    broken("write: %s", strerror(errno));
  for (size_t done = 0; done < size;) {
    ssize_t moved = client_read(client, bytes + done, size - done);
    if (moved <= 0) broken("ended after %llu bytes", (unsigned long long)position);
    done += (size_t)moved;
  }
  uint64_t taken = now_ns() - begin;
  pattern_check(0, position, bytes, size);
  return taken;
}

static int by_size(const void *a, const void *b) {
  uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
  return (left > right) - (left < right);
}

static void report(uint32_t *times, long done) {
  qsort(times, (size_t)done, sizeof *times, by_size);
#define PERCENTILE(p) (times[(long)((p) * (double)(done - 1))] / 1e3)
  say("result rounds=%ld p50=%.2f p99=%.2f p999=%.2f", done, PERCENTILE(0.5), PERCENTILE(0.99), PERCENTILE(0.999));
}

void rounds(enum kind kind, size_t size, double seconds, long count) {
  if (!size || size > 4096) failed("a message has 1 to 4096 bytes");
  if (count < 1 || count > MOST_ROUNDS) count = MOST_ROUNDS;
  struct pair pair;
  make_pairs(kind, 1, &pair);
  pthread_t thread;
  if (pthread_create(&thread, NULL, echo, &pair.device)) failed("no thread");
  uint64_t position = 0, deadline = now_ns() + 300000000u;
  for (int i = 0; i < WARM_UP && now_ns() < deadline; i++, position += size) round_trip(&pair.client, size, position);

  say("ready");
  hear("go");
  uint32_t *times = calloc((size_t)count, sizeof *times);
  long done = 0;
  uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9);
  for (; done < count && (done == 0 || now_ns() < end); position += size) {
    uint64_t taken = round_trip(&pair.client, size, position);
    times[done++] = taken < UINT32_MAX ? (uint32_t)taken : UINT32_MAX;
  }
  report(times, done);
}

// What each change takes: the port is another than before, so none is left out.
void baud(double seconds, long count) {
  if (count < 1 || count > MOST_ROUNDS) count = MOST_ROUNDS;
  struct pair pair;
  make_pairs(PTY, 1, &pair);
  static const uint32_t rates[] = {9600, 115200};
  for (int i = 0; i < 20; i++) client_set_baud(&pair.client, rates[i & 1]);

  say("ready");
  hear("go");
  uint32_t *times = calloc((size_t)count, sizeof *times);
  long done = 0;
  uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
  while (done < count && (done == 0 || now_ns() < end)) {
    uint64_t begin = now_ns();
    client_set_baud(&pair.client, rates[done & 1]);
    times[done++] = (uint32_t)(now_ns() - begin);
  }
  report(times, done);
}
