// The smallest possible gateway: one thread, one epoll set, 64 KiB per direction, no features. The bench's `relay`
// column: what the machine can reach without splice(2), which a gateway that looks at bytes can't use.
//
//   relay LISTEN-PORT=tcp:PORT LISTEN-PORT=tty:PATH …
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

enum { CHUNK = 64 * 1024 };

/// One end of a session, or a listener (then `target` is set). `kept`: bytes that this end has not taken yet. It exists
/// only while there are such bytes, so an idle session owns two of these structs and nothing else.
struct end {
  int fd;
  uint32_t interest;
  bool finished;  // will send no more
  struct end *other;
  unsigned char *kept;
  uint32_t kept_from, kept_to;
  const char *target;
  struct end *next_dead;
};

static int set;
static struct end *dead;  // freed after the batch, whose later events may still refer to them
static unsigned char chunk[CHUNK];

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void want(struct end *end, uint32_t events) {
  if (end->interest == events) return;
  struct epoll_event event = {.events = events, .data.ptr = end};
  if (epoll_ctl(set, EPOLL_CTL_MOD, end->fd, &event)) die("epoll_ctl");
  end->interest = events;
}

static struct end *watch(int fd, uint32_t events) {
  struct end *end = calloc(1, sizeof *end);
  if (!end) die("calloc");
  end->fd = fd, end->interest = events;
  struct epoll_event event = {.events = events, .data.ptr = end};
  if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
  return end;
}

static struct sockaddr_in loopback(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

static void set_nodelay(int fd) {
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

static int open_target(const char *target) {
  if (!strncmp(target, "tty:", 4)) {
    int fd = open(target + 4, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    struct termios settings;
    if (fd >= 0 && !tcgetattr(fd, &settings)) {
      cfmakeraw(&settings);
      tcsetattr(fd, TCSANOW, &settings);
    }
    return fd;
  }
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct sockaddr_in address = loopback(atoi(target + 4));
  if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) {
    close(fd);
    return -1;
  }
  set_nodelay(fd);
  return fd;
}

static void accept_all(struct end *listener) {
  int client;
  while ((client = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
    int device = open_target(listener->target);
    if (device < 0) {
      close(client);
      continue;
    }
    set_nodelay(client);
    struct end *near = watch(client, EPOLLIN), *far = watch(device, EPOLLIN);
    near->other = far, far->other = near;
  }
}

/// Writes; keeps what does not fit and stops reading the other end until it fits. False: the end is dead.
static bool put(struct end *end, const unsigned char *bytes, uint32_t count) {
  ssize_t moved = write(end->fd, bytes, count);
  if (moved < 0 && errno != EAGAIN) return false;
  if (moved < 0) moved = 0;
  if ((uint32_t)moved == count) return true;
  if (!(end->kept = malloc(CHUNK))) die("malloc");
  end->kept_from = 0, end->kept_to = count - (uint32_t)moved;
  memcpy(end->kept, bytes + moved, end->kept_to);
  want(end, end->interest | EPOLLOUT);
  want(end->other, end->other->interest & ~(uint32_t)EPOLLIN);
  return true;
}

static bool put_kept(struct end *end) {
  ssize_t moved = write(end->fd, end->kept + end->kept_from, end->kept_to - end->kept_from);
  if (moved < 0) return errno == EAGAIN;
  end->kept_from += (uint32_t)moved;
  if (end->kept_from < end->kept_to) return true;
  free(end->kept);
  end->kept = NULL;
  want(end, end->interest & ~(uint32_t)EPOLLOUT);
  if (end->other->finished) return !shutdown(end->fd, SHUT_WR) && !(end->finished && !end->other->kept);
  want(end->other, end->other->interest | EPOLLIN);
  return true;
}

/// Reads once and passes it on. False: the session is over.
static bool pass_on(struct end *end) {
  ssize_t count = read(end->fd, chunk, CHUNK);
  if (count > 0) return put(end->other, chunk, (uint32_t)count);
  if (count < 0) return errno == EAGAIN;
  end->finished = true;
  want(end, end->interest & ~(uint32_t)EPOLLIN);
  // A tty has no half-close: its session ends with the client.
  if (!end->other->kept && shutdown(end->other->fd, SHUT_WR)) return false;
  return !(end->other->finished && !end->kept && !end->other->kept);
}

static void finish(struct end *end) {
  struct end *both[2] = {end, end->other};
  for (int i = 0; i < 2; i++) {
    close(both[i]->fd);
    both[i]->fd = -1;
    free(both[i]->kept);
    both[i]->next_dead = dead;
    dead = both[i];
  }
}

static void free_the_dead(void) {
  while (dead) {
    struct end *next = dead->next_dead;
    free(dead);
    dead = next;
  }
}

static void handle(struct end *end, uint32_t happened) {
  if (end->target) return accept_all(end);
  if (happened & EPOLLOUT && end->kept && !put_kept(end)) return finish(end);
  if (!(happened & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
  // epoll always reports a hang-up. If we do not want to read because the other end is full, a hang-up ends the
  // session.
  bool alive = end->interest & EPOLLIN ? pass_on(end) : !(happened & (EPOLLHUP | EPOLLERR));
  if (!alive) finish(end);
}

static void listen_on(const char *route) {
  int port = atoi(route);
  const char *target = strchr(route, '=');
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct sockaddr_in address = loopback(port);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
  if (!target || fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096)) die(route);
  watch(fd, EPOLLIN)->target = target + 1;
}

int main(int argc, char **argv) {
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  signal(SIGPIPE, SIG_IGN);
  set = epoll_create1(EPOLL_CLOEXEC);
  for (int i = 1; i < argc; i++) listen_on(argv[i]);
  for (;;) {
    struct epoll_event events[64];
    int count = epoll_wait(set, events, 64, -1);
    for (int i = 0; i < count; i++) {
      struct end *end = events[i].data.ptr;
      if (end->fd >= 0) handle(end, events[i].events);
    }
    free_the_dead();
  }
}
