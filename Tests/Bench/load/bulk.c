// Bulk: each end sends as fast as it can for a time, then everything sent must arrive. Two threads, the clients' side
// and the endpoints' side, each with its epoll set.
#include "load.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

struct end {
  int fd;
  struct client *client;  // NULL: the device's end
  bool sends;
  uint32_t stream_out;
  _Atomic uint64_t sent;  // read by the other side once this side has stopped
  uint64_t received;
  struct end *peer;
};

struct side {
  struct end *ends;
  int count;
  int set;
  uint64_t deadline;
  uint64_t last_receipt;
  atomic_bool stopped;
  struct side *other;
};

static void send_some(struct end *end) {
  uint64_t sent = atomic_load_explicit(&end->sent, memory_order_relaxed);
  const unsigned char *bytes = pattern_at(end->stream_out, sent);
  ssize_t moved = end->client ? client_write(end->client, bytes, CHUNK) : write(end->fd, bytes, CHUNK);
  if (moved > 0)
    atomic_store_explicit(&end->sent, sent + (uint64_t)moved, memory_order_release);
  else if (errno != EAGAIN)
    broken("write after %llu bytes: %s", (unsigned long long)sent, strerror(errno));
}

static bool receive_some(struct end *end) {
  static _Thread_local unsigned char bytes[CHUNK];
  ssize_t moved = end->client ? client_read(end->client, bytes, CHUNK) : read(end->fd, bytes, CHUNK);
  if (moved > 0) {
    pattern_check(end->peer->stream_out, end->received, bytes, (size_t)moved);
    end->received += (uint64_t)moved;
    return true;
  }
  if (moved == 0 || errno != EAGAIN)
    broken("ended after %llu bytes: %s", (unsigned long long)end->received, moved ? strerror(errno) : "end of stream");
  return false;
}

static void want(struct side *side, struct end *end, int operation, uint32_t events) {
  struct epoll_event event = {.events = events, .data.ptr = end};
  if (epoll_ctl(side->set, operation, end->fd, &event)) failed("epoll_ctl: %s", strerror(errno));
}

static bool is_sending(const struct end *end) { return end->client && client_is_sending(end->client); }

static bool has_everything(struct side *side) {
  for (int i = 0; i < side->count; i++) {
    struct end *end = &side->ends[i];
    uint64_t sent = atomic_load_explicit(&end->peer->sent, memory_order_acquire);
    if (end->received > sent) broken("%llu bytes too many", (unsigned long long)(end->received - sent));
    if (end->received < sent) return false;
  }
  return true;
}

static _Noreturn void report_missing(struct side *side) {
  uint64_t received = 0, sent = 0;
  for (int i = 0; i < side->count; i++) received += side->ends[i].received, sent += side->ends[i].peer->sent;
  broken("%llu of %llu bytes never arrived", (unsigned long long)(sent - received), (unsigned long long)sent);
}

static void *run_side(void *argument) {
  struct side *side = argument;
  for (;;) {
    struct epoll_event events[64];
    int count = epoll_wait(side->set, events, 64, 2);
    uint64_t now = now_ns();
    if (now >= side->deadline && !side->stopped) {
      for (int i = 0; i < side->count; i++)
        want(side, &side->ends[i], EPOLL_CTL_MOD, EPOLLIN | (is_sending(&side->ends[i]) ? EPOLLOUT : 0));
      atomic_store(&side->stopped, true);
    }
    for (int i = 0; i < count; i++) {
      struct end *end = events[i].data.ptr;
      if (events[i].events & ~(uint32_t)EPOLLOUT && receive_some(end)) side->last_receipt = now;
      if (!(events[i].events & EPOLLOUT)) continue;
      if (!side->stopped) {
        send_some(end);
      } else if (end->client) {  // the rest of a frame
        client_send_rest(end->client);
        if (!is_sending(end)) want(side, end, EPOLL_CTL_MOD, EPOLLIN);
      }
    }
    if (!side->stopped || !side->other->stopped) continue;
    if (has_everything(side)) return NULL;
    uint64_t silent_since = side->last_receipt > side->deadline ? side->last_receipt : side->deadline;
    if (now > silent_since + PATIENCE_MS * 1000000ull) report_missing(side);
  }
}

/// Jain's fairness index over the connections; 1 = all equal.
static double fairness(struct end *clients, struct end *devices, int count) {
  double sum = 0, squares = 0;
  for (int i = 0; i < count; i++) {
    double bytes = (double)(clients[i].received + devices[i].received);
    sum += bytes, squares += bytes * bytes;
  }
  return squares > 0 ? sum * sum / (count * squares) : 0;
}

void bulk(enum kind kind, int connections, const char *direction, double seconds) {
  bool up = strcmp(direction, "down"), down = strcmp(direction, "up");
  struct pair *pairs = calloc((size_t)connections, sizeof *pairs);
  make_pairs(kind, connections, pairs);

  struct side sides[2] = {{.other = &sides[1]}, {.other = &sides[0]}};
  for (int s = 0; s < 2; s++) {
    sides[s].ends = calloc((size_t)connections, sizeof *sides[s].ends);
    sides[s].count = connections;
    sides[s].set = epoll_create1(EPOLL_CLOEXEC);
  }
  for (int i = 0; i < connections; i++)
    for (int s = 0; s < 2; s++) {
      struct end *end = &sides[s].ends[i];
      end->fd = s ? pairs[i].device : pairs[i].client.fd;
      end->client = s ? NULL : &pairs[i].client;
      end->sends = s ? down : up;
      end->stream_out = (uint32_t)(2 * i + s);
      end->peer = &sides[1 - s].ends[i];
      set_nonblocking(end->fd);
      want(&sides[s], end, EPOLL_CTL_ADD, EPOLLIN | (end->sends ? EPOLLOUT : 0));
    }

  say("ready");
  hear("go");
  uint64_t begin = now_ns(), end = begin;
  pthread_t threads[2];
  for (int s = 0; s < 2; s++) {
    sides[s].deadline = begin + (uint64_t)(seconds * 1e9);
    if (pthread_create(&threads[s], NULL, run_side, &sides[s])) failed("no thread");
  }
  for (int s = 0; s < 2; s++) pthread_join(threads[s], NULL);
  uint64_t bytes = 0;
  for (int s = 0; s < 2; s++) {
    if (sides[s].last_receipt > end) end = sides[s].last_receipt;
    for (int i = 0; i < connections; i++) bytes += sides[s].ends[i].received;
  }
  say("result bytes=%llu seconds=%.6f jain=%.4f", (unsigned long long)bytes, (double)(end - begin) / 1e9,
      fairness(sides[0].ends, sides[1].ends, connections));
}
