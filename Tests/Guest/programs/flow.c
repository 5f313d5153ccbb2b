// A client of the gateway inside the machine. It measures what a client on the host cannot: how long after a device's
// node is back bytes flow again. It sends numbered lines to a port whose far end echoes, and checks what comes back.
//
//   flow TCP-PORT PREFIX      runs until SIGTERM; PREFIX of the nodes in /dev to watch, such as ttyUSB
//
// Prints one line per event: "ready" at the first echo; "gone NODE"; "back NODE FIRST FRESH" with milliseconds from the
// node's creation to the first byte, and to the first echo of a line sent since; at the end "sent N echoed N broken N
// late N": broken are invalid lines, late those whose number had arrived already.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 9, PERIOD_MS = 5 };  // eight digits and a newline

static volatile sig_atomic_t is_over;
static long sent, echoed, broken, late, newest = -1;
static char node[64];               // the one that came back, until bytes flow
static long long appeared_at;       // nanoseconds, wall clock, like the node's ctime
static long fresh_from = -1;        // the first line sent after that
static double first_ms;

static void over(int number) {
  (void)number;
  is_over = 1;
}

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static double since_appeared(void) { return (double)(now() - appeared_at) / 1e6; }

static void node_event(const struct inotify_event *event) {
  if (event->mask & IN_DELETE) {
    printf("gone %s\n", event->name);
    return;
  }
  char path[320];
  struct stat status;
  snprintf(path, sizeof path, "/dev/%s", event->name);
  appeared_at = now();
  // The node's ctime is more exact than the moment when the event arrived here.
  if (stat(path, &status) == 0) appeared_at = status.st_ctim.tv_sec * 1000000000LL + status.st_ctim.tv_nsec;
  snprintf(node, sizeof node, "%.60s", event->name);
  fresh_from = sent;
  first_ms = -1;
}

static void hear_nodes(int watch, const char *prefix) {
  char events[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
  ssize_t count = read(watch, events, sizeof events);
  for (char *at = events; at < events + count;) {
    const struct inotify_event *event = (const struct inotify_event *)at;
    if (event->len > 0 && strncmp(event->name, prefix, strlen(prefix)) == 0) node_event(event);
    at += sizeof *event + event->len;
  }
}

static void take_line(const char *line, size_t length) {
  char *end;
  long number = strtol(line, &end, 10);
  if (length != LINE - 1 || end != line + length || number >= sent) {
    broken++;
    return;
  }
  if (echoed++ == 0) printf("ready\n");
  if (number <= newest) late++;
  else newest = number;
  if (node[0] && number >= fresh_from) {
    printf("back %s %.1f %.1f\n", node, first_ms, since_appeared());
    node[0] = 0;
  }
}

static void hear_gateway(int gateway) {
  static char kept[1 << 16];
  static size_t count;
  ssize_t got = read(gateway, kept + count, sizeof kept - 1 - count);
  if (got <= 0) {
    if (got < 0 && errno == EAGAIN) return;
    printf("ended: %s\n", got < 0 ? strerror(errno) : "end of file");
    exit(1);
  }
  if (node[0] && first_ms < 0) first_ms = since_appeared();
  count += (size_t)got;
  char *from = kept, *end;
  while ((end = memchr(from, '\n', (size_t)(kept + count - from)))) {
    *end = 0;
    take_line(from, (size_t)(end - from));
    from = end + 1;
  }
  count -= (size_t)(from - kept);
  memmove(kept, from, count);
  if (count == sizeof kept - 1) count = 0, broken++;
}

// After a partial write the rest of the line follows: this program itself must not break lines.
static void say(int gateway) {
  static char line[32];
  static size_t at = LINE;
  if (at == LINE) {
    snprintf(line, sizeof line, "%08ld\n", sent % 100000000);
    at = 0;
  }
  ssize_t taken = write(gateway, line + at, LINE - at);
  if (taken > 0) at += (size_t)taken;
  if (at == LINE) sent++;
}

int main(int count, char **words) {
  if (count != 3) return 64;
  setvbuf(stdout, NULL, _IOLBF, 0);
  signal(SIGTERM, over);
  signal(SIGPIPE, SIG_IGN);
  int gateway = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  struct sockaddr_in address = {
    .sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(words[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  if (connect(gateway, (struct sockaddr *)&address, sizeof address)) return perror("connect"), 1;
  setsockopt(gateway, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  fcntl(gateway, F_SETFL, O_NONBLOCK);
  int watch = inotify_init1(IN_NONBLOCK);
  if (inotify_add_watch(watch, "/dev", IN_CREATE | IN_DELETE) < 0) return perror("inotify"), 1;
  for (long long next = now(); !is_over;) {
    struct pollfd waits[] = {{watch, POLLIN, 0}, {gateway, POLLIN, 0}};
    poll(waits, 2, PERIOD_MS);
    if (waits[0].revents) hear_nodes(watch, words[2]);
    if (waits[1].revents) hear_gateway(gateway);
    if (now() < next) continue;
    say(gateway);
    next = now() + PERIOD_MS * 1000000LL;
  }
  printf("sent %ld echoed %ld broken %ld late %ld\n", sent, echoed, broken, late);
}
