// The clients' and the endpoints' ends: sockets and ptys, and the proof that two of them belong together.
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

enum { MOST_PORTS = 256 };

enum kind kind_named(const char *name) {
  if (!strcmp(name, "tcp")) return TCP;
  if (!strcmp(name, "pty")) return PTY;
  failed("no kind of endpoint '%s'", name);
}

static struct sockaddr_in loopback(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Every end sends at once, so that the subject is measured, not Nagle's algorithm.
static void set_nodelay(int fd) {
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

void set_nonblocking(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

int listen_on_loopback(int *port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) || listen(fd, 4096) ||
      getsockname(fd, (struct sockaddr *)&address, &length))
    failed("endpoint: %s", strerror(errno));
  *port = ntohs(address.sin_port);
  return fd;
}

int connect_to(int port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in address = loopback(port);
  if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address))
    failed("connect to port %d: %s", port, strerror(errno));
  set_nodelay(fd);
  return fd;
}

static void wait_for(int fd, short events, const char *what) {
  struct pollfd poller = {.fd = fd, .events = events};
  if (poll(&poller, 1, PATIENCE_MS) <= 0) failed("nothing to %s within %d s", what, PATIENCE_MS / 1000);
}

void write_all(int fd, const void *bytes, size_t count) {
  for (size_t done = 0; done < count;) {
    wait_for(fd, POLLOUT, "write to");
    ssize_t moved = write(fd, (const char *)bytes + done, count - done);
    if (moved <= 0) failed("write: %s", strerror(errno));
    done += (size_t)moved;
  }
}

void read_all(int fd, void *bytes, size_t count) {
  for (size_t done = 0; done < count;) {
    wait_for(fd, POLLIN, "read");
    ssize_t moved = read(fd, (char *)bytes + done, count - done);
    if (moved <= 0) failed("read: %s", moved ? strerror(errno) : "end of stream");
    done += (size_t)moved;
  }
}

int hear_ports(int endpoint, int *ports, int limit) {
  char *words = hear("connect");
  if (!strcmp(words, "direct")) {
    ports[0] = endpoint;
    return 1;
  }
  int count = 0;
  for (char *word = strtok(words, " "); word && count < limit; word = strtok(NULL, " ")) ports[count++] = atoi(word);
  if (!count) failed("no port to connect to");
  return count;
}

/// A pty's master. Its slave is raw and stays open here too, so that the subject can close it without a hang-up.
static int open_pty(char *path, size_t size) {
  int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || grantpt(master) || unlockpt(master) || ptsname_r(master, path, size))
    failed("pty: %s", strerror(errno));
  int slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
  struct termios settings;
  if (slave < 0 || tcgetattr(slave, &settings)) failed("%s: %s", path, strerror(errno));
  cfmakeraw(&settings);
  tcsetattr(slave, TCSANOW, &settings);
  return master;
}

/// Four bytes there and back; with `listener` ≥ 0, the path's far end is accepted in between.
static void prove(struct pair *pair, uint32_t number, int listener) {
  uint32_t heard = 0;
  client_write_all(&pair->client, &number, sizeof number);
  if (listener >= 0) {
    wait_for(listener, POLLIN, "accept");
    pair->device = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (pair->device < 0) failed("accept: %s", strerror(errno));
    set_nodelay(pair->device);
  }
  read_all(pair->device, &heard, sizeof heard);
  if (heard != number) broken("the first four bytes of path %u arrived as %u", number, heard);
  heard = 0;
  write_all(pair->device, &number, sizeof number);
  client_read_all(&pair->client, &heard, sizeof heard);
  if (heard != number) broken("the first four bytes back on path %u arrived as %u", number, heard);
}

static void make_pty_pairs(int count, struct pair *pairs) {
  char (*paths)[32] = calloc((size_t)count, sizeof *paths);
  printf("endpoint pty");
  for (int i = 0; i < count; i++) {
    pairs[i].device = open_pty(paths[i], sizeof paths[i]);
    printf(" %s", paths[i]);
  }
  say("%s", "");
  int ports[MOST_PORTS];
  int known = hear_ports(0, ports, MOST_PORTS);
  for (int i = 0; i < count; i++) {
    int port = ports[i % known];
    client_open(&pairs[i].client, port ? connect_to(port) : open(paths[i], O_RDWR | O_NOCTTY | O_CLOEXEC));
    prove(&pairs[i], (uint32_t)i, -1);
  }
  free(paths);
}

void make_pairs(enum kind kind, int count, struct pair *pairs) {
  if (kind == PTY) return make_pty_pairs(count, pairs);
  int endpoint, ports[MOST_PORTS];
  int listener = listen_on_loopback(&endpoint);
  say("endpoint tcp %d", endpoint);
  int known = hear_ports(endpoint, ports, MOST_PORTS);
  for (int i = 0; i < count; i++) {
    client_open(&pairs[i].client, connect_to(ports[i % known]));
    prove(&pairs[i], (uint32_t)i, listener);
  }
}

static void *echo_server(void *argument) {
  int listener = *(int *)argument;
  int set = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event events[64], wanted = {.events = EPOLLIN, .data.fd = listener};
  epoll_ctl(set, EPOLL_CTL_ADD, listener, &wanted);
  for (;;) {
    int count = epoll_wait(set, events, 64, -1);
    for (int i = 0; i < count; i++) {
      int fd = events[i].data.fd;
      if (fd == listener) {
        int next;
        while ((next = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
          set_nodelay(next);
          wanted.data.fd = next;
          epoll_ctl(set, EPOLL_CTL_ADD, next, &wanted);
        }
        continue;
      }
      char bytes[4096];
      ssize_t length = read(fd, bytes, sizeof bytes);
      if (length <= 0 || write(fd, bytes, (size_t)length) != length) close(fd);
    }
  }
  return NULL;
}

int start_echo_server(void) {
  static int listener;
  int port;
  listener = listen_on_loopback(&port);
  set_nonblocking(listener);
  pthread_t thread;
  if (pthread_create(&thread, NULL, echo_server, &listener)) failed("no thread");
  say("endpoint tcp %d", port);
  return port;
}
