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

static void begin_one(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || fd >= (int)sizeof sent) failed("socket: %s", strerror(errno));
  if (connect(fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS)
    failed("connect: %s", strerror(errno));
  sent[fd] = 0;
  struct epoll_event wanted = {.events = EPOLLOUT, .data.fd = fd};
  epoll_ctl(set, EPOLL_CTL_ADD, fd, &wanted);
}

/// True when the connection is over.
static bool advance(int fd, unsigned char next) {
  if (!sent[fd]) {
    if (write(fd, &next, 1) != 1) failed("connect: %s", strerror(errno));
    sent[fd] = next;
    struct epoll_event wanted = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(set, EPOLL_CTL_MOD, fd, &wanted);
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
  // The first one is not measured: it proves the path.
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
      if (!advance(events[i].data.fd, (unsigned char)(done % 255 + 1))) continue;
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
