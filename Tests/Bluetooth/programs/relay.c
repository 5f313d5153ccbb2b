// Connects a virtual Bluetooth controller (/dev/vhci) with the process that plays it, over TCP: relay ADDRESS PORT. HCI
// packets follow each other, each preceded by its type (H4). The driver takes exactly one packet per write and returns
// one per read, so the byte stream is split here. When either side ends, the relay ends too, and the controller is gone
// as if unplugged.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 70000 };

// The length of the packet at the start of `bytes`; 0 while unknown, -1 if it is not a packet.
static long length(const uint8_t *bytes, size_t count) {
  switch (bytes[0]) {
    case 1: return count < 4 ? 0 : 4 + bytes[3];                     // command
    case 2: return count < 5 ? 0 : 5 + (bytes[3] | bytes[4] << 8);   // data
    case 4: return count < 3 ? 0 : 3 + bytes[2];                     // event
    case 0xff: return count < 2 ? 0 : 2;                             // the driver's own: make a controller
  }
  return -1;
}

static void put(int fd, const uint8_t *bytes, size_t count) {
  while (count > 0) {
    ssize_t done = write(fd, bytes, count);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) exit(1);
    bytes += done;
    count -= (size_t)done;
  }
}

static int dial(const char *address, const char *port) {
  struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  if (inet_pton(AF_INET, address, &place.sin_addr) != 1 || connect(fd, (struct sockaddr *)&place, sizeof place) != 0) {
    perror("connect");
    exit(1);
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

int main(int count, char **words) {
  static uint8_t down[MOST], up[MOST];
  if (count != 3) return 64;
  int driver = open("/dev/vhci", O_RDWR | O_CLOEXEC);
  if (driver < 0) {
    perror("/dev/vhci");
    return 1;
  }
  int wire = dial(words[1], words[2]);
  size_t have = 0;
  for (;;) {
    struct pollfd both[2] = {{wire, POLLIN, 0}, {driver, POLLIN, 0}};
    if (poll(both, 2, -1) < 0) continue;
    if (both[1].revents) {
      ssize_t got = read(driver, up, sizeof up);
      if (got > 0 && up[0] != 0xff) put(wire, up, (size_t)got);  // 0xff: the number of the new controller
    }
    if (!both[0].revents) continue;
    ssize_t got = read(wire, down + have, sizeof down - have);
    if (got <= 0) return 0;
    have += (size_t)got;
    size_t at = 0;
    while (at < have) {
      long size = length(down + at, have - at);
      if (size < 0) {
        fprintf(stderr, "no packet begins with %02x\n", down[at]);
        return 1;
      }
      if (size == 0 || at + (size_t)size > have) break;
      while (write(driver, down + at, (size_t)size) < 0 && (errno == EINTR || errno == EAGAIN)) usleep(1000);
      at += (size_t)size;
    }
    memmove(down, down + at, have - at);
    have -= at;
  }
}
