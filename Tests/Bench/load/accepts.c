// Connections: connect, one byte there and back, close, a few at a time.
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int set;
static unsigned char sent[1 << 16];  // by descriptor: the byte that must come back; 0 = not yet sent

static void wait_for(int fd, int operation, uint32_t events) {
  struct epoll_event wanted = {.events = events, .data.fd = fd};
  if (epoll_ctl(set, operation, fd, &wanted)) failed("epoll_ctl: %s", strerror(errno));
}

/// False: not connected yet.
static bool send_byte(int fd) {
  static unsigned char next;
  if (++next == 0) next = 1;
  if (write(fd, &next, 1) == 1) {
    sent[fd] = next;
    return true;
  }
  if (errno != EAGAIN) failed("connect: %s", strerror(errno));
  return false;
}

static void begin_one(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || fd >= (int)sizeof sent) failed("socket: %s", strerror(errno));
  if (connect(fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS)
    failed("connect: %s", strerror(errno));
  sent[fd] = 0;
  // On loopback it is nearly always connected by now. Trying at once saves two calls in the load generator, which
  // shares the cores.
  wait_for(fd, EPOLL_CTL_ADD, send_byte(fd) ? EPOLLIN : EPOLLOUT);
}

/// True when the connection is over.
static bool advance(int fd) {
  if (!sent[fd]) {
    if (send_byte(fd)) wait_for(fd, EPOLL_CTL_MOD, EPOLLIN);
    return false;
  }
  unsigned char byte;
  ssize_t length = read(fd, &byte, 1);
  if (length != 1) broken("a byte never came back: %s", length ? strerror(errno) : "end of stream");
  if (byte != sent[fd]) broken("%02x came back as %02x", sent[fd], byte);
  close(fd);
  return true;
}

void accepts(double seconds, int in_flight) {
  int port, endpoint = start_echo_server();
  hear_ports(endpoint, &port, 1);
  // The first connection is not measured: it proves the path.
  unsigned char byte = 1;
  int first = connect_to(port);
  write_all(first, &byte, 1);
  read_all(first, &byte, 1);
  close(first);
  say("ready");
  hear("go");

  set = epoll_create1(EPOLL_CLOEXEC);
  uint64_t begin = now_ns(), deadline = begin + (uint64_t)(seconds * 1e9), end = begin;
  long done = 0;
  int open = in_flight;
  for (int i = 0; i < in_flight; i++) begin_one(port);
  while (open) {
    struct epoll_event events[64];
    int count = epoll_wait(set, events, 64, PATIENCE_MS);
    if (count == 0) failed("%d connections without an answer for %d s", open, PATIENCE_MS / 1000);
    for (int i = 0; i < count; i++) {
      if (!advance(events[i].data.fd)) continue;
      done++;
      end = now_ns();
      if (end < deadline)
        begin_one(port);
      else
        open--;
    }
  }
  say("result connections=%ld seconds=%.6f", done, (double)(end - begin) / 1e9);
}
